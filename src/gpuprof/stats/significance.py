# SPDX-License-Identifier: Apache-2.0
"""Statistics of a comparison: means with their uncertainty, Welch's test, and many tests at once.

Every function works on columns: one element, or one row, for each thing that is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.stats.distributions import student_p_value, student_quantile

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

TRIMMED_SHARE = 0.2  # of the samples, at each end
_STRONGEST_CORRELATION = 0.75


@dataclass(frozen=True, slots=True)
class Means:
    """Estimated means, the variance of each estimate, and its degrees of freedom."""

    mean: Floats
    variance: Floats
    freedom: Floats


def plain_means(samples: Floats) -> Means:
    """Return the mean of each row of independent samples; a row needs two."""
    count = samples.shape[1]
    variance = samples.var(axis=1, ddof=1) / count
    return Means(samples.mean(axis=1), variance, np.full(len(samples), count - 1.0))


def trimmed_means(batches: Floats) -> Means:
    """Return the trimmed mean of each row, whose elements are means of batches in the order of time.

    Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61 (1974): the largest and
    the smallest fifth are left out of the mean and winsorised in its variance. So a first call that loads
    libraries, or a pause of the machine, neither moves the mean nor hides what happened otherwise.

    What is left of correlation between neighbours widens the variance by (1 + r) / (1 - r), as for an
    autoregressive series of the first order, with r their correlation where it is positive.
    """
    count = batches.shape[1]
    cut = int(TRIMMED_SHARE * count)
    kept = count - 2 * cut
    ordered = np.sort(batches, axis=1)
    mean = ordered[:, cut : count - cut].mean(axis=1)
    low, high = ordered[:, cut, None], ordered[:, count - cut - 1, None]
    winsorised = np.clip(batches, low, high)
    squares = winsorised.var(axis=1, ddof=1) * (count - 1)
    correlation = _neighbour_correlation(winsorised)
    variance = squares / (kept * (kept - 1)) * (1 + correlation) / (1 - correlation)
    return Means(mean, variance, np.full(len(batches), kept - 1.0))


def _neighbour_correlation(batches: Floats) -> Floats:
    centred = batches - batches.mean(axis=1, keepdims=True)
    squares = (centred**2).sum(axis=1)
    products = (centred[:, 1:] * centred[:, :-1]).sum(axis=1)
    found: Floats = np.divide(products, squares, out=np.zeros(len(batches)), where=squares > 0)
    count = batches.shape[1]
    # In few samples it comes out too low by (1 + 3 r) / count (Kendall, Biometrika 41, 1954).
    corrected: Floats = np.clip((found + 1 / count) / (1 - 3 / count), 0.0, _STRONGEST_CORRELATION)
    return corrected


@dataclass(frozen=True, slots=True)
class Contrast:
    """Differences of means, the standard error of each, its degrees of freedom and two-sided p-value."""

    difference: Floats
    error: Floats
    freedom: Floats
    p_value: Floats

    def half_width(self, level: float) -> Floats:
        """Return the half of the interval that holds the difference with a probability of 1 - `level`."""
        return student_quantile(level, self.freedom) * self.error


def welch(new: Means, old: Means) -> Contrast:
    """Compare two means whose variances may differ (Welch, Biometrika 34, 1947)."""
    variance = new.variance + old.variance
    parts = new.variance**2 / new.freedom + old.variance**2 / old.freedom
    # Without any spread the number of samples is all there is to go by.
    freedom = np.divide(variance**2, parts, out=new.freedom + old.freedom, where=parts > 0)
    difference, error = new.mean - old.mean, np.sqrt(variance)
    exact = np.where(difference == 0, 0.0, math.inf)
    t = np.divide(np.abs(difference), error, out=exact, where=error > 0)
    return Contrast(difference, error, freedom, student_p_value(t, freedom))


def discoveries(p_values: Floats, rate: float) -> tuple[Flags, float]:
    """Return which differences stand, and the level of each interval that goes with them.

    Benjamini and Hochberg, J. R. Statist. Soc. B 57 (1995): of what stands, a share of at most `rate` is
    false on average. Where nothing differs, anything stands with a probability of at most `rate`. The
    intervals are those of Benjamini and Yekutieli (JASA 100, 2005): at the level of `rate` times the share
    that stands, an interval leaves out 0 exactly where its difference stands.
    """
    count = len(p_values)
    if not count:
        return np.zeros(0, dtype=np.bool_), rate
    ordered = np.sort(p_values)
    below = np.flatnonzero(ordered <= rate * np.arange(1, count + 1) / count)
    level = rate * (int(below[-1]) + 1 if len(below) else 1) / count
    return p_values <= level if len(below) else np.zeros(count, dtype=np.bool_), level
