# SPDX-License-Identifier: Apache-2.0
"""The few spans of a thread that matter to its samples: all others change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.run.sampled_spans import LastEnds, SampledSpans, SpanChooser
from gpuprof.run.span_boundaries import ThreadSpans
from gpuprof.run.stack_placement import moments_of, sweep
from gpuprof.run.stacks import ThreadStacks


def stacks_of(samples: list[tuple[int, int]], *, is_of_end: bool = True) -> ThreadStacks:
    """Return samples that have the duration and distance from the former one, in this order."""
    stacks = ThreadStacks(7, 7, 10, is_of_end)
    t_ns = 0
    for duration, distance in samples:
        t_ns += duration + distance
        stacks.add((t_ns, duration, -1, -1, -1), ())
    return stacks


def chosen(spans: list[tuple[int, int]], stacks: ThreadStacks, at_once: int) -> SampledSpans:
    start, end = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    t_ns, duration = (np.array(column, dtype=np.int64) for column in (stacks.t_ns, stacks.duration_ns))
    moments = np.array(list(moments_of(stacks)), dtype=np.int64)
    chooser = SpanChooser(moments, np.concatenate([t_ns - duration, t_ns]))
    parts = [SampledSpans(start[:0], start[:0], start[:0])]
    for begin in range(0, len(start), at_once):
        found = chooser.choose(start[begin : begin + at_once], end[begin : begin + at_once])
        parts.append(found._replace(places=found.places + begin))
    return SampledSpans(*map(np.concatenate, zip(*parts, strict=True)))


def seen(
    stacks: ThreadStacks, start: list[int], end: list[int], places: list[int]
) -> list[tuple[list[int], dict[int, int]]]:
    """Return for each sample the spans that are open, and the time of its window in each and in none."""
    places = [*places, -1]  # of no span
    return [
        ([places[at] for at in opened], {places[at]: time for at, time in times.items() if time})
        for opened, times in sweep(stacks, ThreadSpans(start_ns=start, end_ns=end))
    ]


SAMPLES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), max_size=6)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 40)), max_size=12), SAMPLES, st.booleans())
def test_samples_see_the_same_in_few_spans(
    drawn: list[tuple[int, int]], samples: list[tuple[int, int]], is_of_end: bool
) -> None:
    stacks = stacks_of(samples, is_of_end=is_of_end)
    spans = sorted(((start, start + length) for start, length in drawn), key=lambda each: (each[0], -each[1]))
    for at_once in (2, 5, 100):
        few = chosen(spans, stacks, at_once)
        expected = seen(stacks, [s for s, _ in spans], [e for _, e in spans], list(range(len(spans))))
        found = seen(stacks, few.start_ns.tolist(), few.end_ns.tolist(), few.places.tolist())
        assert found == expected


def nested(steps: int) -> list[tuple[int, int]]:
    """Return steps of 1,000, each with 10 spans that have 8 inside of them."""
    return [
        span
        for step in range(0, 1000 * steps, 1000)
        for span in [
            (step, step + 990),
            *(
                inner
                for begin in range(step, step + 900, 90)
                for inner in [(begin, begin + 85), *((at, at + 9) for at in range(begin, begin + 80, 10))]
            ),
        ]
    ]


@pytest.mark.parametrize("crossing", [[], [(450, 5_500), (5_400, 7_600)]])
def test_spans_between_samples_become_one(crossing: list[tuple[int, int]]) -> None:
    spans = sorted([*nested(1000), *crossing], key=lambda each: (each[0], -each[1]))
    assert len(spans) >= 91_000
    few = chosen(spans, stacks_of([(9_999, 0)] * 100), 1 << 16)
    assert len(few.places) < 12 * 100 + (800 if crossing else 0)


@given(st.lists(st.integers(0, 50), max_size=9), st.lists(st.lists(st.integers(0, 60)), max_size=3))
def test_the_last_end_until_each_moment(moments: list[int], parts: list[list[int]]) -> None:
    last = LastEnds(np.array(sorted(moments), dtype=np.int64))
    for ends in parts:
        last.add(np.array(ends, dtype=np.int64))
    everything = [each for ends in parts for each in ends]
    until = ([end for end in everything if end <= moment] for moment in moments)
    assert last.found.tolist() == sorted({max(ends) for ends in until if ends})
