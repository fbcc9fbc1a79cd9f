# SPDX-License-Identifier: Apache-2.0
"""A machine with round numbers, and rows by hand, for tests of the roofline."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprof.analyze.ceilings.ceiling import Ceiling, Ceilings
from gpuprof.analyze.roofline.counted import CountedRow, Reuse
from gpuprof.analyze.roofline.device_work import Piece
from gpuprof.analyze.roofline.machine import Machine
from gpuprof.analyze.roofline.timed import Span

# 100 GFLOP/s; 10 GB/s from memory, 100 GB/s from a cache of 1 MB; 1 us a dispatch, 1 us a page fault.
CEILINGS = (
    Ceiling("cpu", "compute", "fp32", 100e9, "flop_per_s", 0.0, "best: fma"),
    Ceiling("cpu", "compute.fma", "fp32", 100e9, "flop_per_s", 0.0, "by hand"),
    Ceiling("cpu", "compute.matmul", "fp32", 80e9, "flop_per_s", 0.0, "by hand"),
    Ceiling("cpu", "compute", "bf16", 400e9, "flop_per_s", 0.0, "best: dot"),
    Ceiling("cpu", "memory.l2", None, 100e9, "bytes_per_s", 0.0, "best: read"),
    Ceiling("cpu", "memory.dram", None, 10e9, "bytes_per_s", 0.0, "best: read"),
    Ceiling("cpu", "memory.dram.read", None, 10e9, "bytes_per_s", 0.0, "by hand"),
    Ceiling("cpu", "launch", None, 1000.0, "ns", 0.0, "by hand"),
    Ceiling("cpu", "page_fault", None, 1000.0, "ns", 0.0, "by hand"),
)
CACHES = [{"level": 2, "bytes": 1_000_000, "one_core_bytes": 500_000}]


def machine(*more: Ceiling, **options: Any) -> Machine:
    return Machine((*CEILINGS, *more), **({"caches": CACHES} | options))


def ceilings() -> Ceilings:
    rows = tuple(row for row in CEILINGS if row.resource != "page_fault")
    return Ceilings(rows, "2030-01-02T03:04:05+00:00", {"processor": "by hand"})


def know_ceilings(monkeypatch: pytest.MonkeyPatch, *page_faults: dict[str, Any]) -> None:
    """Have runs with counted work take these: measuring a machine takes seconds, and gigabytes."""
    monkeypatch.setattr("gpuprof.analyze.ceilings.of_run.load_ceilings", lambda: (ceilings(), False))
    monkeypatch.setattr("gpuprof.analyze.ceilings.of_run.measure_ceilings", lambda quick: ceilings())
    monkeypatch.setattr("gpuprof.record.work.first_pass.page_fault_costs", lambda: list(page_faults))


def counted(operator: str = "aten::add", **values: Any) -> CountedRow:
    usual: dict[str, Any] = {
        "root": "Net",
        "layer": "Net",
        "ordinal": 0,
        "operator": operator,
        "phase": "forward",
        "flops": 0,
        "bytes": 0,
        "exactness": "exact",
        "dtype": "float32",
        "input_shapes": "",
        "page_faults": 0,
        "reuse": (),
    }
    return CountedRow(**{**usual, **values})


def far(size: int, *, written: bool = False) -> Reuse:
    """Bytes that no cache holds."""
    return Reuse(None, size, written)


def near(size: int, distance: int | None = None, *, written: bool = False) -> Reuse:
    """Bytes that a cache of that size holds."""
    return Reuse(size if distance is None else distance, size, written)


def span(name: str, duration_ns: int = 1000, **values: Any) -> Span:
    return Span("operator", name, 0, duration_ns, **values)


def piece(duration_ns: int, name: str = "kernel", device: str = "cuda:0", **values: Any) -> Piece:
    """Return a kernel of nobody's GPU."""
    return Piece(name, device, 0, duration_ns, **values)
