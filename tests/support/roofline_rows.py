# SPDX-License-Identifier: Apache-2.0
"""A machine with round numbers, and rows by hand, for tests of the roofline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuprof.analyze.ceilings.ceiling import Ceiling, Ceilings
from gpuprof.analyze.roofline.counted import CountedRow, Reuse
from gpuprof.analyze.roofline.device_activity import DeviceActivity
from gpuprof.analyze.roofline.measured_spans import (
    BACKWARD,
    LAYER,
    OPERATOR,
    MeasuredSpans,
    SpanColumns,
    Wanted,
    measured_spans,
    parent_indices,
)
from gpuprof.analyze.roofline.utilization import Machine

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


KINDS = {"layer": LAYER, "operator": OPERATOR, "backward": BACKWARD}


class Spans:
    """Spans by hand: each call of a method adds one that begins when the one before has begun."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, str, int, int]] = []  # parent, kind, name, start, duration
        self.activity: list[dict[str, Any]] = []

    def add(self, kind: str, name: str, duration_ns: int = 1000, inside: int = -1) -> int:
        """Add a span; returns its number."""
        self.rows.append((inside, KINDS.get(kind, 0), name, 10 * len(self.rows), duration_ns))
        return len(self.rows) - 1

    def call(self, layers: dict[str, list[tuple[str, int]]], root: str = "Net") -> int:
        """Add a call of a root with operators, (name, duration), by layer; returns the root's number."""
        call = self.add("layer", root)
        for layer, operators in layers.items():
            around = self.add("layer", layer, inside=call)
            for name, duration_ns in operators:
                self.add("operator", name, duration_ns, around)
        return call

    def backward(self, operators: list[tuple[str, int]]) -> None:
        """Add a backward pass with operators."""
        around = self.add("backward", "backward")
        for name, duration_ns in operators:
            self.add("operator", name, duration_ns, around)

    def kernel(self, span: int, duration_ns: int, device: str = "cuda:0", name: str = "kernel") -> None:
        """Add a kernel that a span launched (-1: none)."""
        self.activity.append({"span": span, "duration": duration_ns, "device": device, "name": name})

    def columns(self) -> SpanColumns:
        """Return the spans as they are read from a run."""
        names = sorted({name for _, _, name, _, _ in self.rows})
        number = np.arange(len(self.rows))
        return SpanColumns(
            span_id=number,
            parent=parent_indices(number, np.array([row[0] for row in self.rows], np.int64)),
            kind=np.array([row[1] for row in self.rows], np.int8),
            name=np.array([names.index(row[2]) for row in self.rows], np.int32),
            start_ns=np.array([row[3] for row in self.rows], np.int64),
            duration_ns=np.array([row[4] for row in self.rows], np.int64),
            thread=np.zeros(len(self.rows), np.int64),
            names=names,
        )

    def measured(self, wanted: Wanted) -> MeasuredSpans:
        """Return the spans placed as the counting pass sees them."""
        return measured_spans(self.columns(), wanted, self._activity())

    def _activity(self) -> DeviceActivity:
        names = sorted({each["name"] for each in self.activity})
        devices = sorted({each["device"] for each in self.activity})
        count = len(self.activity)
        return DeviceActivity(
            span_id=np.array([each["span"] for each in self.activity], np.int64),
            name=np.array([names.index(each["name"]) for each in self.activity], np.int64),
            device=np.array([devices.index(each["device"]) for each in self.activity], np.int64),
            duration_ns=np.array([each["duration"] for each in self.activity], np.int64),
            replay=np.full(count, -1),
            gap_ns=np.full(count, np.nan),
            late_ns=np.full(count, np.nan),
            crosses=np.zeros(count, np.bool_),
            names=names,
            devices=devices,
        )
