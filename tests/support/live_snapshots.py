# SPDX-License-Identifier: Apache-2.0
"""Snapshots of programs that do not exist, for the views of the live feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof.live.snapshot import (
    LiveDeviceFigures,
    LiveStepFigures,
    MachineFigures,
    MissingReason,
    ProcessFigures,
    RunState,
    Snapshot,
    Unavailable,
)

SECOND = 1_000_000_000
NO_STEPS = Unavailable(MissingReason.NO_STEPS)


def machine(**more: Any) -> MachineFigures:
    """Return a machine of 4 processors that is half busy."""
    values = {
        "processors": 4,
        "cpu_share": 0.5,
        "io_wait_share": 0.01,
        "memory_used_bytes": 4_000_000_000,
        "memory_total_bytes": 16_000_000_000,
        "load_1min": 2.0,
        "received_bytes_per_s": 1e3,
        "sent_bytes_per_s": 2e3,
    }
    return MachineFigures(**{**values, **more})


def process(process_id: int = 7, **more: Any) -> ProcessFigures:
    """Return a process that is alive."""
    values = {
        "process_id": process_id,
        "parent_process_id": 1,
        "name": "python",
        "is_alive": True,
        "threads": 3,
        "rss_bytes": 2_000_000_000,
        "cpu_cores": 1.5,
        "read_bytes_per_s": 0.0,
        "written_bytes_per_s": 0.0,
        "spans": 10,
    }
    return ProcessFigures(**{**values, **more})


def device(number: int = 0, **more: Any) -> LiveDeviceFigures:
    """Return a device that is busy."""
    values = {
        "device": number,
        "name": "Device of a test",
        "uuid": f"GPU-{number}",
        "is_lost": False,
        "readings": 20,
        "utilization_share": 0.75,
        "memory_utilization_share": 0.5,
        "memory_used_bytes": 40_000_000_000,
        "memory_total_bytes": 80_000_000_000,
        "power_w": 350.5,
        "power_limit_w": 700.0,
        "energy_j": 1234.5,
        "sm_clock_hz": 1.98e9,
        "memory_clock_hz": 2.6e9,
        "temperature_c": 61.0,
        "throttle_reasons": (),
    }
    return LiveDeviceFigures(**{**values, **more})


def snapshot(
    steps_ns: Sequence[int] = (), *, at_s: int = 0, interval_s: float = 1.0, process_id: int = 7, **more: Any
) -> Snapshot:
    """Return a snapshot of one process with the durations of steps that ended."""
    steps = (LiveStepFigures(process_id, "optimizer", tuple(steps_ns)),) if steps_ns else NO_STEPS
    values = {
        "unix_ns": (1_000_000 + at_s) * SECOND,
        "interval_ns": int(interval_s * SECOND),
        "machine": machine(),
        "processes": (process(process_id),),
        "run": "live.gpuprof",
        "state": RunState.RECORDING,
        "steps": steps,
        "layers": (),
        "calls": (),
        "operators": None,
    }
    return Snapshot(**{**values, **more})
