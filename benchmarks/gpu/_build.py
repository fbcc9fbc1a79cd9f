# SPDX-License-Identifier: Apache-2.0
"""Building gpuprof on a machine without a network, of what the machine has and a folder of wheels.

    python -m benchmarks.gpu._build LOG SECONDS

Nothing of the machine's own environment is changed: packages go into a folder of their own in `build/`,
which stays when the sources are copied there again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu._processes import REPOSITORY, Done, run
from benchmarks.gpu._report import PACKAGE_SOURCES, source_digest

WHEELS = Path(__file__).resolve().parent / "wheels"
BUILD = REPOSITORY / "build" / "gpu"
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = BUILD / f"wheels-{_VERSION}"
PACKAGE = BUILD / f"package-{_VERSION}"
_BUILT = PACKAGE / "gpuprof-sources.txt"  # of which sources the package there is
NATIVE = BUILD / "native"
PROGRAM_FOLDER = NATIVE / "tests" / "native"
PROGRAMS = ("cupti_capture", "cupti_probe", "test_cupti_abi", "test_cupti_replay")

# Module by package. What is wanted but not needed may be missing.
NEEDED = {
    "numpy": "numpy",
    "duckdb": "duckdb",
    "click": "click",
    "rich": "rich",
    "scipy": "scipy",
    "msgspec": "msgspec",
    "scikit-build-core": "scikit_build_core",
    "pybind11": "pybind11",
    "pytest": "pytest",
}
WANTED = {
    "cmake": "cmake",
    "ninja": "ninja",
    "nvidia-ml-py": "pynvml",
    "hypothesis": "hypothesis",
    "nvtx": "nvtx",
}
_COMMANDS = ("cmake", "ninja")


def environment() -> dict[str, str]:
    """Return what a child needs to find gpuprof: as it was built here of these sources, else as installed.

    Packages from wheels come last.
    """
    folders = [str(REPOSITORY), os.environ.get("PYTHONPATH"), str(SITE)]
    if _BUILT.exists() and _BUILT.read_text(encoding="ascii") == _package_digest():
        folders.insert(0, str(PACKAGE))
    path = os.pathsep.join([str(SITE / "bin"), os.environ.get("PATH", "")])
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "PATH": path}


@lru_cache
def _package_digest() -> str:
    return source_digest(PACKAGE_SOURCES)


def build(limit_s: float, log: Path) -> dict[str, Any]:
    """Install what is missing; build gpuprof and, at the same time, the native programs for a GPU."""
    installed, missing = install_missing(limit_s, log)
    section: dict[str, Any] = {"installed": installed, "missing": missing}
    lacking = [package for package in missing if package in NEEDED]
    if lacking:
        section["problem"] = f"no wheel of {', '.join(lacking)} in {WHEELS.name}/: run fetch_wheels.py first"
        return section
    with ThreadPoolExecutor() as pool:
        package = pool.submit(_build_package, limit_s, log)
        programs = pool.submit(_build_programs, limit_s, log)
    section["package_s"] = round(package.result().seconds, 1)
    if (problem := package.result().problem) is not None:
        section["problem"] = f"gpuprof could not be built: {problem}"
        return section
    _BUILT.write_text(_package_digest(), encoding="ascii")
    if (problem := programs.result()) is not None:
        section["problem"] = f"the native programs could not be built: {problem}"
    return section


def _build_package(limit_s: float, log: Path) -> Done:
    words: list[str | Path] = [
        *_pip(), "--no-build-isolation", "--no-deps", "--upgrade", "--target", PACKAGE,
        "--config-settings=cmake.define.GPUPROF_WERROR=OFF",
        f"--config-settings=build-dir={BUILD / 'cmake'}", REPOSITORY,
    ]  # fmt: skip
    return run(words, limit_s=limit_s, log=log, environment=environment())


def install_missing(limit_s: float, log: Path) -> tuple[list[str], list[str]]:
    """Install the carried wheels of what this Python lacks; returns those, and what is missing still."""
    wheels = [wheel for wheel in newest_wheels() if not _is_installed(wheel)]
    if wheels:
        run([*_pip(), "--no-deps", "--upgrade", "--target", SITE, *wheels], limit_s=limit_s, log=log)
    missing = [name for name, module in {**NEEDED, **WANTED}.items() if not _is_there(name, module)]
    return [wheel.name for wheel in wheels], missing


def newest_wheels() -> list[Path]:
    """Return the carried wheels, of several of one package the one that came last."""
    found: dict[str, Path] = {}
    for wheel in sorted(WHEELS.glob("*.whl"), key=lambda path: path.stat().st_mtime):
        found[_distribution(wheel)] = wheel
    return sorted(found.values())


def _distribution(wheel: Path) -> str:
    return wheel.name.partition("-")[0].lower().replace("_", "-")


def _is_installed(wheel: Path) -> bool:
    try:
        version(_distribution(wheel))
    except PackageNotFoundError:
        return any(SITE.glob("-".join(wheel.name.split("-")[:2]) + ".dist-info"))
    return True


def _is_there(package: str, module: str) -> bool:
    if package in _COMMANDS and shutil.which(package) is not None:
        return True
    return importlib.util.find_spec(module) is not None or bool(list(SITE.glob(f"{module}*")))


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir"]


def _build_programs(limit_s: float, log: Path) -> str | None:
    environ = environment()
    cmake = shutil.which("cmake", path=environ["PATH"]) or "cmake"
    includes = [path / "include" for path in _header_folders()]
    configured = run(
        [
            cmake, "-S", REPOSITORY, "-B", NATIVE, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            "-DGPUPROF_PYTHON=OFF", "-DGPUPROF_TESTS=ON", "-DGPUPROF_WERROR=OFF",
            f"-DGPUPROF_CUDA_INCLUDES={';'.join(map(str, includes))}",
        ],
        limit_s=limit_s, log=log, environment=environ,
    )  # fmt: skip
    if configured.problem is not None:
        return configured.problem
    built = run(
        [cmake, "--build", NATIVE, "--target", *PROGRAMS], limit_s=limit_s, log=log, environment=environ
    )
    return built.problem


def _header_folders() -> list[Path]:
    """Return the folders of NVIDIA's wheels, whose headers are of the CUPTI that PyTorch loads."""
    found = []
    for entry in sys.path:
        for name in ("nvidia/cu13", "nvidia/cuda_cupti"):
            if Path(entry, name, "include", "cupti_activity.h").is_file():
                found.append(Path(entry, name))
    return found


def main(log: str, limit_s: str) -> int:
    """Build, and print what was done as a line of JSON."""
    BUILD.mkdir(parents=True, exist_ok=True)
    section = build(float(limit_s), Path(log))
    print(json.dumps(section))
    if "problem" in section:
        print(section["problem"], file=sys.stderr)
    return 1 if "problem" in section else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
