# SPDX-License-Identifier: Apache-2.0
"""What a trace holds by its own file, without any of the importer's code, against what its run holds.

A program too, for real captures that are too large for the tests:

    python tests/support/import_oracle.py CAPTURE...

imports each into a temporary folder, prints the figures, and ends with 1 where any differs. An export of
Nsight Systems is asked with plain SQL; Chrome's JSON is read with Python's `json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import gpuprof

# Each figure is a number of events, and sums of their nanoseconds and bytes where they have any.
Figures = dict[str, tuple[int, ...]]

_NSYS = {
    "kernels": "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "graphs": "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE WHERE start > 0",
    "copies": "SELECT count(*), sum(end - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "fills": "SELECT count(*), sum(end - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET",
    "synchronizations": "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "calls": "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start >= 0",
    # Of PyTorch's operators, `aten::mul`, some are left out.
    "ranges": "SELECT count(*), sum(end - start) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
    "WHERE eventType IN (59, 60) AND end IS NOT NULL AND coalesce(text, value) NOT GLOB '*::*'",
    "operators": "SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
    "WHERE eventType IN (59, 60) AND end IS NOT NULL AND coalesce(text, value) GLOB '*::*'",
    "marks": "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 34",
}
_NSYS_KERNELS_BY_PROCESS = (
    "SELECT globalPid >> 24 & 16777215, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1"
)
_GPU_TABLES = {
    "kernels": "SELECT count(*), sum(duration_ns) FROM kernels WHERE NOT starts_with(name, 'CUDA graph')",
    "graphs": "SELECT count(*), sum(duration_ns) FROM kernels WHERE starts_with(name, 'CUDA graph')",
    "copies": "SELECT count(*), sum(duration_ns), sum(bytes) FROM transfers WHERE kind = 'copy'",
    "fills": "SELECT count(*), sum(duration_ns), sum(bytes) FROM transfers WHERE kind = 'fill'",
    "synchronizations": "SELECT count(*), sum(duration_ns) FROM synchronizations",
}
_CALL_NAME = r"^(cu[A-Z]|cuda[A-Z]|hip[A-Z]|INVALID$|\(unknown call)"
_CALL = f"(kind = 'operator' AND regexp_matches(name, '{_CALL_NAME}'))"
_SPANS = {
    "calls": _CALL,
    "ranges": f"NOT {_CALL} AND NOT contains(name, '::') AND duration_ns > 0",
    "operators": f"NOT {_CALL} AND contains(name, '::')",
    "marks": f"NOT {_CALL} AND duration_ns = 0",
}
_KINETO = {
    "kernels": ("kernel", "Kernel"),
    "copies": ("gpu_memcpy", "Memcpy"),
    "fills": ("gpu_memset", "Memset"),
    "synchronizations": ("cuda_sync",),
    "calls": ("cuda_runtime", "cuda_driver", "Runtime"),
}


def nsys_figures(export: Path) -> Figures:
    """Return what an export of Nsight Systems holds, by plain SQL; what has no table is left out."""
    connection = sqlite3.connect(f"{export.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    found: Figures = {}
    for name, query in _NSYS.items():
        try:
            found[name] = _numbers(connection.execute(query).fetchone())
        except sqlite3.OperationalError:  # the table or a column is not there
            continue
    try:
        for process, *figures in connection.execute(_NSYS_KERNELS_BY_PROCESS):
            found[f"kernels of {process}"] = _numbers(figures)
    except sqlite3.OperationalError:
        pass
    connection.close()
    return found


def kineto_figures(trace: Path) -> Figures:
    """Return what a trace of torch.profiler holds; its microseconds are decimals."""
    content = trace.read_bytes()
    text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    document = json.loads(text, parse_float=Decimal, parse_int=Decimal, strict=False)
    events = document["traceEvents"] if isinstance(document, dict) else document
    whole = [event for event in events if event.get("ph") == "X"]
    found: Figures = {}
    for name, categories in _KINETO.items():
        of_kind = [event for event in whole if event.get("cat") in categories]
        found[name] = (len(of_kind), sum(_nanoseconds(event["dur"]) for event in of_kind))
        if name in ("copies", "fills"):
            found[name] += (sum(int(event["args"].get("bytes", 0)) for event in of_kind),)
    return found


def run_figures(run: gpuprof.Run, of_processes: Iterable[str] = ()) -> Figures:
    """Return the same figures of an imported run."""
    found = {name: _numbers(run.sql(query).fetchall()[0]) for name, query in _GPU_TABLES.items()}
    for name, condition in _SPANS.items():
        query = f"SELECT count(*), sum(duration_ns) FROM spans WHERE {condition}"
        found[name] = _numbers(run.sql(query).fetchall()[0])
    forwarded = [each["events"] for each in run.meta["not_imported"] if each["kind"] == "forwarded operator"]
    found["operators"] = (found["operators"][0] + sum(forwarded),)
    found["marks"] = found["marks"][:1]
    for name in of_processes:
        query = "SELECT count(*), sum(duration_ns) FROM kernels WHERE NOT starts_with(name, 'CUDA graph')"
        found[name] = _numbers(
            run.sql(f"{query} AND process_id = {int(name.rsplit(' ', 1)[1])}").fetchall()[0]
        )
    return found


def differences(expected: Figures, found: Figures) -> list[str]:
    """Return the names of the figures that differ."""
    return [name for name, figures in expected.items() if found.get(name, (0,) * len(figures)) != figures]


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value or 0) for value in values)


def _nanoseconds(microseconds: Any) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value())


def _is_export(capture: Path) -> bool:
    with capture.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def _check(capture: Path, folder: Path) -> bool:
    begin_s = time.perf_counter()
    run = gpuprof.import_trace(capture, folder / "run.gpuprof")
    took_s = time.perf_counter() - begin_s
    expected = nsys_figures(capture) if _is_export(capture) else kineto_figures(capture)
    found = run_figures(run, [name for name in expected if name.startswith("kernels of ")])
    wrong = differences(expected, found)
    print(f"{capture.name}: {run.meta['versions']}, imported in {took_s:.1f} s")
    for name, figures in expected.items():
        mark = f"DIFFERS: {found.get(name)}" if name in wrong else "equal"
        print(f"  {name:<20} {' '.join(f'{figure:>18,}' for figure in figures):<58} {mark}")
    left_out = [f"{each['events']:,} of {each['kind']} {each['name']}" for each in run.meta["not_imported"]]
    print(f"  not imported: {', '.join(left_out) or 'nothing'}")
    return not wrong


def main(arguments: list[str] | None = None) -> int:
    """Check each capture; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare imported captures with their own files.")
    parser.add_argument("captures", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    right = True
    for capture in options.captures:
        with tempfile.TemporaryDirectory(prefix="gpuprof-oracle-") as folder:
            try:
                right &= _check(capture, Path(folder))
            except gpuprof.GpuprofError as error:
                print(f"{capture.name}: refused: {error}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
