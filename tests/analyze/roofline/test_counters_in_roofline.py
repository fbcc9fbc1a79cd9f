# SPDX-License-Identifier: Apache-2.0
"""What the roofline makes of hardware counters. The rows are made up: nothing here ran on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from roofline_rows import counted, far, machine

from gpuprof.analyze.roofline.counted import HardwareCounters, Measured, with_measured
from gpuprof.analyze.roofline.evidence import CallFigures, evidence_of
from gpuprof.analyze.roofline.labels import label
from gpuprof.analyze.roofline.text import evidence_text
from gpuprof.analyze.roofline.utilization import utilization_of

PLACE = ("Net", "Net", "forward", 0)


def counters(*values: tuple[str | None, int | None, str, float | None]) -> HardwareCounters:
    return HardwareCounters((*PLACE, *value) for value in values)


def test_an_operators_kernels_add_up() -> None:
    found = counters(
        ("a", 0, "dram_bytes", 10.0),
        ("b", 1, "dram_bytes", 5.0),
        ("a", 0, "tensor_operations.bf16", 4.0),
        ("b", 1, "tensor_operations.bf16", None),
        ("a", 0, "tensor_operations.tf32", 7.0),
        ("b", 1, "tensor_operations.tf32", 0.0),
    )
    kernels = found.operator(counted(dtype="bfloat16")).kernels
    assert kernels == (("a", Measured(10.0, 4.0)), ("b", Measured(5.0, None)))
    assert both(found, dtype="bfloat16") == (15.0, None)  # a part that is not known, and so the sum
    assert both(found, dtype="float32") == (15.0, 7.0)
    assert both(found, dtype="int64") == (15.0, None)
    assert found.operator(counted(ordinal=1)) == Measured()
    assert both(counters(("a", 0, "dram_bytes", 10.0), (None, None, "dram_bytes", None))) == (None, None)


def test_a_kernel_that_an_operator_launches_twice_has_the_mean() -> None:
    values = (("a", 0, "dram_bytes", 10.0), ("b", 1, "dram_bytes", 5.0), ("a", 2, "dram_bytes", 20.0))
    measured = counters(*values).operator(counted())
    assert measured.kernel("a") == Measured(15.0)
    assert measured.kernel("b") == Measured(5.0)
    assert measured.kernel("c") == Measured()


def both(found: HardwareCounters, **values: Any) -> tuple[float | None, float | None]:
    measured = found.operator(counted(**values))
    return measured.dram_bytes, measured.tensor_operations


def test_a_run_without_counters_is_unchanged() -> None:
    assert with_measured([counted()], HardwareCounters(())) == [counted()]
    (row,) = with_measured([counted()], counters(("a", 0, "dram_bytes", 10.0)))
    assert row.measured is not None
    assert row.measured.dram_bytes == 10.0


def test_measured_bytes_take_the_place_of_ideal_ones() -> None:
    row = counted(bytes=8_000_000, reuse=(far(8_000_000, written=True),))
    use = utilization_of(with_dram(row, 4_000_000.0), machine(), 1e6)
    assert use.traffic is not None
    assert (use.traffic.level.name, use.traffic.bytes) == ("dram", 4_000_000)
    assert use.fractions(1e6)["memory"] == pytest.approx(0.4)
    assert evidence_line(use) == "4 of 10 GB/s dram, 4.00 MB measured"
    # More than 105% of the time is still what was measured.
    assert utilization_of(with_dram(row, 40_000_000.0), machine(), 1e6).fractions(1e6)["memory"] == 1.0
    without = utilization_of(with_dram(row, None), machine(), 1e6)
    assert evidence_line(without).split(";")[0] == "8 of 10 GB/s dram, 8.00 MB ideal"


def test_measured_bytes_replace_unknown_work() -> None:
    row = with_dram(counted(bytes=None, flops=None, exactness="unknown"), 9_000_000.0)
    assert label(utilization_of(row, machine(), 1e6).fractions(1e6)).bound == "memory"


def test_tensor_operations_take_the_place_of_flops_where_there_were_any() -> None:
    row = counted(flops=200_000_000, bytes=4, dtype="bfloat16")
    use = utilization_of(with_tensor(row, 320_000_000.0), machine(), 1e6)
    assert use.fractions(1e6)["compute"] == pytest.approx(0.8)
    assert evidence_line(use) == "320 of 400 GFLOP/s bf16 measured"
    # None on the tensor cores: it was calculated elsewhere.
    assert utilization_of(with_tensor(row, 0.0), machine(), 1e6).fractions(1e6)["compute"] == pytest.approx(
        0.5
    )


def with_dram(row: Any, dram_bytes: float | None) -> Any:
    (found,) = with_measured([row], counters(("a", 0, "dram_bytes", dram_bytes)))
    return found


def with_tensor(row: Any, operations: float) -> Any:
    (found,) = with_measured([row], counters(("a", 0, "tensor_operations.bf16", operations)))
    return found


def evidence_line(use: Any) -> str:
    return evidence_text(evidence_of(label(use.fractions(1e6)), use, CallFigures(1e6, 200_000_000, 0)))
