# SPDX-License-Identifier: Apache-2.0
"""The level of a history's last segment, and a new file held against it.

Files of different days differ by more than their launches tell: the machine has been restarted, warmed or
filled with neighbours in between. So the file is the unit here, with the mean of its launches' logarithms,
and a new file is judged as what it is, one more draw of a file: its difference from the level varies by
s^2 (1 / n + 1 / m), where s is the standard deviation between files, n the number of files of the segment
and m that of the candidates (the prediction interval of a new observation). Where the candidate's own
launches vary more than that accounts for, what is more is added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.bench.comparison import LogRatio

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# Fewer files of a segment tell too little of their spread: then all segments tell it together.
ENOUGH_FILES = 8


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance and its degrees of freedom."""

    value: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Levels:
    """A series of files, the logarithms of each one's launches, cut where its level changes."""

    files: tuple[Floats, ...]
    changes: tuple[int, ...]

    @property
    def segments(self) -> list[tuple[int, int]]:
        """The first file of each segment, and that behind its last."""
        return list(itertools.pairwise([0, *self.changes, len(self.files)]))

    @property
    def figures(self) -> Floats:
        """One figure a file."""
        return np.array([each.mean() for each in self.files])

    @property
    def last(self) -> tuple[int, int]:
        """The segment that is the baseline."""
        return self.segments[-1]

    def between_files(self, *, of_last: bool = True) -> Variance | None:
        """Return the variance between files of one segment; None where there are too few files.

        Of the last segment alone where that has enough files, else of all segments together.
        """
        begin, end = self.last
        chosen = [self.last] if of_last and end - begin >= ENOUGH_FILES else self.segments
        return _within([self.figures[a:b] for a, b in chosen])

    def change(self, number: int) -> LogRatio | None:
        """Return by how much the level changes between two segments; None where no spread is known."""
        spread = self.between_files(of_last=False)
        (a, b), (c, d) = self.segments[number : number + 2]
        if spread is None:
            return None
        figures = self.figures
        error = math.sqrt(spread.value * (1 / (b - a) + 1 / (d - c)))
        return LogRatio.of(float(figures[c:d].mean() - figures[a:b].mean()), error, spread.freedom)

    def against(self, candidates: Sequence[Floats]) -> LogRatio | None:
        """Hold new files against the last segment; None where no spread between files is known."""
        spread = _with_candidates(self.between_files(), candidates)
        if spread is None:
            return None
        begin, end = self.last
        new = np.array([each.mean() for each in candidates])
        variance = spread.value * (1 / (end - begin) + 1 / len(new))
        more = self._more(candidates)
        whole = variance + more.value
        parts = variance**2 / spread.freedom + more.value**2 / more.freedom
        freedom = whole**2 / parts if parts > 0 else spread.freedom
        return LogRatio.of(float(new.mean() - self.figures[begin:end].mean()), math.sqrt(whole), freedom)

    def _more(self, candidates: Sequence[Floats]) -> Variance:
        """Return what the candidates' launches vary more than the launches of the baseline's files do."""
        own = [self.files[place] for place in range(*self.last)]
        usual = _within(own)
        accounted = 0.0 if usual is None else usual.value * float(np.mean([1 / len(each) for each in own]))
        known = [each for each in (usual, _within(candidates)) if each is not None]
        if not known:
            return Variance(0.0, 1.0)
        # A few launches that happen to agree are no better than launches were so far.
        found = max(known, key=lambda each: each.value)
        each_file = [max(0.0, found.value / len(each) - accounted) for each in candidates]
        return Variance(sum(each_file) / len(candidates) ** 2, found.freedom)


def _with_candidates(spread: Variance | None, candidates: Sequence[Floats]) -> Variance | None:
    if len(candidates) < 2 or spread is None:
        return spread
    figures = np.array([each.mean() for each in candidates])
    freedom = spread.freedom + len(figures) - 1
    squares = spread.value * spread.freedom + float(((figures - figures.mean()) ** 2).sum())
    return Variance(squares / freedom, freedom)


def _within(groups: Sequence[Floats]) -> Variance | None:
    """Return the variance within groups, one for all; None where no group has two."""
    freedom = sum(len(each) - 1 for each in groups)
    if not freedom:
        return None
    return Variance(sum(float(((each - each.mean()) ** 2).sum()) for each in groups) / freedom, freedom)


def files_to_settle(
    variation: float, files: int, margin: float, *, level: float = 0.05, power: float = 0.8
) -> int | None:
    """Return the candidate files that settle a comparison with a level of so many files.

    As many as show that equal times are *same*. None where no number of them does.
    """
    left = _precision(variation, margin, level, power) - 1 / files
    return max(1, math.ceil(1 / left)) if left > 0 else None


def margin_to_settle(variation: float, files: int, *, level: float = 0.05, power: float = 0.8) -> float:
    """Return the margin within which one candidate file shows that equal times are *same*."""
    normal = NormalDist()
    z = normal.inv_cdf(1 - level) + normal.inv_cdf((1 + power) / 2)
    return math.expm1(z * variation * math.sqrt(1 + 1 / files))


def _precision(variation: float, margin: float, level: float, power: float) -> float:
    normal = NormalDist()
    z = normal.inv_cdf(1 - level) + normal.inv_cdf((1 + power) / 2)
    return (math.log1p(margin) / (z * variation)) ** 2 if variation > 0 else math.inf
