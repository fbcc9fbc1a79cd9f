# SPDX-License-Identifier: Apache-2.0
"""The steps of a program: where they begin and end, and what they consist of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.run.outermost_calls import Call, ProgramCalls
from gpuprof.run.steps import LONGEST_ENGINE_GAP_NS, Step, find_steps

F, B, O, Z, D, OP, MARK = Call  # noqa: E741 - an optimizer's step
MAIN = 7

Given = tuple[Call, int, int] | tuple[Call, int, int, str] | tuple[Call, int, int, str, int]


def made(given: Sequence[Given]) -> ProgramCalls:
    """Return calls of kind, begin, end, layer and thread, by their begin."""
    rows = sorted(
        ((*each, *("net", MAIN)[len(each) - 3 :]) for each in given), key=lambda row: (row[1], -row[2])
    )
    kind, start, end, layer, thread = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    numbers = [np.array(column, dtype=np.int64) for column in (thread, start, end, kind)]
    return ProgramCalls(np.array(layer, dtype=object), *numbers, np.zeros(len(rows), dtype=np.bool_))


def steps_of(*given: Given, has_operators: bool = True) -> list[Step]:
    return find_steps(made(given), MAIN, has_operators=has_operators)


def times_of(step: Step) -> tuple[int, ...]:
    return step[-5:]


def one_step(at: int) -> list[Given]:
    """Data 10, forward 21 with its loss, backward 29 of two nodes, optimizer 5 and 15; 10 of others."""
    return [
        (D, at, at + 10),
        (OP, at + 11, at + 13),
        (F, at + 15, at + 30),
        (OP, at + 30, at + 35),
        (Z, at + 38, at + 43),
        (OP, at + 43, at + 44),  # the gradient of the loss
        (B, at + 44, at + 60),
        (B, at + 63, at + 73),
        (O, at + 75, at + 90),
    ]


def test_steps_end_with_the_optimizers() -> None:
    first, second = steps_of(*one_step(1000), *one_step(1100))
    assert first[:6] == (MAIN, 0, 1000, 1090, "training", "optimizer")
    assert second[:6] == (MAIN, 1, 1090, 1190, "training", "optimizer")
    assert times_of(first) == (21, 29, 20, 10, 10)
    assert times_of(second) == (21, 29, 20, 10, 20)


def test_a_long_gap_between_nodes_is_no_backward_pass() -> None:
    long = LONGEST_ENGINE_GAP_NS + 1
    (step,) = steps_of((F, 0, 10), (B, 10, 20), (B, 20 + long, 30 + long), (O, 30 + long, 40 + long))
    assert step.backward_ns == 20
    assert step.other_ns == long


def test_an_evaluation_between_steps_is_in_none() -> None:
    evaluation: list[Given] = [(D, 1100, 1110), (F, 1110, 1150), (D, 1150, 1160), (F, 1160, 1200)]
    first, second = steps_of(*one_step(1000), *evaluation, *one_step(1300))
    assert (first.end_ns, second.begin_ns, second.end_ns) == (1090, 1300, 1390)
    before: list[Given] = [(D, 100, 110), (F, 110, 150)]
    (only,) = steps_of(*before, *one_step(1000))
    assert only.begin_ns == 1000


def test_accumulated_gradients_are_one_step() -> None:
    (step,) = steps_of((D, 0, 5), (F, 5, 10), (B, 10, 20), (D, 20, 25), (F, 25, 30), (B, 30, 40), (O, 40, 50))
    assert (step.begin_ns, step.end_ns) == (0, 50)
    assert times_of(step) == (10, 20, 10, 10, 0)


def test_two_optimizers_after_one_backward_pass_are_one_step() -> None:
    (step,) = steps_of((F, 0, 10), (B, 10, 20), (O, 20, 30), (O, 32, 40))
    assert (step.end_ns, step.optimizer_ns, step.other_ns) == (40, 18, 2)


def test_without_backward_passes_each_optimizers_step_is_one() -> None:
    assert len(steps_of((O, 0, 10), (O, 20, 30))) == 2


def test_a_closure_inside_the_optimizers_step() -> None:
    first, second = steps_of(
        *((D, 0, 10), (O, 10, 60), (F, 15, 25), (B, 25, 45)),
        *((D, 60, 70), (O, 70, 120), (F, 75, 85), (B, 85, 105)),
    )
    assert (first.begin_ns, first.end_ns, second.begin_ns, second.end_ns) == (0, 60, 60, 120)
    # What the closure does before its last call is no part of the update.
    assert times_of(first) == times_of(second) == (10, 20, 15, 10, 5)


def test_the_backward_pass_of_another_thread_is_part_of_the_step() -> None:
    (step,) = steps_of((F, 0, 10), (B, 12, 40, "", 9), (O, 45, 50), (F, 20, 30, "other", 8))
    assert times_of(step) == (10, 28, 5, 0, 7)


def test_spans_named_step_come_first() -> None:
    marked = steps_of((MARK, 0, 100), *one_step(5), (MARK, 100, 200), *one_step(105))
    assert [(step.begin_ns, step.end_ns, step.source) for step in marked] == [
        (0, 100, "span"),
        (100, 200, "span"),
    ]
    assert times_of(marked[1]) == (21, 29, 20, 10, 20)


def test_repeated_calls_of_a_layer_are_steps() -> None:
    steps = steps_of((F, 0, 10), (F, 10, 12, "loss"), (F, 20, 35), (F, 35, 37, "loss"))
    assert [(step.begin_ns, step.end_ns, step.kind, step.source) for step in steps] == [
        (0, 10, "forward", "calls"),
        (20, 35, "forward", "calls"),
    ]
    assert times_of(steps[1]) == (15, 0, 0, 0, 0)


def test_marked_steps_without_a_model_are_no_forward_calls() -> None:
    with_call, without = steps_of((MARK, 0, 100), (F, 20, 30), (MARK, 100, 200))
    assert (with_call.kind, without.kind) == ("forward", "unknown")
    assert times_of(without) == (0, 0, 0, 0, 100)


def test_no_step_and_a_single_one() -> None:
    assert steps_of() == []
    assert steps_of((OP, 0, 10), (D, 10, 20)) == []
    assert steps_of((F, 0, 10)) == []  # nothing repeats
    assert len(steps_of((MARK, 0, 10))) == 1


def test_without_operators_the_other_parts_are_unknown() -> None:
    first, _ = steps_of((F, 0, 10), (F, 20, 30), has_operators=False)
    assert (first.kind, times_of(first)) == ("unknown", (10, -1, -1, -1, -1))


@given(st.data())
def test_parts_add_up_and_steps_do_not_overlap(data: st.DataObject) -> None:
    given: list[Any] = []
    for _ in range(data.draw(st.integers(0, 12))):
        start = data.draw(st.integers(0, 100))
        end = start + data.draw(st.integers(0, 30))
        thread = data.draw(st.sampled_from([MAIN, 8]))
        given.append((data.draw(st.sampled_from(Call)), start, end, data.draw(st.sampled_from("ab")), thread))
    steps = steps_of(*given)
    for step in steps:
        assert sum(times_of(step)) == step.end_ns - step.begin_ns
        assert min(times_of(step)) >= 0
    for before, after in itertools.pairwise(steps):
        assert before.end_ns <= after.begin_ns
    assert [step.number for step in steps] == list(range(len(steps)))


@pytest.mark.parametrize("count", [1, 5, 8])
def test_the_steps_of_a_loop_are_as_many_as_the_optimizers(count: int) -> None:
    steps = steps_of(*(each for number in range(count) for each in one_step(100 * number)))
    assert len(steps) == count
    assert all(times_of(step)[:4] == (21, 29, 20, 10) for step in steps)
