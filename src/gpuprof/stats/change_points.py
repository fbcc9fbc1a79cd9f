# SPDX-License-Identifier: Apache-2.0
"""Change points of a series: one figure for each file, in the order of time.

Binary segmentation over seeded intervals (Kovács, Bühlmann, Li and Munk, Biometrika 110, 2023) also finds a
change that was reverted later. Figures far from the median of their segment are winsorized, which limits the
weight of one bad day. The significance of the best split comes from permutations of the figures within the
segments found before it (as in Matteson and James, JASA 109, 2014). For figures in random order, of any
distribution, the probability of a first split is at most the level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats, Integers


LEVEL = 0.05
# One figure alone is a bad day, not a new level.
SHORTEST = 2
_PERMUTATIONS = 999
_FARTHEST = 3.0  # standard deviations, by the median of the absolute deviations
_NORMAL_DEVIATION = 1.4826
_DECAY = math.sqrt(0.5)
_AT_ONCE = 2_000_000  # values in memory during the permutation test
_FEW = 100  # permutations that reject most insignificant splits


def find_change_points(
    figures: Sequence[float], *, level: float = LEVEL, permutations: int = _PERMUTATIONS, seed: int = 0
) -> list[int]:
    """Return the indices at which a new level begins."""
    values = np.asarray(figures, dtype=np.float64)
    generator = np.random.default_rng(seed)
    found: list[int] = []
    while True:
        segments = list(itertools.pairwise([0, *found, len(values)]))
        splits = _splits(segments)
        if not len(splits):
            break
        scores = _standardized(values, segments)
        contrasts = _contrasts(scores[None, :], splits)[0]
        best = int(np.argmax(contrasts))
        if not _is_significant(
            scores, segments, splits, float(contrasts[best]), level, permutations, generator
        ):
            break
        found = sorted([*found, int(splits[best, 1])])
    return _moved_to_best(values, found)


def _splits(segments: Sequence[tuple[int, int]]) -> Integers:
    """Return (begin, split, end) of each candidate split, in seeded intervals of the segments."""
    rows = [
        (begin + low, begin + split, begin + high)
        for begin, end in segments
        for low, high in _seeded(end - begin)
        for split in range(low + SHORTEST, high - SHORTEST + 1)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _seeded(count: int) -> Iterator[tuple[int, int]]:
    """Yield intervals of decreasing length; those of each length cover the series with overlaps."""
    seen: set[tuple[int, int]] = set()
    layer, length = 0, float(count)
    while length >= 2 * SHORTEST:
        intervals = 2 * math.ceil((1 / _DECAY) ** layer - 1e-9) - 1
        step = (count - length) / (intervals - 1) if intervals > 1 else 0.0
        for number in range(intervals):
            interval = (math.floor(number * step), math.ceil(number * step + length - 1e-9))
            if interval[1] <= count and interval not in seen:
                seen.add(interval)
                yield interval
        layer += 1
        length = count * _DECAY**layer


def _standardized(values: Floats, segments: Sequence[tuple[int, int]]) -> Floats:
    """Return the values of each segment with mean 0 and standard deviation 1, winsorized."""
    scores = np.zeros(len(values))
    for begin, end in segments:
        own = values[begin:end]
        middle = np.median(own)
        reach = _FARTHEST * _NORMAL_DEVIATION * float(np.median(np.abs(own - middle)))
        drawn_in = np.clip(own, middle - reach, middle + reach) if reach > 0 else own
        spread = float(drawn_in.std())
        scores[begin:end] = (drawn_in - drawn_in.mean()) / spread if spread > 0 else 0.0
    return scores


def _contrasts(rows: Floats, splits: Integers) -> Floats:
    """Return for each row and split the difference of the means on both sides, over its standard error."""
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    begin, split, end = splits.T
    before, after = split - begin, end - split
    left = (sums[:, split] - sums[:, begin]) / before
    right = (sums[:, end] - sums[:, split]) / after
    contrasts: Floats = np.abs(right - left) * np.sqrt(before * after / (before + after))
    return contrasts


def _is_significant(
    scores: Floats,
    segments: Sequence[tuple[int, int]],
    splits: Integers,
    best: float,
    level: float,
    permutations: int,
    generator: np.random.Generator,
) -> bool:
    """Return whether a contrast is as large in few enough permutations, including the series itself."""
    allowed = math.floor(level * (permutations + 1) + 1e-9) - 1
    at_once = max(1, min(_FEW, _AT_ONCE // len(splits)))
    as_large = 0
    for done in range(0, permutations, at_once):
        rows = np.tile(scores, (min(at_once, permutations - done), 1))
        for begin, end in segments:
            rows[:, begin:end] = generator.permuted(rows[:, begin:end], axis=1)
        largest = _contrasts(rows, splits).max(axis=1)
        as_large += int((largest >= best - 1e-9).sum())
        if as_large > allowed:
            return False
    return True


def _moved_to_best(values: Floats, found: Sequence[int]) -> list[int]:
    """Move each change to the best split between the changes before and after it."""
    places = [0, *found, len(values)]
    for number in range(1, len(places) - 1):
        begin, end = places[number - 1], places[number + 1]
        splits = np.array([(begin, at, end) for at in range(begin + SHORTEST, end - SHORTEST + 1)])
        contrasts = _contrasts(_standardized(values, [(begin, end)])[None, :], splits)[0]
        places[number] = int(splits[int(np.argmax(contrasts)), 1])
    return places[1:-1]
