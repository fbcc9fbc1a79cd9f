# SPDX-License-Identifier: Apache-2.0
"""The measuring loop of a re-run, with a clock of the test, and the replicas that it measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpuprof.analyze.findings.finding import RerunProblem
from gpuprof.analyze.rerun import replicas
from gpuprof.analyze.rerun.turns import Side, alternate

MS = 1_000_000


class Clock:
    """A clock that only calls of `work` move."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls: list[str] = []

    def __call__(self) -> int:
        return self.now_ns

    def work(self, name: str, duration_ns: int) -> Callable[[], None]:
        def call() -> None:
            self.calls.append(name)
            self.now_ns += duration_ns

        return call


def test_both_sides_take_turns_and_their_first_calls_are_not_measured() -> None:
    clock = Clock()
    sides = Side(clock.work("slow", 7 * MS)), Side(clock.work("fast", 3 * MS))
    assert list(alternate(*sides, pairs=3, seconds=9, clock=clock)) == [(7 * MS, 3 * MS)] * 3
    warm_up, measured = clock.calls[:4], clock.calls[4:]
    assert warm_up == ["slow", "slow", "fast", "fast"]
    assert measured == ["fast", "slow", "slow", "fast", "fast", "slow"]


def test_short_calls_are_repeated_and_preparation_is_not_measured() -> None:
    clock = Clock()
    sides = Side(clock.work("slow", 20_000), clock.work("prepare", 5 * MS)), Side(clock.work("fast", 1_000))
    assert list(alternate(*sides, pairs=1, seconds=9, clock=clock)) == [(20_000, 1_000)]
    assert clock.calls[6:].count("slow") == 100
    assert clock.calls[6:].count("prepare") == 1


def test_it_ends_in_time() -> None:
    clock = Clock()
    sides = Side(clock.work("slow", 600 * MS)), Side(clock.work("fast", 400 * MS))
    assert len(list(alternate(*sides, pairs=50, seconds=4, clock=clock))) == 2


def operator(name: str, *shapes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    found = {"operator": name, "overload": "", "dtype": "float32", "count": 1, "shapes": list(shapes)}
    return {**found, **more}


def test_operators_get_new_inputs_of_their_shapes() -> None:
    call = replicas._call(operator("aten::mm", (3, 5), (5, 2)))
    assert call is not None
    assert torch.equal(call(), torch.full((3, 2), 5.0))
    norm = replicas._call(operator("aten::native_layer_norm", (4, 6), (6,), (6,)))
    assert norm is not None
    assert norm()[0].shape == (4, 6)


@pytest.mark.parametrize(
    "unknown",
    [
        operator("aten::mm", (3, 5), (4, 2)),
        operator("aten::no_such_operator", (3,)),
        operator("other::mm", (3,)),
        operator("aten::cat", (3,), (3,)),
        operator("aten::permute", (3, 4)),
    ],
)
def test_operators_with_unknown_arguments_are_left_out(unknown: dict[str, Any]) -> None:
    assert replicas._call(unknown) is None


def test_a_fused_optimizer_calculates_the_same_as_the_loop() -> None:
    values = {
        "name": "AdamW",
        "shapes": [{"shape": [3, 2], "dtype": "float32", "count": 2}],
        "options": {"weight_decay": 0.1, "amsgrad": True, "decoupled_weight_decay": True},
        "before": {"fused": False, "foreach": False},
        "after": {"fused": True},
    }
    replica = replicas._optimizer(1, values)
    groups = []
    for side in (replica.before, replica.after):
        side.run()
        groups.append(side.run.__self__.param_groups[0])  # type: ignore[attr-defined]
    assert [group["fused"] for group in groups] == [False, True]
    assert all(group["amsgrad"] and group["weight_decay"] == 0.1 for group in groups)
    loop, fused = (group["params"] for group in groups)
    assert len(loop) == len(fused) == 2
    assert all(torch.allclose(*pair) for pair in zip(loop, fused, strict=True))


def test_a_class_of_the_program_is_not_made() -> None:
    values = {"name": "os", "shapes": [], "options": {}, "before": {}, "after": {}}
    with pytest.raises(replicas.ReplicaError) as refused:
        replicas._optimizer(1, values)
    assert refused.value.problem is RerunProblem.NO_REPLICA


def test_inputs_that_need_too_much_memory_are_not_made() -> None:
    values = {
        "name": "SGD",
        "shapes": [{"shape": [1_000_000, 1_000_000], "dtype": "float32", "count": 9}],
        "options": {},
        "before": {},
        "after": {},
    }
    with pytest.raises(replicas.ReplicaError) as refused:
        replicas._optimizer(1, values)
    assert refused.value.problem is RerunProblem.MEMORY
