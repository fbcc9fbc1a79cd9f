# SPDX-License-Identifier: Apache-2.0
"""One loop of instructions.py, run under Valgrind by any interpreter that has gpuprof.

    python benchmarks/_instructions_child.py LOOP TIMES FOLDER

It ends without closing the run, so that nothing but the loop depends on TIMES.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def main(loop: str, times: int, folder: str) -> None:
    """Run one loop so many times."""
    run = LOOPS[loop]
    if loop.startswith("recorded"):
        from gpuprof import _native

        _native.start_recording(folder)  # the recorder alone: no thread that samples is counted with it
    run(times)
    os._exit(0)


def _empty(times: int) -> None:
    for _ in range(times):
        pass


def _span(times: int) -> None:
    import gpuprof

    span = gpuprof.span("work")
    for _ in range(times):
        with span:
            pass


def _new_span(times: int) -> None:
    import gpuprof

    for _ in range(times):
        with gpuprof.span("work"):
            pass


def _annotate(times: int) -> None:
    import nvtx

    annotation = nvtx.annotate("work")
    for _ in range(times):
        with annotation:
            pass


def _new_annotate(times: int) -> None:
    import nvtx

    for _ in range(times):
        with nvtx.annotate("work"):
            pass


def _lock(times: int) -> None:
    lock = threading.Lock()
    for _ in range(times):
        with lock:
            pass


LOOPS: dict[str, Callable[[int], None]] = {
    "empty": _empty,
    "span while not recording, reused": _span,
    "span while not recording, new": _new_span,
    "recorded span, reused": _span,
    "recorded span, new": _new_span,
    "nvtx.annotate without a tool, reused": _annotate,
    "nvtx.annotate without a tool, new": _new_annotate,
    "threading.Lock": _lock,
}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
