# SPDX-License-Identifier: Apache-2.0
"""Functions and files by name, as a fresh process finds them. Nothing is pickled."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from typing import Any

from gpuprof.errors import BenchmarkError

WORKER_VARIABLE = "GPUPROF_BENCH_WORKER"  # set in worker processes


def find_named(name: str) -> Any:
    """Return the object that `module:name` or `file.py:name` names. Raises BenchmarkError."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        raise BenchmarkError(
            "invalid_function_name",
            f"{name!r} names nothing",
            hint="write package.module:function or file.py:function",
        )
    try:
        found = module_of_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (ImportError, OSError) as error:
        raise BenchmarkError(
            "cannot_import", f"cannot import {source} for {name!r}: {error}", hint="check the name"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BenchmarkError("no_such_function", f"{source} has no {attribute!r}", hint="check the name")
        found = getattr(found, part)
    return found


def module_of_file(path: Path) -> Any:
    """Import a file, once. What it raises goes through."""
    # Files of one name in several folders are several modules.
    name = f"gpuprof_benchmarked_{path.stem}_{zlib.crc32(os.fsencode(path.resolve())):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("this is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def name_of(function: Any, what: str) -> str:
    """Return the name by which a fresh process finds a function. Raises BenchmarkError for one without."""
    module, attribute = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found: Any = sys.modules.get(module or "")
    for part in (attribute or "").split("."):
        found = getattr(found, part, None)
    if found is not function or module is None or attribute is None:
        raise BenchmarkError(
            "not_importable",
            f"fresh processes find {what} by its name only",
            hint="use a function at the top level of a module, or launches=1",
        )
    if module != "__main__":
        return f"{module}:{attribute}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise BenchmarkError(
            "not_importable",
            f"fresh processes cannot import {what} from this session",
            hint="put it into a file",
        )
    return f"{Path(file).resolve()}:{attribute}"
