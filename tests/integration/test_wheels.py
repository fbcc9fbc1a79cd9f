# SPDX-License-Identifier: Apache-2.0
"""What is in the wheels and in the source distribution, and what the libraries in them are linked to."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from environments import PYTHONS, REPOSITORY, THIS_PYTHON, Wheels, members, run

MOST_BYTES = 2_500_000
SYSTEM_LIBRARIES = {
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libstdc++.so.6",
}
LOADER = re.compile(r"ld-linux.*\.so\.\d")
each_python = pytest.mark.parametrize(
    "python", [pytest.param(each, marks=pytest.mark.needs(f"Python {each}")) for each in PYTHONS]
)


def files_of(wheel: Path) -> set[str]:
    """Return the files of a wheel; the names of extensions without the Python that they are for."""
    with zipfile.ZipFile(wheel) as opened:
        return {re.sub(r"\.cpython-\d+-[\w-]+\.so$", ".so", name) for name in opened.namelist()}


def tracked(*patterns: str) -> set[str]:
    return set(run("git", "ls-files", *patterns, cwd=REPOSITORY).split())


@each_python
def test_a_wheel_holds_the_package_and_is_small(python: str, wheels: Wheels) -> None:
    wheel = wheels(python)
    digits = python.replace(".", "")
    assert re.fullmatch(rf"gpuprof_native-[\d.]+-cp{digits}-cp{digits}-linux_\w+\.whl", wheel.name)
    assert wheel.stat().st_size < MOST_BYTES
    sources = {name.removeprefix("src/") for name in tracked("src/gpuprof")}
    built = {"gpuprof/_native.so", "gpuprof/examples/transformer.py", "gpuprof/libgpuprof_core.so"}
    packaged = {name for name in files_of(wheel) if not name.endswith("/") and ".dist-info/" not in name}
    assert packaged == sources | built


@each_python
def test_nothing_of_pytorch_python_or_cuda_is_linked(python: str, wheels: Wheels, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels(python)) as opened:
        opened.extractall(tmp_path)
    libraries = sorted(tmp_path.rglob("*.so"))
    assert len(libraries) == 2
    for library in libraries:
        dynamic = subprocess.run(
            ["readelf", "--dynamic", "--wide", str(library)], capture_output=True, text=True, check=True
        ).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        others = {each for each in needed - SYSTEM_LIBRARIES if not LOADER.fullmatch(each)}
        assert others <= {"libgpuprof_core.so"}, library.name
        assert not re.search(r"\(RPATH\)", dynamic)
        assert set(re.findall(r"\(RUNPATH\).*\[(.*)\]", dynamic)) <= {"$ORIGIN"}


def test_the_source_distribution_holds_what_a_build_and_its_tests_need(sdist: Path) -> None:
    found = members(sdist)
    wanted = tracked("src", "csrc", "cmake", "examples", "docs", "benchmarks", "tests", "*.md", "*.toml")
    golden = {name for name in wanted if name.startswith("tests/golden/")}
    assert wanted - golden <= found
    assert not {name for name in found if name.startswith(("tests/golden", "build", ".venv", "node_modules"))}


def test_wheels_of_tree_and_source_distribution_are_alike(wheels: Wheels) -> None:
    other = next(each for each in PYTHONS if each != THIS_PYTHON)
    assert files_of(wheels(other)) == files_of(wheels(THIS_PYTHON))
