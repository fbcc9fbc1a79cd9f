# SPDX-License-Identifier: Apache-2.0
"""Figures of several launches together. Each launch weighs the same, however many samples it gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.statistics import student_quantile
from gpuprof.bench.statistics import (
    CONFIDENCE,
    Estimate,
    SummaryFigures,
    interval_ranks,
    quantile_of,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

WIDEST_FACTOR = 10.0  # of an end to the value; what lies further is not told


class PooledSamples:
    """Samples of launches in order, with weights: those of a launch add up to its share.

    `shares` are relative, 1 for each launch where None. `count` is how many samples of one weight would tell
    as much (Kish, Survey Sampling, 1965): all of them where the launches are of one length, else fewer.
    """

    def __init__(self, launches: Sequence[Floats], shares: Sequence[float] | None = None) -> None:
        given = [1.0] * len(launches) if shares is None else shares
        filled = [(launch, share) for launch, share in zip(launches, given, strict=True) if len(launch)]
        self.launches = [launch for launch, _ in filled]
        whole = sum(share for _, share in filled)
        self._shares = np.array([share / whole for _, share in filled])
        values = np.concatenate([np.zeros(0), *self.launches])
        lengths = [len(launch) for launch in self.launches]
        weights = np.repeat(self._shares / np.maximum(lengths, 1), lengths)
        order = np.argsort(values, kind="stable")
        self.samples, self._weights = values[order], weights[order]
        self._until = np.cumsum(self._weights)
        squares = float((weights**2).sum())
        self.count = int(1 / squares + 1e-6) if len(values) else 0

    def value(self, quantile: float) -> float:
        """Return a quantile, interpolated as by `quantile_of` where all weights are one."""
        ends = (self._weights[0] + self._weights[-1]) / 2
        if len(self.samples) == 1 or ends >= 1:
            return float(self.samples[0])
        places = (self._until - (self._weights + self._weights[0]) / 2) / (1 - ends)
        return float(np.interp(quantile, places, self.samples))

    def quantile(self, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
        """Return a quantile with its interval; None where the samples do not suffice.

        Samples of one launch are alike, so the interval comes from how the launches differ: Student's, on the
        logarithms of the launches' own quantiles, around the value of all samples. It is never narrower than
        for independent samples, and has no ends where these would lie beyond WIDEST_FACTOR. Launches that are
        too short for a quantile of their own get Woodruff's.
        """
        if len(self.launches) < 2:
            return quantile_of(self.launches[0], quantile, confidence) if self.launches else None
        ranks = interval_ranks(self.count, quantile, confidence)
        if ranks is None:
            return None
        figures = [
            found.value for launch in self.launches if (found := quantile_of(launch, quantile, confidence))
        ]
        if len(figures) < len(self.launches) or min(figures) <= 0:
            return self._woodruff(quantile, ranks, confidence)
        value = self.value(quantile)
        low, high = self._student_ends(value, figures, confidence)
        if low is None or high is None:
            return Estimate(None, value, None)
        return self._around(value, min(self._at_rank(ranks[0]), low), max(self._at_rank(ranks[1]), high))

    def mean(self, confidence: float = CONFIDENCE) -> Estimate | None:
        """Return the mean with Student's interval, over the launches, or the samples of a single one."""
        if len(self.samples) < 2:
            return None
        value = float((self._weights * self.samples).sum())
        if len(self.launches) < 2:
            half = student(1 - confidence, len(self.samples) - 1) * float(self.samples.std(ddof=1))
            half /= math.sqrt(len(self.samples))
            return Estimate(value - half, value, value + half)
        figures = [float(launch.mean()) for launch in self.launches]
        if min(figures) <= 0:
            return None
        return self._around(value, *self._student_ends(value, figures, confidence))

    def summary(self) -> SummaryFigures | None:
        """Return plain figures; None without samples."""
        if not len(self.samples):
            return None
        mean = float((self._weights * self.samples).sum())
        freedom = 1 - float((self._weights**2).sum())
        squares = float((self._weights * (self.samples - mean) ** 2).sum())
        first, median, third = (self.value(each) for each in (0.25, 0.5, 0.75))
        return SummaryFigures(
            count=len(self.samples),
            mean=mean,
            std=math.sqrt(squares / freedom) if len(self.samples) > 1 else None,
            minimum=float(self.samples[0]),
            maximum=float(self.samples[-1]),
            median=median,
            first_quartile=first,
            third_quartile=third,
        )

    def _student_ends(
        self, value: float, figures: Sequence[float], confidence: float
    ) -> tuple[float, float] | tuple[None, None]:
        deviation = float(np.log(figures).std(ddof=1))
        half = student(1 - confidence, len(figures) - 1) * deviation / math.sqrt(len(figures))
        # Two launches that differ give ends from nanoseconds to ages: those are no figures for anybody.
        if half > math.log(WIDEST_FACTOR):
            return None, None
        return value * math.exp(-half), value * math.exp(half)

    def _woodruff(self, quantile: float, ranks: tuple[int, int], confidence: float) -> Estimate:
        """Return the interval of Woodruff (JASA 47, 1952) with the launches as clusters.

        The share of each launch's samples that lie below the value varies between launches; that spread,
        times Student's t, is the half width of the share, and the interval lies between the quantiles at
        both ends of it. An end beyond the samples is None.
        """
        value, clusters = self.value(quantile), len(self.launches)
        below = np.array([np.mean(launch <= value) for launch in self.launches])
        residuals = self._shares * (below - float((self._shares * below).sum()))
        error = math.sqrt(clusters / (clusters - 1) * float((residuals**2).sum()))
        half = student(1 - confidence, clusters - 1) * error
        low = min(ranks[0], math.floor(self.count * (quantile - half)))
        high = max(ranks[1], math.ceil(self.count * (quantile + half)) + 1)
        return self._around(
            value,
            self._at_rank(low) if low >= 1 else None,
            self._at_rank(high) if high <= self.count else None,
        )

    def _at_rank(self, rank: int) -> float:
        """Return the sample that has a rank (from 1) among `count` samples of one weight."""
        place = int(np.searchsorted(self._until, (rank - 0.5) / self.count))
        return float(self.samples[min(place, len(self.samples) - 1)])

    @staticmethod
    def _around(value: float, low: float | None, high: float | None) -> Estimate:
        return Estimate(
            None if low is None else min(low, value), value, None if high is None else max(high, value)
        )


@lru_cache(maxsize=64)
def student(level: float, freedom: float) -> float:
    """Return one quantile of Student's t, which takes a while to find and is often asked for again."""
    return float(student_quantile(level, np.array([float(freedom)]))[0])
