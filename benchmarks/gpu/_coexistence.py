# SPDX-License-Identifier: Apache-2.0
"""gpuprof and torch.profiler in one process, and copies with their launches.

    python -m benchmarks.gpu._coexistence CASE

Prints one line of JSON. Each case is a process of its own, since CUPTI remembers.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# isort: off
import gpuprof  # before torch, so that PyTorch finds its operator collector
from gpuprof import _native
from gpuprof.record.kernels import cupti_folders

import torch
from torch.profiler import ProfilerActivity, profile

# isort: on

KERNELS = 100
Figures = dict[str, Any]


def main(case: str) -> None:
    """Run a case and print its figures."""
    torch.zeros(1, device="cuda")
    with tempfile.TemporaryDirectory(prefix="gpuprof-coexistence-") as folder:
        print(json.dumps(CASES[case](Path(folder))))


def _work() -> None:
    numbers = torch.zeros(1024, device="cuda")
    torch.cuda.synchronize()
    for _ in range(KERNELS):
        numbers.add_(1)
    torch.cuda.synchronize()


def _kernels_of(profiler: Any) -> int:
    cuda = torch.autograd.DeviceType.CUDA
    return sum(1 for event in profiler.events() if event.device_type == cuda and "add" in event.name)


def _profiler() -> Any:
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


def _recorded(recording: Any) -> Figures:
    run = recording.run
    found = run.sql("SELECT count(*) FROM kernels WHERE name LIKE '%add%'").fetchall()
    return {
        "gpuprof_source": run.meta["sources"]["kernels"],
        "gpuprof_notes": run.meta["notes"],
        "gpuprof_complete": run.meta["complete"],
        "gpuprof_kernels": int(found[0][0]),
    }


def _profiler_inside(folder: Path) -> Figures:
    with gpuprof.profile(out=folder / "run") as recording:
        _work()
        with _profiler() as theirs:
            _work()
        _work()
    recorded = _recorded(recording)
    return {
        **recorded,
        "gpuprof_expected": 2 * KERNELS,
        "torch_kernels": _kernels_of(theirs),
        "torch_expected": KERNELS,
    }


def _gpuprof_inside(folder: Path) -> Figures:
    with _profiler() as theirs:
        _work()
        with gpuprof.profile(out=folder / "run") as recording:
            _work()
        _work()
    recorded = _recorded(recording)
    return {
        **recorded,
        "gpuprof_expected": 0,
        "torch_kernels": _kernels_of(theirs),
        "torch_expected": 3 * KERNELS,
    }


def _one_after_the_other(folder: Path) -> Figures:
    with _profiler() as before:
        _work()
    with gpuprof.profile(out=folder / "run") as recording:
        _work()
    with _profiler() as after:
        _work()
    with gpuprof.profile(out=folder / "again") as again:
        _work()
    return {
        **_recorded(recording),
        "gpuprof_expected": KERNELS,
        "gpuprof_again": _recorded(again)["gpuprof_kernels"],
        "torch_kernels": _kernels_of(before),
        "torch_kernels_after": _kernels_of(after),
        "torch_expected": KERNELS,
    }


def _on_another_thread(folder: Path) -> Figures:
    found: list[Any] = []

    def theirs() -> None:
        with _profiler() as profiler:
            _work()
        found.append(profiler)

    with gpuprof.profile(out=folder / "run") as recording:
        _work()
        thread = threading.Thread(target=theirs)
        thread.start()
        thread.join()
        _work()
    recorded = _recorded(recording)
    seen = [_kernels_of(profiler) for profiler in found]
    return {**recorded, "gpuprof_expected": 2 * KERNELS, "torch_kernels": seen, "torch_expected": KERNELS}


def _native_start_during_profiler(folder: Path) -> Figures:
    """Start the native recording, which does not look for a profiler, while CUPTI has one."""
    folders = [os.fsencode(path) for path in cupti_folders()]
    with _profiler() as theirs:
        _work()
        _native.start_recording(os.fsencode(folder))
        started = _native.gpu_start(folders)
        _work()
        stopped = _native.gpu_stop()
        _native.stop_recording()
        _work()
    return {
        "started": started,
        "totals": stopped,
        "torch_kernels": _kernels_of(theirs),
        "torch_expected": 3 * KERNELS,
    }


def _profiler_during_native_recording(folder: Path) -> Figures:
    folders = [os.fsencode(path) for path in cupti_folders()]
    _native.start_recording(os.fsencode(folder))
    started = _native.gpu_start(folders)
    _work()
    with _profiler() as theirs:
        _work()
    _work()
    stopped = _native.gpu_stop()
    _native.stop_recording()
    return {
        "started": started,
        "totals": stopped,
        "torch_kernels": _kernels_of(theirs),
        "torch_expected": KERNELS,
    }


def _copies(folder: Path) -> Figures:
    """Copy and fill through the runtime, each kind in a span of its own name."""
    pageable = torch.ones(4096)
    pinned = pageable.pin_memory()
    device = torch.empty(4096, device="cuda")
    actions: dict[str, Callable[[], object]] = {
        "pageable to device": lambda: device.copy_(pageable),
        "pinned to device": lambda: device.copy_(pinned, non_blocking=True),
        "device to pageable": lambda: pageable.copy_(device),
        "device to pinned": lambda: pinned.copy_(device, non_blocking=True),
        "device to device": lambda: device.clone(),
        "fill": lambda: device.view(torch.uint8).zero_(),
    }
    with gpuprof.profile(out=folder / "run", layers=False, operators=False) as recording:
        for name, action in actions.items():
            with gpuprof.span(name):
                action()
        torch.cuda.synchronize()
    rows = recording.run.sql(
        "SELECT t.kind, t.src, t.dst, t.bytes, s.name, t.launch_ns IS NOT NULL FROM transfers t "
        "LEFT JOIN spans s USING (span_id) ORDER BY t.start_ns"
    ).fetchall()
    return {
        "transfers": [list(row) for row in rows],
        "with_launch": sum(bool(row[5]) for row in rows),
        "in_their_span": sum(row[4] in actions for row in rows),
        "count": len(rows),
        "spans": len(actions),
    }


CASES: dict[str, Callable[[Path], Figures]] = {
    "profiler_inside": _profiler_inside,
    "gpuprof_inside": _gpuprof_inside,
    "one_after_the_other": _one_after_the_other,
    "on_another_thread": _on_another_thread,
    "native_start_during_profiler": _native_start_during_profiler,
    "profiler_during_native_recording": _profiler_during_native_recording,
    "copies": _copies,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
