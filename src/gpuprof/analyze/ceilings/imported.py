# SPDX-License-Identifier: Apache-2.0
"""Theoretical ceilings of the GPUs of an imported capture, which cannot be measured here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuprof.analyze.ceilings.ceiling import (
    GPU,
    THEORETICAL,
    Ceiling,
    CeilingNote,
    CeilingNoteCode,
    best_of,
)
from gpuprof.analyze.ceilings.gpu import theoretical_ceilings
from gpuprof.errors import RunError
from gpuprof.run.work_table import write_ceilings


def add_imported_ceilings(path: Path, devices: Iterable[Mapping[str, Any]]) -> None:
    """Add to an imported run what its `devices` can do by their clocks and kinds. Raises RunError.

    What a trace does not contain has no ceiling: Kineto, for example, records no clocks.
    """
    rows: list[Ceiling] = []
    gpus = []
    for device in devices:
        found = list(_ceilings(device))
        rows += found
        if found:
            name, cache = device.get("name"), device.get("l2_cache_bytes")
            gpus.append({"device": found[0].device, "gpu": name, "l2_cache_bytes": cache})
    if not rows:
        return
    note = CeilingNote(CeilingNoteCode.IMPORTED_GPUS)
    facts = {"measured_at": None, "drift": [], "notes": [asdict(note)], "gpus": gpus}
    try:
        write_ceilings(path, map(asdict, rows), facts)
    except OSError as error:
        raise RunError(
            "cannot_write", f"cannot write the ceilings of {path}: {error.strerror}", hint="free disk space"
        ) from None


def _ceilings(device: Mapping[str, Any]) -> Iterable[Ceiling]:
    name = f"{GPU}:{device['index']}"
    by_type: dict[str | None, list[Ceiling]] = defaultdict(list)
    for row in (*_compute(name, device), *_memory(name, device)):
        by_type[row.dtype].append(row)
    for dtype, rows in by_type.items():
        yield from rows
        yield from best_of("memory.dram" if dtype is None else "compute", rows)


def _compute(name: str, device: Mapping[str, Any]) -> Iterable[Ceiling]:
    capability = str(device.get("compute_capability") or "").replace(".", "")
    facts = {
        "clock_khz": (device.get("max_sm_clock_hz") or 0) / 1000,
        "multiprocessors": device.get("multiprocessors") or 0,
        "capability": int(capability) if capability.isdigit() else 0,
        "memory_clock_khz": 0,
        "memory_bus_bits": 0,
    }
    return theoretical_ceilings(name, facts)


def _memory(name: str, device: Mapping[str, Any]) -> Iterable[Ceiling]:
    bandwidth = device.get("memory_bandwidth_bytes_per_s")
    if bandwidth:
        method = f"{THEORETICAL}: the memory bandwidth that the capture names"
        resource = f"memory.dram.{THEORETICAL}"
        yield Ceiling(name, resource, None, float(bandwidth), "bytes_per_s", None, method)
