# SPDX-License-Identifier: Apache-2.0
"""Spans that are placed as columns, compared with a walk over the ancestors of each span."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from roofline_rows import Spans

from gpuprof.analyze.roofline.counted import COMPILED
from gpuprof.analyze.roofline.measured_spans import MeasuredSpans, Wanted, parent_indices

KINDS = ("layer", "operator", "backward", "span")
WANTED = Wanted(
    frozenset({("l0", "o0"), ("l0", "o1"), ("l1", "o2"), ("l0", f"{COMPILED}l2")}), frozenset({"o1", "o3"})
)


@dataclass
class Place:
    """The place of a span by definition."""

    root_call: int = -1
    layer: str = ""
    in_backward: bool = False
    is_candidate: bool = False
    is_taken: bool = False
    outermost: int = -1


def ancestors(spans: Spans, span: int) -> Iterator[int]:
    """Yield a span and what is around it, from the inside out."""
    while span >= 0:
        yield span
        span = spans.rows[span][0]


def place_of(spans: Spans, span: int, places: list[Place]) -> Place:
    kinds = {each: KINDS[{1: 0, 2: 1, 3: 2, 0: 3}[row[1]]] for each, row in enumerate(spans.rows)}
    around = list(ancestors(spans, span))
    layers = [each for each in around if kinds[each] == "layer"]
    operators = [each for each in around[1:] if kinds[each] == "operator"]
    found = Place(
        root_call=layers[-1] if layers else -1,
        layer=spans.rows[layers[0]][2] if layers else "",
        in_backward=any(kinds[each] == "backward" for each in around),
        outermost=operators[-1] if operators else -1,
    )
    root = spans.rows[found.root_call][2] if layers else ""
    name = spans.rows[span][2]
    wanted = {
        "layer": (root, f"{COMPILED}{name}") in WANTED.forward,
        "operator": name in WANTED.backward if found.in_backward else (root, name) in WANTED.forward,
    }.get(kinds[span], False)
    inside = any(places[each].is_taken for each in around[1:])
    found.is_candidate = wanted and not inside
    found.is_taken = found.is_candidate or inside
    return found


def random_spans(seed: int) -> Spans:
    chance = random.Random(seed)
    spans = Spans()
    for number in range(chance.randint(1, 120)):
        kind = chance.choices(KINDS, (4, 8, 1, 1))[0]
        inside = chance.randint(max(-1, number - 12), number - 1)
        spans.add(kind, f"{kind[0]}{chance.randint(0, 3)}", chance.randint(1, 1000), inside)
    for _ in range(chance.randint(0, 40)):
        spans.kernel(
            chance.randint(-1, len(spans.rows) - 1), chance.randint(1, 99), f"cuda:{chance.randint(0, 1)}"
        )
    return spans


@pytest.fixture(params=range(60), name="case")
def random_case(request: pytest.FixtureRequest) -> tuple[Spans, MeasuredSpans, list[Place]]:
    spans = random_spans(request.param)
    places: list[Place] = []
    for span in range(len(spans.rows)):
        places.append(place_of(spans, span, places))
    return spans, spans.measured(WANTED), places


def test_the_ancestors_of_each_span_decide_its_place(case: tuple[Spans, MeasuredSpans, list[Place]]) -> None:
    spans, measured, expected = case
    found = measured.places
    for span, place in enumerate(expected):
        assert int(found.root_call[span]) == place.root_call
        assert measured.layer_of(span) == place.layer
        assert bool(found.in_backward[span]) == place.in_backward
        assert bool(found.is_candidate[span]) == place.is_candidate
        assert int(found.outermost[span]) == place.outermost
    outermost = [
        span
        for span, place in enumerate(expected)
        if spans.rows[span][1] == 2 and place.outermost < 0 and not place.is_taken
    ]
    assert measured.uncounted.tolist() == outermost


def test_times_inside_of_operators_and_layers_add_up(case: tuple[Spans, MeasuredSpans, list[Place]]) -> None:
    spans, measured, expected = case
    inner: Counter[int] = Counter()
    own: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for span, (parent, kind, name, _, duration_ns) in enumerate(spans.rows):
        place = expected[span]
        if place.is_candidate and place.outermost >= 0:
            inner[place.outermost] += duration_ns
        if kind == 1 and not place.in_backward:
            root = spans.rows[place.root_call][2]
            own[root, name][place.root_call] += duration_ns
            if parent >= 0 and expected[parent].root_call >= 0:
                own[root, expected[parent].layer][place.root_call] -= duration_ns
    assert {span: int(ns) for span, ns in enumerate(measured.inner_ns) if ns} == dict(inner)
    assert {key: sorted(ns.tolist()) for key, ns in measured.layer_own_ns.items()} == {
        key: sorted(times.values()) for key, times in own.items()
    }


def test_gpu_work_is_of_the_candidate_or_the_outermost_operator(
    case: tuple[Spans, MeasuredSpans, list[Place]],
) -> None:
    spans, measured, expected = case
    times: Counter[tuple[int, str]] = Counter()
    for each in spans.activity:
        around = list(ancestors(spans, each["span"]))
        candidates = [span for span in around if expected[span].is_candidate]
        operators = [span for span in around if spans.rows[span][1] == 2]
        owner = candidates[0] if candidates else operators[-1] if operators else -1
        times[owner, each["device"]] += each["duration"]
    executions = measured.gpu.executions
    found = {
        (int(owner), measured.gpu.activity.devices[device]): int(ns)
        for owner, device, ns in zip(executions.owner, executions.device, executions.time_ns, strict=True)
    }
    assert found == {key: ns for key, ns in times.items() if key[0] >= 0}
    assert sum(measured.gpu.device_ns.values()) == times.total()


def test_parents_that_are_missing_or_later_are_none() -> None:
    parents = parent_indices(np.array([3, 5, 8]), np.array([-1, 3, 9]))
    assert parents.tolist() == [-1, 0, -1]
    assert parent_indices(np.array([3, 5]), np.array([5, 7])).tolist() == [-1, -1]
