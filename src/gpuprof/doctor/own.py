# SPDX-License-Identifier: Apache-2.0
"""gpuprof itself, its requirements, and the unrelated distribution with its name."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from gpuprof.doctor import machine_facts
from gpuprof.doctor.check import Check, one_line, version_numbers

DISTRIBUTION = "gpuprof-native"
OLDEST_DUCKDB = (1, 1)
# From the sources, because a package index may have another project under this name.
REBUILD = "pip install --force-reinstall --no-deps . in gpuprof's source folder, with a C++20 compiler"


def gpuprof() -> Iterator[Check]:
    """Report the version of gpuprof, and how its native core was built."""
    yield Check("gpuprof", "ok", f"{_own_version()} in {Path(__file__).parents[1]}")
    try:
        facts = machine_facts.native().build_info()
    except ImportError as error:
        yield Check("native core", "missing", one_line(error), REBUILD, required=True)
        return
    built = ", ".join(f"{facts[key]}" for key in ("version", "compiler", "build_type") if facts.get(key))
    yield Check("native core", "ok", built, required=True)
    if facts.get("cuda"):
        yield Check("CUDA part", "ok", "built in")
    else:
        yield Check(
            "CUDA part",
            "info",
            "built without CUDA; GPU recording works without it and loads CUPTI at run time",
        )


def _own_version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a distribution,"


def namesake() -> Iterator[Check]:
    """Check for the unrelated project gpuprof on PyPI, which installs a package of the same name."""
    try:
        version = importlib.metadata.version("gpuprof")
    except importlib.metadata.PackageNotFoundError:
        return
    detail = (
        f"the distribution gpuprof {version} is installed: an unrelated project; this one is {DISTRIBUTION}"
    )
    hint = f"pip uninstall gpuprof, then {REBUILD}; both install the folder gpuprof/"
    yield Check("namesake", "problem", detail, hint, required=True)


def duckdb() -> Iterator[Check]:
    """Check whether runs can be read."""
    if importlib.util.find_spec("duckdb") is None:
        yield Check("DuckDB", "missing", "runs cannot be read", 'pip install "duckdb>=1.1"', required=True)
        return
    version = importlib.import_module("duckdb").__version__
    if version_numbers(version) < OLDEST_DUCKDB:
        yield Check(
            "DuckDB", "problem", f"{version} is too old", 'pip install -U "duckdb>=1.1"', required=True
        )
    else:
        yield Check("DuckDB", "ok", version, required=True)
