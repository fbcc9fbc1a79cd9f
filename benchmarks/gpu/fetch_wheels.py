# SPDX-License-Identifier: Apache-2.0
"""Fetches the wheels that a machine without a network lacks, for its Python and platform.

    python benchmarks/gpu/fetch_wheels.py --python 3.12 [--installed FILE] [PACKAGE]...

FILE is that machine's `python3 -m pip list --format=freeze`, or the journal of an earlier call there: then
only what it lacks is fetched. Without it, what an image of PyTorch with a compiler usually lacks. The wheels
go to benchmarks/gpu/wheels/, which `run.py` installs from.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.gpu._journal import read

WHEELS = Path(__file__).resolve().parent / "wheels"
USUALLY_MISSING = ("duckdb", "msgspec")
# With what each of them needs in turn.
NEEDED = (
    "duckdb",
    "msgspec",
    "scipy",
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
# pip takes a wheel of exactly the platforms that it is given; the newest C library that is common first.
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


def missing(installed: Iterable[str], needed: Iterable[str] = NEEDED) -> list[str]:
    """Return what is needed and not among lines such as `numpy==2.1.0`."""
    there = {_normal(line.partition("==")[0].partition(" @ ")[0]) for line in installed}
    return [name for name in needed if name not in there]


def installed_of(path: Path) -> list[str]:
    """Return the lines of `pip list --format=freeze`, from its output or from a journal. Raises OSError."""
    if path.suffix != ".jsonl":
        return path.read_text(encoding="utf-8").splitlines()
    facts = [entry.facts for entry in read(path) if entry.item == "packages" and entry.facts]
    return str(facts[-1]["output"]).splitlines() if facts else []


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _lacking(packages: Iterable[str], folder: Path) -> list[str]:
    """Return the packages without a wheel in the folder; what has a version is fetched in any case."""
    there = {_normal(wheel.name.partition("-")[0]) for wheel in folder.glob("*.whl")}
    return [name for name in packages if _normal(name) not in there]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what is missing, and list what the folder holds."""
    options = _parse(arguments)
    packages = options.packages or USUALLY_MISSING
    if options.installed is not None:
        try:
            packages = [*options.packages, *missing(installed_of(options.installed))]
        except OSError as error:
            print(f"fetch_wheels.py: {error.strerror}: {options.installed}", file=sys.stderr)
            return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    wanted, code = _lacking(packages, options.folder), 0
    if wanted:
        words = command(wanted, options.python, options.machine, options.folder)
        code = subprocess.run(words, check=False).returncode
    total = 0
    for wheel in sorted(options.folder.glob("*.whl")):
        total += wheel.stat().st_size
        print(f"{wheel.stat().st_size / 1e6:8.1f} MB  {wheel.name}")
    print(f"{total / 1e6:8.1f} MB in {options.folder}")
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser = argparse.ArgumentParser(description="Fetch wheels for a machine without a network.")
    add = parser.add_argument
    add("packages", nargs="*", metavar="PACKAGE", help="As pip takes it, such as duckdb==1.4.0.")
    add("--installed", type=Path, metavar="FILE", help="Fetch what this list of packages lacks.")
    add("--python", default=here, help="Fetch for this version of Python (this one's).")
    add("--machine", default=platform.machine(), help="Fetch for x86_64 or aarch64 (this one's).")
    add("--folder", type=Path, default=WHEELS, help="Write the wheels there.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
