# SPDX-License-Identifier: Apache-2.0
"""The steps of imported traces, which are written by hand: annotations, optimizers, repetitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuprof

Event = dict[str, Any]
STEP_US = 1_000
BACKWARD_THREAD = 2


def x(name: str, ts: int, dur: int, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return {"ph": "X", "pid": 7, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


def trained(begin: int) -> list[Event]:
    """A training step of 1 ms that begins at `begin`: 300 us forward, 400 us backward, 100 us optimizer."""
    return [
        x("aten::linear", begin + 50, 250),
        x("aten::mse_loss", begin + 300, 50),
        x("autograd::engine::evaluate_function: AddmmBackward0", begin + 400, 400, tid=BACKWARD_THREAD),
        x("Optimizer.step#SGD.step", begin + 850, 100, "user_annotation"),
        x("aten::_foreach_add_", begin + 860, 80),
    ]


def generated(begin: int, layers: int = 4, *, waits: bool = True) -> list[Event]:
    """A generated token of 1 ms: an embedding, equal layers, and the read value."""
    events = [x("aten::embedding", begin, 50)]
    for layer in range(layers):
        events += [x(name, begin + 60 + 200 * layer + 90 * place, 80) for place, name in enumerate(LAYER)]
    if waits:
        events.append(x("aten::item", begin + 900, 60))
        events.append(x("aten::_local_scalar_dense", begin + 910, 45))
    return events


LAYER = ("aten::addmm", "aten::gelu")


@pytest.fixture
def steps(tmp_path: Path) -> Callable[[list[Event]], list[tuple[Any, ...]]]:
    """`steps(events)` are source, kind, begin and end in us, and the parts of each step of that trace."""

    def steps(events: list[Event]) -> list[tuple[Any, ...]]:
        trace = tmp_path / "trace.json"
        trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        run = gpuprof.import_trace(trace, tmp_path / f"{len(list(tmp_path.iterdir()))}.gpuprof")
        return run.sql(
            "SELECT source, kind, begin_ns // 1000, end_ns // 1000, forward_ns // 1000, "
            "backward_ns // 1000, optimizer_ns // 1000, other_ns // 1000 FROM steps ORDER BY begin_ns"
        ).fetchall()

    return steps


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ProfilerStep#{}", "user_annotation"),
        ("iteration {}", "user_annotation"),
        ("## train_step {} ##", "nvtx"),
        ("Batch: {}", "nvtx"),
        ("app: step {}", "nvtx"),
    ],
)
def test_numbered_annotations_are_steps(name: str, category: str, steps: Any) -> None:
    events = [event for number in range(3) for event in trained(number * STEP_US)]
    marks = [x(name.format(number + 17), number * STEP_US, 990, category) for number in range(3)]
    assert steps(events + marks) == [
        ("annotation", "training", begin, begin + 990, 300, 400, 100, 190) for begin in (0, 1_000, 2_000)
    ]


def test_the_annotation_with_the_most_time_decides(steps: Any) -> None:
    events = [event for number in range(3) for event in trained(number * STEP_US)]
    marks = [x(f"ProfilerStep#{number}", number * STEP_US, 990, "user_annotation") for number in range(3)]
    inner = [x(f"batch {number}", number * STEP_US + 10, 5, "user_annotation") for number in range(3)]
    assert [row[2:4] for row in steps(events + marks + inner)] == [(0, 990), (1_000, 1_990), (2_000, 2_990)]


@pytest.mark.parametrize("name", ["stepwise 3", "my iterations", "next_batch_of 4", "DataLoader 3"])
def test_other_annotations_are_no_steps(name: str, steps: Any) -> None:
    events = trained(0) + trained(1_000)
    assert {row[0] for row in steps([*events, x(name, 0, 1_990, "user_annotation")])} == {"optimizer"}


def test_the_programs_own_spans_come_first(steps: Any) -> None:
    marks = [
        x("ProfilerStep#1", 0, 1_000, "user_annotation"),
        x("step", 20, 900, "user_annotation"),
    ]
    assert [row[:4] for row in steps(trained(0) + marks)] == [("span", "training", 20, 920)]


def test_without_annotations_steps_end_with_the_optimizers(steps: Any) -> None:
    events = [event for number in range(3) for event in trained(number * STEP_US)]
    # The first one begins with its first call; times are relative to it.
    assert [row[:4] for row in steps(events)] == [
        ("optimizer", "training", 0, 900),
        ("optimizer", "training", 900, 1_900),
        ("optimizer", "training", 1_900, 2_900),
    ]


def test_repeated_operators_with_a_wait_in_each_repetition_are_steps(steps: Any) -> None:
    events = [event for number in range(5) for event in generated(number * STEP_US)]
    found = steps(events)
    assert [row[:4] for row in found] == [
        *(("repetition", "forward", begin, begin + 1_000) for begin in (0, 1_000, 2_000, 3_000)),
        ("repetition", "forward", 4_000, 4_960),
    ]
    # All operators: the embedding, eight of the layers, the read value.
    assert {row[4] for row in found} == {50 + 8 * 80 + 60}


def test_equal_layers_of_one_step_are_no_steps(steps: Any) -> None:
    assert steps(generated(0, layers=40)) == []
    assert steps([event for number in range(5) for event in generated(number * STEP_US, waits=False)]) == []


def test_a_prefill_before_the_tokens_is_no_step(steps: Any) -> None:
    prefill = [x(name, place * 100, 60) for place, name in enumerate(["aten::sdpa", *LAYER])]
    events = [event for number in range(5) for event in generated(1_000 + number * STEP_US)]
    assert [row[2] for row in steps(prefill + events)] == [1_000, 2_000, 3_000, 4_000, 5_000]


def test_a_trace_without_repetition_and_one_of_a_gpu_alone_have_no_steps(steps: Any) -> None:
    assert steps([x(f"aten::op{number}", number * 10, 5) for number in range(20)]) == []
    assert steps([{**x("k", 0, 5, "kernel", device=0, stream=7), "pid": 0}]) == []
