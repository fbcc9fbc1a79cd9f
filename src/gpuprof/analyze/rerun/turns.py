# SPDX-License-Identifier: Apache-2.0
"""Two sides of a comparison, executed in turns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Clock = Callable[[], int]  # nanoseconds
_LEAST_SAMPLE_NS = 2_000_000  # shorter calls are repeated within a sample
_MOST_REPEATS = 1_000


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: `prepare` is executed before a sample, outside of the timed part."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


def alternate(
    before: Side, after: Side, *, pairs: int, seconds: float, clock: Clock = time.perf_counter_ns
) -> Iterator[tuple[float, float]]:
    """Execute both sides in turns, in pairs of changing order; yield the times of a call in nanoseconds.

    It ends after `pairs`, or after the first pair that ends later than `seconds`. The first calls of each
    side are not measured.
    """
    end_ns = clock() + round(seconds * 1e9)
    repeats = [repeats_of(side, clock) for side in (before, after)]
    for pair in range(pairs):
        order = (0, 1) if pair % 2 else (1, 0)
        found = {side: sample((before, after)[side], repeats[side], clock) for side in order}
        yield found[0], found[1]
        if clock() >= end_ns:
            return


def sample(side: Side, repeats: int, clock: Clock) -> float:
    """Return the time of a call in nanoseconds, of so many in a row."""
    side.prepare()
    begin_ns = clock()
    for _ in itertools.repeat(None, repeats):
        side.run()
    return (clock() - begin_ns) / repeats


def repeats_of(side: Side, clock: Clock) -> int:
    """Return the number of calls in a sample, after the first calls."""
    sample(side, 1, clock)  # the first call makes what the later ones reuse
    duration_ns = max(sample(side, 1, clock), 1.0)
    return max(1, min(_MOST_REPEATS, round(_LEAST_SAMPLE_NS / duration_ns)))
