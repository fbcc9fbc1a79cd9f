# SPDX-License-Identifier: Apache-2.0
"""What a program does besides its steps: evaluations, generations, inferences, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpuprof.run.outermost_calls import Call, LayerModes, OutermostCalls, ProgramCalls
from gpuprof.run.program_phases import steps_and_phases
from gpuprof.run.stacks import Stacks, ThreadStacks

MAIN = 7
F, B, O, D = Call.FORWARD, Call.BACKWARD, Call.OPTIMIZER, Call.DATA  # noqa: E741 - an optimizer's step
STEP = [(F, 0, 10, "net"), (B, 10, 30, ""), (O, 30, 40, "")]
SAVE = "save (torch/serialization.py:900)"

Given = tuple[Call, int, int, str] | tuple[Call, int, int, str, bool]
Found = list[tuple[str, int, int]]


def step(at: int) -> list[Given]:
    return [(call, at + begin, at + end, layer) for call, begin, end, layer in STEP]


def evaluated(begin: int, end: int, layer: str = "net") -> Given:
    return F, begin, end, layer, True


def calls_of(given: Sequence[Given]) -> OutermostCalls:
    rows = sorted(((*each, False)[:5] for each in given), key=lambda row: row[1])
    kind, begin, end, layer, mode = zip(*rows, strict=True)
    numbers = [np.array(column, dtype=np.int64) for column in ([MAIN] * len(rows), begin, end, kind)]
    process = np.full(len(rows), MAIN, dtype=np.int64)
    return OutermostCalls(
        process, ProgramCalls(np.array(layer, dtype=object), *numbers, np.array(mode, dtype=np.bool_))
    )


def stacks_of(samples: Sequence[tuple[int, str]]) -> Stacks:
    """Return samples of 10 ns below `main`: the instant of each, and its innermost function."""
    texts = sorted({"main (main.py:1)", *(text for _, text in samples)})
    thread = ThreadStacks(MAIN, MAIN, 10)
    for t_ns, text in samples:
        thread.add((t_ns, 10, 10, 0, 1), (texts.index("main (main.py:1)"), texts.index(text)))
    return Stacks(texts, [thread])


def found(given: Sequence[Given], samples: Sequence[tuple[int, str]] = ()) -> tuple[Found, Found]:
    """Return source, begin and end of each step; kind, begin and end of each phase."""
    steps, phases = steps_and_phases(calls_of(given), stacks_of(samples), has_operators=True)
    return (
        [(each.source, each.begin_ns, each.end_ns) for each in steps],
        [(each.kind, each.begin_ns, each.end_ns) for each in phases],
    )


@pytest.mark.parametrize("loader", [[], [(D, 50, 55, ""), (D, 60, 65, "")]])
def test_calls_in_evaluation_mode_between_steps_are_an_evaluation(loader: list[Given]) -> None:
    between = [*loader, evaluated(55, 60), evaluated(65, 70)]
    steps, phases = found([*step(0), *between, *step(100)])
    assert steps == [("optimizer", 0, 40), ("optimizer", 100, 140)]
    assert phases == [("evaluation", 50 if loader else 55, 70)]


def test_after_the_steps_they_are_one_with_a_loader() -> None:
    calls: list[Given] = [*step(0), (D, 45, 50, ""), (D, 50, 55, ""), evaluated(55, 60), evaluated(95, 99)]
    assert found(calls)[1] == [("evaluation", 50, 99)]


def test_others_are_inferences_and_a_long_pause_separates_them() -> None:
    calls = [evaluated(50, 60), evaluated(65, 70), evaluated(90, 95)]
    assert found([*step(0), *calls])[1] == [("inference", 50, 70), ("inference", 90, 95)]


def test_a_teacher_is_part_of_the_step() -> None:
    steps, phases = found([*step(0), evaluated(50, 60, "teacher"), *step(60)])
    assert steps == [("optimizer", 0, 40), ("optimizer", 40, 100)]
    assert phases == []


def test_calls_in_training_mode_are_no_phase() -> None:
    assert found([*step(0), (F, 50, 60, "net"), (F, 65, 70, "net")])[1] == []


@pytest.mark.parametrize("end", [40, 60])
def test_a_checkpoint_is_before_the_step(end: int) -> None:
    steps, phases = found([*step(0), *step(100)], [(t, SAVE) for t in range(end, 90, 10)])
    assert steps == [("optimizer", 0, 40), ("optimizer", 80, 140)]
    assert phases == [("checkpoint", max(end - 10, 40), 80)]


def test_a_checkpoint_inside_a_step_is_part_of_it() -> None:
    steps, phases = found([*step(0), *step(100)], [(130, SAVE)])
    assert steps == [("optimizer", 0, 40), ("optimizer", 40, 140)]
    assert phases == []


def test_a_generation_needs_a_model() -> None:
    generation = [(t, "Net.generate (model.py:5)") for t in (210, 220, 230)]
    calls = [*step(0), evaluated(202, 208), evaluated(215, 225)]
    assert found(calls, generation)[1] == [("generation", 200, 230)]
    assert found(step(0), generation)[1] == []


def test_the_outermost_function_decides() -> None:
    thread = ThreadStacks(MAIN, MAIN, 10)
    texts = ["Trainer.evaluate (transformers/trainer.py:9)", SAVE, "f (f.py:1)"]
    for t_ns, frames in ((110, (2, 0)), (120, (2, 0, 1)), (130, (2, 1)), (140, (2,))):
        thread.add((t_ns, 10, 10, 0, 1), frames)
    calls = calls_of(step(0))
    _, phases = steps_and_phases(calls, Stacks(texts, [thread]), has_operators=True)
    assert [(each.kind, each.begin_ns, each.end_ns) for each in phases] == [
        ("evaluation", 100, 120),
        ("checkpoint", 120, 130),
    ]


def test_functions_of_other_files_and_threads_are_none() -> None:
    others = ["save (my/serialization.py:1)", "evaluate (my.py:1)", "generate.sub (a.py:1)"]
    samples = [(110 + 10 * place, text) for place, text in enumerate(others)]
    assert found([*step(0), evaluated(120, 130)], samples)[1] == [("inference", 120, 130)]
    elsewhere = stacks_of([(110, SAVE)])
    elsewhere.threads[0].thread_id = MAIN + 1
    assert steps_and_phases(calls_of(step(0)), elsewhere, has_operators=True)[1] == []


def test_repeated_calls_are_steps_and_no_inference() -> None:
    steps, phases = found([evaluated(0, 10), evaluated(10, 20)])
    assert steps == [("calls", 0, 10), ("calls", 10, 20)]
    assert phases == []


def test_modes_hold_from_the_call_that_wrote_them() -> None:
    modes = LayerModes(*(np.array(each) for each in ([1, 1, 1], [1, 1, 2], [10, 30, 0], [1, 2, 3])))
    ends = np.array([5, 10, 29, 30, 50, 1, 40])
    threads = np.array([1, 1, 1, 1, 1, 2, 3])
    process = np.ones(7, dtype=np.int64)
    expected = [False, False, False, True, True, True, False]
    assert modes.are_evaluated(process, threads, ends).tolist() == expected
