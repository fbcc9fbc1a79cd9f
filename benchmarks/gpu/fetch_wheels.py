# SPDX-License-Identifier: Apache-2.0
"""Fetches the wheels that a machine without a network lacks, for its Python and platform.

    python benchmarks/gpu/fetch_wheels.py --python 3.12 [--all] [PACKAGE]...

By default, what an image of PyTorch with a compiler does not carry; with --all, everything that building,
recording and testing needs. They go to benchmarks/gpu/wheels/, which `run.py` installs from.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WHEELS = Path(__file__).resolve().parent / "wheels"
USUALLY_MISSING = ("duckdb",)
ALL = (
    *USUALLY_MISSING,
    "numpy",
    "click",
    "rich",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "scikit-build-core",
    "packaging",
    "pathspec",
    "pybind11",
    "cmake",
    "ninja",
    "pytest",
    "iniconfig",
    "pluggy",
    "nvidia-ml-py",
)
# pip takes a wheel of exactly the platforms that it is told; the newest C library that is common first.
_GLIBC_MINORS = (28, 27, 24, 17)


def platforms(machine: str) -> list[str]:
    """Return the platforms of Linux wheels for a machine, `x86_64` or `aarch64`."""
    return [*(f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS), f"manylinux2014_{machine}"]


def command(packages: Sequence[str], python: str, machine: str, folder: Path) -> list[str]:
    """Return pip's command line."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    words += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    for name in platforms(machine):
        words += ["--platform", name]
    return [*words, *packages]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what is missing, and tell what lies there."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser = argparse.ArgumentParser(description="Fetches wheels for a machine without a network.")
    parser.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help="as pip takes it, such as duckdb==1.4.0"
    )
    parser.add_argument("--python", default=here, help="the other machine's version (this one's)")
    parser.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64 (this one's)")
    parser.add_argument(
        "--all", action="store_true", help="everything, for a machine with torch and a compiler"
    )
    parser.add_argument("--folder", type=Path, default=WHEELS)
    options = parser.parse_args(arguments)
    packages = options.packages or list(ALL if options.all else USUALLY_MISSING)
    options.folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command(packages, options.python, options.machine, options.folder), check=False)
    total = 0
    for wheel in sorted(options.folder.glob("*.whl")):
        total += wheel.stat().st_size
        print(f"{wheel.stat().st_size / 1e6:8.1f} MB  {wheel.name}")
    print(f"{total / 1e6:8.1f} MB in {options.folder}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
