# SPDX-License-Identifier: Apache-2.0
"""A run of a few calls beside a benchmark, so that a slow figure opens into a flame graph."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuprof import _native
from gpuprof.bench.systems.common import FrameworkSystem
from gpuprof.record.recording import Recording, create_folder
from gpuprof.run.writer import close_run

CALLS = 5


def record_run(system: FrameworkSystem, path: Path, calls: int = CALLS) -> None:
    """Record `calls` calls of the prepared batch as the run `path`. Raises RecordingError and RunError."""
    create_folder(path)
    recording = Recording(path, modules=_modules(system))
    try:
        recording.start()
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    try:
        for _ in range(calls):
            with _native.span("call"):
                system.run()
                system.synchronize()
    finally:
        recording.stop()
    close_run(path)


def _modules(system: FrameworkSystem) -> tuple[object, ...]:
    import sys

    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(system.model, torch.nn.Module)
    return (system.model,) if is_module else ()
