# SPDX-License-Identifier: Apache-2.0
"""Operators whose inputs were recorded, joined to timed ones that the counting pass did not see."""

from __future__ import annotations

from typing import Any

import pytest
from roofline_rows import Spans, counted

from gpuprof.analyze.roofline.counted import plain_name
from gpuprof.analyze.roofline.join import Join, join, names_to_look_for
from gpuprof.analyze.roofline.measured_spans import MeasuredSpans
from gpuprof.analyze.roofline.traced_inputs import InputWindow, SignatureSizes, TracedInputs
from gpuprof.analyze.roofline.traced_join import join_traced, lagrange_weights


class Program:
    """Calls of a model by hand, each with operators inside and after it; some in a window."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.names: list[str] = []
        self.rows: list[Any] = []
        self.windows: list[InputWindow] = []
        self.numbers: dict[int, int] = {}

    def call(self, number: int, work: dict[str, int] | None = None, *, names: tuple[str, ...] = ()) -> None:
        """Make a call of a signature; `work` has the bytes of its operators where they are recorded."""
        begin_ns = 10 * len(self.spans.rows)
        span = self.spans.add("layer", "Net")
        self.numbers[span] = number
        inside, *after = names or tuple(work or ())
        self.spans.add("operator", inside, inside=span)
        for name in after:
            self.spans.add("operator", name)
        if work is not None:
            number_of_call = len(self.numbers) - 1
            self.windows.append(
                InputWindow("Net", number_of_call, 0, begin_ns, 10 * len(self.spans.rows) - 1)
            )
            for name, size in work.items():
                self.names.append(plain_name(name))
                self.rows.append(counted(name, bytes=size, flops=2 * size))

    def joined(self, sizes: list[int], *rows: Any) -> tuple[Join, MeasuredSpans]:
        signatures = {"Net": [SignatureSizes("x", size) for size in sizes]}
        inputs = TracedInputs(self.names, self.rows, self.windows, self.numbers, signatures)
        timed = self.spans.measured(names_to_look_for(rows))
        given = {span: number == 0 for span, number in self.numbers.items()}
        return join_traced(join(rows, timed, given), timed, inputs)


def work_of(found: Join) -> dict[tuple[str, str, str], list[tuple[int | None, int]]]:
    """Return bytes and calls of the traced operators by name, layer and exactness."""
    work: dict[tuple[str, str, str], list[tuple[int | None, int]]] = {}
    for each in found.rows:
        if each.is_traced:
            key = (each.row.operator, each.row.layer, each.row.exactness)
            work.setdefault(key, []).append((each.row.bytes, len(each.durations_ns)))
    return work


def test_operators_after_a_call_have_the_work_of_the_recorded_ones() -> None:
    program = Program()
    program.call(0, {"aten::mm": 8, "aten::mul_": 100})
    for _ in range(3):
        program.call(0, names=("aten::mm", "aten::mul_"))
    found, timed = program.joined([4], counted("aten::mm", bytes=8))
    # The counted product keeps its own row.
    assert work_of(found) == {("aten::mul_", "", "exact"): [(100, 4)]}
    assert not len(timed.uncounted)
    assert not len(found.unmatched)


def test_calls_with_other_inputs_have_the_work_of_those_inputs() -> None:
    program = Program()
    program.call(0, {"aten::mm": 8})
    program.call(1, {"aten::mm": 6})
    program.call(1, names=("aten::mm",))
    found, _ = program.joined([4, 3], counted("aten::mm", bytes=8))
    assert work_of(found) == {("aten::mm", "Net", "exact"): [(6, 2)]}
    assert not len(found.other_work)


@pytest.mark.parametrize("power", [0, 1, 2])
def test_work_between_recorded_sizes_is_that_of_a_polynomial(power: int) -> None:
    program = Program()
    sizes = [4, 5, 6, 7, 20]
    for number, size in enumerate(sizes):
        is_recorded = number in (0, 1, 2)
        work = {"aten::mm": 3 * size**power}
        program.call(number, work if is_recorded else None, names=("aten::mm",))
    found, _ = program.joined(sizes)
    expected = [3 * size**power for size in sizes]
    by_exactness = work_of(found)
    estimated = by_exactness.pop(("aten::mm", "Net", "estimated"), [])
    exact = by_exactness.pop(("aten::mm", "Net", "exact"))
    if power == 0:  # the same work for all sizes
        assert (sum(calls for _, calls in exact), estimated) == (5, [])
        assert {size for size, _ in exact} == {3}
    else:
        assert [size for size, _ in exact] == expected[:3]
        assert [size for size, _ in estimated] == expected[3:]
    assert not by_exactness


def test_other_sizes_with_one_recorded_stretch_have_no_work() -> None:
    program = Program()
    program.call(0, {"aten::mm": 8})
    program.call(1, names=("aten::mm",))
    found, timed = program.joined([4, 3])
    assert work_of(found) == {("aten::mm", "Net", "exact"): [(8, 1)]}
    assert len(timed.uncounted) == 1


def test_operators_that_only_some_calls_have_are_left_out() -> None:
    program = Program()
    program.call(0, {"aten::mm": 8, "aten::mul_": 100})
    program.call(0, names=("aten::mm", "aten::sort", "aten::mul_"))
    found, timed = program.joined([4])
    assert work_of(found)["aten::mul_", "", "exact"] == [(100, 2)]
    assert [timed.columns.names[timed.columns.name[span]] for span in timed.uncounted] == ["aten::sort"]


def test_the_outermost_operator_is_taken_and_none_around_counted_ones() -> None:
    program = Program()
    spans = program.spans
    call = spans.add("layer", "Net")
    program.numbers[call] = 0
    outer = spans.add("operator", "aten::linear", inside=call)
    spans.add("operator", "aten::mm", inside=outer)
    loss = spans.add("operator", "aten::cross_entropy_loss")
    spans.add("operator", "aten::log_softmax", inside=loss)
    program.windows.append(InputWindow("Net", 0, 0, 0, 1000))
    program.names = ["aten::linear", "aten::mm", "aten::cross_entropy_loss", "aten::log_softmax"]
    program.rows = [counted(name, bytes=9) for name in program.names]
    found, timed = program.joined([4], counted("aten::mm", bytes=9))
    assert work_of(found) == {("aten::cross_entropy_loss", "", "exact"): [(9, 1)]}
    # What is around the counted product remains, for its self time.
    assert timed.uncounted.tolist() == [outer]


def test_operators_of_an_optimizer_have_its_phase() -> None:
    program = Program()
    program.call(0, {"aten::mm": 8, "aten::mul_": 100})
    step = program.spans.add("span", "Optimizer.step#AdamW.step")
    program.spans.add("operator", "aten::add_", inside=step)
    program.names.append("aten::add")
    program.rows.append(counted("aten::add_", bytes=7))
    program.windows = [InputWindow("Net", 0, 0, 0, 1000)]
    found, _ = program.joined([4])
    phases = {each.row.operator: each.row.phase for each in found.rows}
    assert phases == {"aten::mm": "forward", "aten::mul_": "forward", "aten::add_": "optimizer"}


def test_weights_are_those_of_the_polynomial_through_the_points() -> None:
    weights = lagrange_weights([1.0, 2.0, 4.0], 3.0)
    for power in range(3):
        values = [each**power for each in (1.0, 2.0, 4.0)]
        assert sum(map(float.__mul__, weights, values)) == pytest.approx(3.0**power)
    assert lagrange_weights([5.0], 5.0) == [1.0]
