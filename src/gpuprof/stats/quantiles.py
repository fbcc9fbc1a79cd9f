# SPDX-License-Identifier: Apache-2.0
"""Quantiles with intervals, summaries and drift, of one process run and pooled over several.

No sample is removed or smoothed. In pooled figures each process run has the same weight, whatever its number
of samples. Comparisons of two configurations are in ratio_test.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.stats.distributions import (
    approximate_binomial_quantile,
    binomial_quantile,
    student_quantile,
)

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats


CONFIDENCE = 0.95
_MOST_BLOCKS = 200
_ROUNDING = 1e-9  # 0.07 * 100 is above 7 in floating point


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantile's value and the ends of its interval; an end is None if the samples do not define it."""

    low: float | None
    value: float
    high: float | None

    @property
    def relative_width(self) -> float | None:
        """Width of the interval relative to the value; None if an end is missing."""
        if self.low is None or self.high is None or self.value <= 0:
            return None
        return (self.high - self.low) / self.value


def order_statistic(ordered: Floats, share: float) -> float:
    """Return the smallest of sorted values that at least a fraction of them does not exceed."""
    rank = math.ceil(share * len(ordered) - _ROUNDING)
    return float(ordered[min(max(rank, 1), len(ordered)) - 1])


def samples_needed(quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the fewest samples that bound a quantile on both sides.

    The widest interval, from the smallest to the largest sample, misses the quantile if all samples are on
    one side of it: with a probability of q^n + (1 - q)^n.
    """
    _check_share(quantile)
    count = 2
    extreme = max(quantile, 1 - quantile)
    count = max(count, math.floor(math.log(1 - confidence) / math.log(extreme)))
    while quantile**count + (1 - quantile) ** count > 1 - confidence:
        count += 1
    return count


@lru_cache(maxsize=256)
def interval_ranks(
    count: int,
    quantile: float,
    confidence: float = CONFIDENCE,
    binomial: Callable[[int, float, float], int] = binomial_quantile,
) -> tuple[int, int] | None:
    """Return the ranks (from 1) of the ends of a quantile's interval; None if n is too small.

    The number of n independent samples below the quantile q is binomial, B(n, q), for any distribution
    (David and Nagaraja, Order Statistics, 3rd ed., 7.1). With equal tails the ranks are the
    quantiles of B at (1 - confidence) / 2 and (1 + confidence) / 2, plus 1. If one of them is outside
    the samples, the interval ends at the outermost sample, and the other tail gets the rest.
    """
    if count < samples_needed(quantile, confidence):
        return None
    tail = (1 - confidence) / 2
    low = binomial(count, quantile, tail)
    high = binomial(count, quantile, 1 - tail) + 1
    if low < 1:
        beyond = (1 - quantile) ** count
        low, high = 1, binomial(count, quantile, confidence + beyond) + 1
    elif high > count:
        beyond = quantile**count
        low, high = binomial(count, quantile, 1 - confidence - beyond), count
    return max(low, 1), min(high, count)


def quantile_of(samples: Floats, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return a quantile of independent samples with its interval; None with too few samples.

    The value is interpolated between adjacent order statistics (Hyndman and Fan's type 7, American
    Statistician 50, 1996).
    """
    _check_share(quantile)
    ranks = interval_ranks(len(samples), quantile, confidence)
    return None if ranks is None else _between(samples, quantile, ranks)


def quantile_so_far(samples: Floats, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return `quantile_of` during the measurement: without SciPy, with ranks to within one."""
    _check_share(quantile)
    ranks = interval_ranks(len(samples), quantile, confidence, binomial=approximate_binomial_quantile)
    return None if ranks is None else _between(samples, quantile, ranks)


def _between(samples: Floats, quantile: float, ranks: tuple[int, int]) -> Estimate:
    low, high = ranks
    wanted = [rank - 1 for rank in ranks if 1 <= rank <= len(samples)]
    ordered = np.partition(samples, wanted) if wanted else samples
    value = float(np.quantile(samples, quantile))
    return Estimate(
        min(float(ordered[low - 1]), value) if low >= 1 else None,
        value,
        max(float(ordered[high - 1]), value) if high <= len(samples) else None,
    )


def _check_share(quantile: float) -> None:
    if not 0 < quantile < 1:
        raise ValueError(f"{quantile} is not a quantile; hint: give a number between 0 and 1, such as 0.99")


@dataclass(frozen=True, slots=True)
class SummaryFigures:
    """Plain figures of samples, in the unit of the samples; `std` is None for one sample."""

    count: int
    mean: float
    std: float | None
    minimum: float
    maximum: float
    median: float
    first_quartile: float
    third_quartile: float

    @property
    def relative_iqr(self) -> float:
        """Relative IQR: the interquartile range divided by the median."""
        return (self.third_quartile - self.first_quartile) / self.median if self.median > 0 else 0.0


def summarize(samples: Floats) -> SummaryFigures | None:
    """Return the figures of samples, None without samples. `std` has n - 1 in its denominator."""
    if not len(samples):
        return None
    first, median, third = (float(value) for value in np.quantile(samples, (0.25, 0.5, 0.75)))
    return SummaryFigures(
        count=len(samples),
        mean=float(samples.mean()),
        std=float(samples.std(ddof=1)) if len(samples) > 1 else None,
        minimum=float(samples.min()),
        maximum=float(samples.max()),
        median=median,
        first_quartile=first,
        third_quartile=third,
    )


FEWEST_FOR_TREND = 5


@dataclass(frozen=True, slots=True)
class Slope:
    """A trend's slope with its 95% interval."""

    low: float
    value: float
    high: float


def theil_sen(places: Floats, values: Floats, confidence: float = CONFIDENCE) -> Slope | None:
    """Return the median of the slopes between all pairs of points; None for too few points.

    The interval is Sen's (JASA 63, 1968): the ranks of two slopes, from the normal distribution of Kendall's
    S with its correction for ties. Without a trend, 8 in 100 intervals of four points leave out 0, and about
    5 in 100 or fewer of more points (simulated).
    """
    if len(values) < FEWEST_FOR_TREND:
        return None
    earlier, later = np.triu_indices(len(values), 1)
    distances = places[later] - places[earlier]
    apart = distances != 0
    slopes = np.sort((values[later] - values[earlier])[apart] / distances[apart])
    variance = _concordance_variance(len(values)) - sum(
        _concordance_variance(times)
        for ties in (places, values)
        for times in np.unique(ties, return_counts=True)[1].tolist()
    )
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(max(variance, 0.0))
    above = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    below = max(round((len(slopes) - reach) / 2) - 1, 0)
    return Slope(float(slopes[below]), float(np.median(slopes)), float(slopes[above]))


def _concordance_variance(count: int) -> float:
    """Return the variance of Kendall's S of `count` points, or what as many equal ones take away from it."""
    return count * (count - 1) * (2 * count + 5) / 18


def relative_drift(samples: Floats) -> Slope | None:
    """Return the drift from the first to the last sample, relative to the median.

    It is the trend of the medians of up to 200 blocks, so that the cost does not grow with the square of n.
    """
    middle = float(np.median(samples)) if len(samples) else 0.0
    if middle <= 0:
        return None
    blocks = np.array_split(samples, min(len(samples), _MOST_BLOCKS))
    medians = np.array([float(np.median(block)) for block in blocks]) / middle
    return theil_sen(np.linspace(0.0, 1.0, len(medians)), medians)


WIDEST_FACTOR = 10.0  # of an end to the value; a wider end is None


class PooledSamples:
    """Samples of process runs in order, with weights that add up to the weight of their process run.

    `weights` are relative, one for each process run; None is 1. `count` is the effective sample size (Kish,
    Survey Sampling, 1965): all samples if the process runs have one length, otherwise fewer.
    """

    def __init__(self, runs: Sequence[Floats], weights: Sequence[float] | None = None) -> None:
        given = [1.0] * len(runs) if weights is None else weights
        filled = [(run, weight) for run, weight in zip(runs, given, strict=True) if len(run)]
        self.runs = [run for run, _ in filled]
        whole = sum(weight for _, weight in filled)
        self._run_weights = np.array([weight / whole for _, weight in filled])
        values = np.concatenate([np.zeros(0), *self.runs])
        lengths = [len(run) for run in self.runs]
        of_samples = np.repeat(self._run_weights / np.maximum(lengths, 1), lengths)
        order = np.argsort(values, kind="stable")
        self.samples, self._weights = values[order], of_samples[order]
        self._until = np.cumsum(self._weights)
        squares = float((of_samples**2).sum())
        self.count = int(1 / squares + 1e-6) if len(values) else 0

    def value(self, quantile: float) -> float:
        """Return a quantile, interpolated as in `quantile_of` if all weights are one."""
        ends = (self._weights[0] + self._weights[-1]) / 2
        if len(self.samples) == 1 or ends >= 1:
            return float(self.samples[0])
        places = (self._until - (self._weights + self._weights[0]) / 2) / (1 - ends)
        return float(np.interp(quantile, places, self.samples))

    def quantile(self, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
        """Return a quantile with its interval; None with too few samples.

        Samples of one process run are correlated, so the interval comes from the differences between process
        runs: Student's, on the logarithms of their quantiles, around the value of all samples. It is never
        narrower than for independent samples, and has no ends beyond WIDEST_FACTOR. Process runs that are
        too short for a quantile of their own get Woodruff's interval.
        """
        if len(self.runs) < 2:
            return quantile_of(self.runs[0], quantile, confidence) if self.runs else None
        ranks = interval_ranks(self.count, quantile, confidence)
        if ranks is None:
            return None
        figures = [found.value for run in self.runs if (found := quantile_of(run, quantile, confidence))]
        if len(figures) < len(self.runs) or min(figures) <= 0:
            return self._woodruff(quantile, ranks, confidence)
        value = self.value(quantile)
        low, high = self._student_ends(value, figures, confidence)
        if low is None or high is None:
            return Estimate(None, value, None)
        return self._around(value, min(self._at_rank(ranks[0]), low), max(self._at_rank(ranks[1]), high))

    def mean(self, confidence: float = CONFIDENCE) -> Estimate | None:
        """Return the mean with Student's interval, over the process runs, or the samples of a single one."""
        if len(self.samples) < 2:
            return None
        value = float((self._weights * self.samples).sum())
        if len(self.runs) < 2:
            half = float(student_quantile(1 - confidence, len(self.samples) - 1)) * float(
                self.samples.std(ddof=1)
            )
            half /= math.sqrt(len(self.samples))
            return Estimate(value - half, value, value + half)
        figures = [float(run.mean()) for run in self.runs]
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
        half = float(student_quantile(1 - confidence, len(figures) - 1)) * deviation / math.sqrt(len(figures))
        # Two process runs that differ much give ends from nanoseconds to years, which are useless.
        if half > math.log(WIDEST_FACTOR):
            return None, None
        return value * math.exp(-half), value * math.exp(half)

    def _woodruff(self, quantile: float, ranks: tuple[int, int], confidence: float) -> Estimate:
        """Return the interval of Woodruff (JASA 47, 1952) with the process runs as clusters.

        The fraction of samples below the value varies between process runs. Its standard error times
        Student's t is the half width of the fraction, and the interval is between the quantiles at both
        ends. An end beyond the samples is None.
        """
        value, clusters = self.value(quantile), len(self.runs)
        below = np.array([np.mean(run <= value) for run in self.runs])
        residuals = self._run_weights * (below - float((self._run_weights * below).sum()))
        error = math.sqrt(clusters / (clusters - 1) * float((residuals**2).sum()))
        half = float(student_quantile(1 - confidence, clusters - 1)) * error
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
