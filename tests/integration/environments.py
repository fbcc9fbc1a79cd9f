# SPDX-License-Identifier: Apache-2.0
"""Wheels of several Python versions, and environments in which nothing else is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optional_tools import interpreter

REPOSITORY = Path(__file__).resolve().parents[2]
# An old PyTorch brings some gigabytes of CUDA libraries, where no index of CPU builds is configured.
LONGEST_INSTALL_S = 1200
LONGEST_PROGRAM_S = 300
Wheels = Callable[[str], Path]
THIS_PYTHON = f"3.{sys.version_info.minor}"
# This one, and two others from the oldest to the newest.
PYTHONS = tuple(dict.fromkeys((THIS_PYTHON, "3.10", "3.13", "3.12")))[:3]


def run(*command: str | Path, timeout: float = LONGEST_PROGRAM_S, **options: object) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout[-6000:]}"
    return str(done.stdout)


@dataclass(frozen=True)
class Environment:
    """A virtual environment. Its programs find no compiler: the PATH is its own folder alone."""

    folder: Path
    pytorch: str | None = None

    @property
    def python(self) -> Path:
        """The path of its interpreter."""
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Return the variables of its programs: none that leads to other packages or tools."""
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CC", "CXX", "CMAKE_PREFIX_PATH"}
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**kept, "PATH": str(self.folder / "bin")}

    def install(self, *requirements: str | Path) -> None:
        """Install wheels; nothing can be compiled."""
        words = ["-m", "pip", "install", "--quiet", "--only-binary=:all:", *requirements]
        run(self.python, *words, timeout=LONGEST_INSTALL_S, env=self.variables())

    def run(self, *words: str | Path, cwd: Path) -> str:
        """Run its Python, which must succeed; return the output."""
        return run(self.python, *words, cwd=cwd, env=self.variables())

    def gpuprof(self, *words: str | Path, cwd: Path, code: int = 0) -> str:
        """Run its command `gpuprof`, which must exit with `code`; return the output."""
        done = subprocess.run(
            [str(self.folder / "bin" / "gpuprof"), *map(str, words)],
            cwd=cwd,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_PROGRAM_S,
            check=False,
        )
        assert done.returncode == code, f"gpuprof {words}: {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout


def make_environment(version: str, pytorch: str | None, folder: Path) -> Environment:
    """Return an environment of Python `version` with that PyTorch, or none; an older one is used again."""
    environment = Environment(folder, pytorch)
    if not environment.python.exists():
        python = interpreter(version)
        assert python is not None, version
        run(python, "-m", "venv", folder)
    if pytorch is not None:
        environment.install(f"torch=={pytorch}")
    return environment


def build_sdist(folder: Path) -> Path:
    """Return the source distribution of the working tree, built into `folder`."""
    program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", program, folder, cwd=REPOSITORY)
    (found,) = folder.glob("*.tar.gz")
    return found


def build_wheel(version: str, source: Path, folder: Path, *words: str) -> Path:
    """Return the wheel of `source`, a folder or a source distribution, for Python `version`."""
    python = sys.executable if version == THIS_PYTHON else interpreter(version)
    assert python is not None, version
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", *words, "--wheel-dir", folder, source]
    # The two jobs of `make -j2` are no measure for a build that runs alone.
    run(*command, timeout=LONGEST_INSTALL_S, env={**os.environ, "MAKEFLAGS": ""})
    (found,) = folder.glob(f"*-cp{version.replace('.', '')}-*.whl")
    return found


def members(archive: Path) -> set[str]:
    """Return the files of a source distribution, without its top folder."""
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}
