# SPDX-License-Identifier: Apache-2.0
"""The profiler's clock is brought to the monotonic one by ranges that both know, whatever it is off by."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from gpuprof.record.operators import ClockMarks

pytest.importorskip("torch", reason="the marks are ranges of PyTorch's")


def marks_at(monkeypatch: pytest.MonkeyPatch, *instants_ns: int) -> ClockMarks:
    """Return marks that were made at these instants, of a clock whose readings are 300 ns apart."""
    marks = ClockMarks()
    for instant_ns in instants_ns:
        ticks = iter(range(instant_ns, instant_ns + 1_000_000, 300))
        monkeypatch.setattr(time, "monotonic_ns", lambda ticks=ticks: next(ticks))
        marks.take()
    return marks


def seen(marks: ClockMarks, clock: Callable[[int], int]) -> list[tuple[int, int]]:
    """Return what a profiler with this clock has of the marks: 100 ns in the middle of each."""
    return [(clock(before + 100), clock(before + 200)) for before, _ in marks._read_ns]


@pytest.mark.parametrize("offset_ns", [0, 7_000, -7_000, 10**15])
def test_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch, offset_ns: int) -> None:
    marks = marks_at(monkeypatch, 10**12, 10**12 + 10**9)
    starts = np.array([10**12, 10**12 + 10**8, 10**12 + 10**10]) + offset_ns
    shifts = marks.shifts_ns(starts, seen(marks, lambda instant: instant + offset_ns))
    assert shifts.tolist() == [-offset_ns] * 3


def test_a_clock_that_drifts(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = marks_at(monkeypatch, 0, 10**9)
    found = seen(marks, lambda instant: instant + 1_000 + round(instant * 4e-6))
    starts = np.array([0, 500_000_000, 1_000_000_000])
    assert marks.shifts_ns(starts, found).tolist() == pytest.approx([-1_000, -3_000, -5_000], abs=5)


def test_the_narrowest_readings_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = marks_at(monkeypatch, 0, 10**6)
    late = [(before, after + 50_000 * (number % 2)) for number, (before, after) in enumerate(marks._read_ns)]
    found = seen(marks, lambda instant: instant + 2_000)
    marks._read_ns = late
    assert marks.shifts_ns(np.array([2_000, 500_000]), found).tolist() == [-2_000, -2_000]


def test_marks_that_the_profiler_lacks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = marks_at(monkeypatch, 0, 10**6)
    found = seen(marks, lambda instant: instant + 9_000)
    assert marks.shifts_ns(np.array([1, 2]), found[1:]).tolist() == [0, 0]
    assert ClockMarks().shifts_ns(np.array([1]), []).tolist() == [0]
