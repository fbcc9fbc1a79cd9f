# SPDX-License-Identifier: Apache-2.0
"""How long a recording takes to start and to stop while threads of the program compute in Python.

    python benchmarks/busy_threads.py [--threads 0,1,3] [--repeats 5] [--json FILE|-]

Such a thread releases the interpreter lock only on request, after `sys.getswitchinterval()`, so code that
releases the lock may wait long to get it back. Both record 100 operators; gpuprof writes its run,
torch.profiler stops and exports its trace. The first of the repeats, which imports, is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

OPERATORS = 100


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Measure recording next to threads that compute.")
    parser.add_argument("--threads", default="0,1,3", help="how many, with commas (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats that count (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler's lines of each start and stop
    rows = [measure(int(count), options.repeats) for count in options.threads.split(",")]
    result = {
        "benchmark": "busy_threads",
        "operators": OPERATORS,
        "machine": describe_machine(),
        "gpuprof": describe_code(),
        "rows": rows,
    }
    columns = [Column("busy threads", 12, lambda row: str(row["threads"]))]
    columns += [_column(name, what) for name in RECORDERS for what in ("begin", "end")]
    show(result, plain_table(columns, rows), options.json, indent=1)
    return 0


def _column(name: str, what: str) -> Column:
    return Column(f"{name}: {what}", 22, lambda row: f"{row[f'{name}_{what}_s']:.3f} s")


def measure(threads: int, repeats: int) -> dict[str, Any]:
    """Return each recorder's median start and stop times in seconds, next to this number of threads."""
    row: dict[str, Any] = {"threads": threads}
    with tempfile.TemporaryDirectory() as folder, busy(threads):
        for name, recorder in RECORDERS.items():
            times = [once(recorder, Path(folder) / f"{name}-{turn}") for turn in range(repeats + 1)][1:]
            row[f"{name}_begin_s"] = statistics.median(begin_s for begin_s, _ in times)
            row[f"{name}_end_s"] = statistics.median(end_s for _, end_s in times)
    return row


def once(recorder: Callable[[Path], AbstractContextManager[Any]], path: Path) -> tuple[float, float]:
    """Record once; returns how long it took to enter the block, and to leave it, in seconds."""
    import torch

    tensor = torch.zeros(8)
    start = time.perf_counter()
    with recorder(path):
        inside = time.perf_counter()
        for _ in range(OPERATORS):
            tensor.neg()
        last = time.perf_counter()
    return inside - start, time.perf_counter() - last


@contextmanager
def busy(threads: int) -> Iterator[None]:
    """Have so many threads count while the block runs."""
    ended = threading.Event()

    def count() -> None:
        number = 0
        while not ended.is_set():
            number += 1

    started = [threading.Thread(target=count) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in started:
            thread.join()


def _gpuprof(path: Path) -> AbstractContextManager[Any]:
    import gpuprof

    return gpuprof.profile(out=path.with_suffix(".gpuprof"))


@contextmanager
def _torch_profiler(path: Path) -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield
    profiler.export_chrome_trace(str(path.with_suffix(".json")))


RECORDERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "gpuprof": _gpuprof,
    "torch.profiler": _torch_profiler,
}

if __name__ == "__main__":
    sys.exit(main())
