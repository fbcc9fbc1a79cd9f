# SPDX-License-Identifier: Apache-2.0
"""Runs a script or module under line_profiler: `line_program.py RESULT script|module TARGET ARGS...`.

Every function that the program's own file defines is timed line by line. The result is JSON, written when the
program ends in order.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

LINES_RESULT = "lines.json"
NO_LINE_PROFILER = "line_profiler is not installed"
INSTALL_LINE_PROFILER = "pip install line_profiler"


def has_line_profiler() -> bool:
    """Whether line_profiler can be found; it is not imported."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec("line_profiler") is not None
    return False


def rows_of(stats: Any) -> list[dict[str, Any]]:
    """Return a row for each line that was run: `timings` in units of `unit` seconds, by function."""
    return [
        {
            "file": file,
            "function": function,
            "line": line,
            "hits": hits,
            "total_ns": round(time * stats.unit * 1e9),
            "source": linecache.getline(file, line).strip(),
        }
        for (file, _first, function), lines in stats.timings.items()
        for line, hits, time in lines
    ]


def main(words: list[str]) -> None:
    """Run the program; what it raises, SystemExit too, goes through after the result is written."""
    from line_profiler import LineProfiler
    from line_profiler.autoprofile import autoprofile

    result, kind, target, *arguments = words
    path = _file_of_module(target) if kind == "module" else target
    sys.argv = [path if kind == "module" else target, *arguments]
    sys.path[0] = os.getcwd() if kind == "module" else str(Path(target).resolve().parent)  # noqa: PTH109
    profiler, owner = LineProfiler(), os.getpid()
    builtins.profile = profiler  # type: ignore[attr-defined]  # for functions that are decorated with it
    names = {"__file__": path, "__name__": "__main__", "prof": profiler}
    try:
        autoprofile.run(path, names, prof_mod=[path], as_module=kind == "module")
    finally:
        if os.getpid() == owner:
            Path(result).write_text(json.dumps(rows_of(profiler.get_stats())), encoding="utf-8")


def _file_of_module(target: str) -> str:
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
    finally:
        del sys.path[0]
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {target}", name=target)
    return spec.origin


if __name__ == "__main__":
    main(sys.argv[1:])
