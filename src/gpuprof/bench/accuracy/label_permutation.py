# SPDX-License-Identifier: Apache-2.0
"""Classes that exchanged their answers, as after a wrong list of classes or rows put back wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


# All pairs of columns are held: 32 MiB of doubles.
_MOST_CLASSES = 2_048
# A column has moved where the other's place fits it so much better, in squares of distances.
_CLEARLY_NEARER = 0.25


@dataclass(frozen=True, slots=True)
class SwappedClasses:
    """Two classes whose answers the optimized variant exchanges.

    `first_moved` of `first_count` samples that the baseline calls `first` are called `second`, and the other
    way round. `by_scores` says that their columns of scores are exchanged too, which shows without any
    sample of these classes; None where there are too many classes to look.
    """

    first: int
    second: int
    first_moved: int
    first_count: int
    second_moved: int
    second_count: int
    by_scores: bool | None


class ScoreColumns:
    """Squared distances between every column of scores of one variant and every one of the other."""

    def __init__(self, classes: int) -> None:
        self.is_looked_at = classes <= _MOST_CLASSES
        size = classes if self.is_looked_at else 0
        self._products = np.zeros((size, size))
        self._baseline, self._optimized = np.zeros(size), np.zeros(size)

    def add(self, baseline: Floats, optimized: Floats) -> None:
        """Add a batch of scores, (samples, classes); samples with NaN or infinity are left out."""
        if not self.is_looked_at:
            return
        finite = np.isfinite(baseline).all(axis=1) & np.isfinite(optimized).all(axis=1)
        old, new = baseline[finite], optimized[finite]
        with np.errstate(over="ignore", invalid="ignore"):
            self._products += new.T @ old
            self._baseline += np.square(old).sum(axis=0)
            self._optimized += np.square(new).sum(axis=0)

    def exchanged(self) -> set[tuple[int, int]]:
        """Return pairs of classes that are each other's nearest, clearly nearer than themselves."""
        if not self._products.size:
            return set()
        with np.errstate(invalid="ignore"):
            distances = self._optimized[:, None] + self._baseline[None, :] - 2 * self._products
        distances = np.maximum(np.nan_to_num(distances, nan=np.inf), 0.0)
        own, nearest = np.diag(distances), np.argmin(distances, axis=1)
        is_moved = distances[np.arange(len(own)), nearest] < _CLEARLY_NEARER * own
        return {
            (one, other)
            for one, other in enumerate(nearest.tolist())
            if one < other and nearest[other] == one and is_moved[one] and is_moved[other]
        }


def swapped_classes(
    answers: Mapping[tuple[int, int], int], columns: ScoreColumns
) -> tuple[SwappedClasses, ...]:
    """Return exchanged pairs; `answers` counts samples by (baseline's answer, optimized variant's answer).

    By answers a pair is exchanged where most samples of each class go to the other.
    """
    totals: Counter[int] = Counter()
    for (answer, _), count in answers.items():
        totals[answer] += count
    by_scores = columns.exchanged()
    found = by_scores | {
        (one, other)
        for one, other in answers
        if 0 <= one < other and _moved(answers, totals, one, other) and _moved(answers, totals, other, one)
    }
    return tuple(
        SwappedClasses(
            first=one,
            second=other,
            first_moved=answers.get((one, other), 0),
            first_count=totals[one],
            second_moved=answers.get((other, one), 0),
            second_count=totals[other],
            by_scores=(one, other) in by_scores if columns.is_looked_at else None,
        )
        for one, other in sorted(found)
    )


def _moved(answers: Mapping[tuple[int, int], int], totals: Mapping[int, int], one: int, other: int) -> bool:
    return 2 * answers.get((one, other), 0) > totals.get(one, 0)


def pairs_of(first: Any, second: Any) -> Counter[tuple[int, int]]:
    """Count the pairs of two columns of whole numbers."""
    pairs, counts = np.unique(np.stack((first, second)), axis=1, return_counts=True)
    both = zip(pairs[0].tolist(), pairs[1].tolist(), strict=True)
    return Counter(dict(zip(both, counts.tolist(), strict=True)))
