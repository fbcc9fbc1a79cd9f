# SPDX-License-Identifier: Apache-2.0
"""A run of a few calls beside a benchmark, so that a slow figure opens into a flame graph."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from gpuprof import _native
from gpuprof.bench.systems.common import FrameworkSystem
from gpuprof.record.recording import Recording
from gpuprof.record.recording_folder import create_folder
from gpuprof.run.writer import close_run

# A difference is judged of eight repetitions and more; a slow model has fewer.
FEWEST_CALLS, MOST_CALLS = 5, 40
LONGEST_S = 3.0
CALL = "call"  # the span around each


def record_run(system: FrameworkSystem, path: Path, calls: int | None = None, *, work: bool = False) -> None:
    """Record calls of the prepared batch as the run `path`, as many as LONGEST_S holds where not told.

    `work` counts what the first call computes, where it is a module's. Raises RecordingError and RunError.
    """
    create_folder(path)
    modules = _modules(system)
    recording = Recording(path, modules=modules, work=work and bool(modules))
    try:
        recording.start()
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    try:
        begin_s, done = time.perf_counter(), 0
        while _goes_on(calls, done, time.perf_counter() - begin_s):
            with _native.span(CALL):
                system.run()
                system.synchronize()
            done += 1
    finally:
        recording.stop()
    close_run(path)


def _goes_on(calls: int | None, done: int, elapsed_s: float) -> bool:
    if calls is not None:
        return done < calls
    return done < FEWEST_CALLS or (done < MOST_CALLS and elapsed_s < LONGEST_S)


def _modules(system: FrameworkSystem) -> tuple[object, ...]:
    import sys

    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(system.model, torch.nn.Module)
    return (system.model,) if is_module else ()
