# SPDX-License-Identifier: Apache-2.0
"""The marker `needs`: tests of packages and tools that the extra `dev` does not install.

`pytest -m needs --require-optional` runs all of them, and fails where one is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from gpuprof import _native
from gpuprof.record.kernels import nvrtc_folders


def disassembler() -> str | None:
    """Return the path of nvdisasm: of the toolkit, of NVIDIA's wheel, or the one that Triton brings."""
    folders = [Path(entry, "nvidia", version, "bin") for entry in sys.path for version in ("cu13", "cu12")]
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        folders.append(Path(triton.origin).parent / "backends" / "nvidia" / "bin")
    return shutil.which("nvdisasm") or next(
        (str(folder / "nvdisasm") for folder in folders if (folder / "nvdisasm").is_file()), None
    )


def _is_python(version: str) -> bool:
    return interpreter(version) is not None


def _has_nvrtc() -> bool:
    return not _native.nvrtc_probe([os.fsencode(folder) for folder in nvrtc_folders()])["reason"]


def interpreter(version: str) -> str | None:
    """Return the path of a Python of that version, as "3.12": on the PATH, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    return next((path for path in candidates if path is not None and _runs(path, version)), None)


def _runs(path: str, version: str) -> bool:
    """Return whether it is that Python: pyenv has commands for versions that are switched off."""
    words = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() == version


# What is no Python module.
_TOOLS: dict[str, Callable[[], bool]] = {
    "nvrtc": _has_nvrtc,
    "nvdisasm": lambda: disassembler() is not None,
    "prometheus": lambda: shutil.which("prometheus") is not None,
    **{f"Python 3.{minor}": partial(_is_python, f"3.{minor}") for minor in range(10, 15)},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that turns each of these skips into a failure."""
    parser.addoption(
        "--require-optional", action="store_true", help="fail where a test marked `needs` would be skipped"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose packages are missing, or fail it where they are required."""
    names = [name for marker in item.iter_markers("needs") for name in marker.args]
    if absent := missing(names):
        give_up = pytest.fail if item.config.getoption("--require-optional") else pytest.skip
        give_up(f"not installed: {', '.join(absent)}; `make integration` installs it")


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the tools and modules `names` that are not here."""
    return [name for name in names if not _is_here(name)]


def _is_here(name: str) -> bool:
    tool = _TOOLS.get(name)
    return importlib.util.find_spec(name) is not None if tool is None else tool()
