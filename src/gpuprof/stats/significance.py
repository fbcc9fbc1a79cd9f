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
    from gpuprof.stats.arrays import Flags, Floats

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
    the smallest fifth are left out of the mean and winsorized in its variance. So a slow first call or a
    pause of the machine does not change the mean.

    The remaining correlation r of consecutive batches, if positive, multiplies the variance by
    (1 + r) / (1 - r), as for a first-order autoregressive series.
    """
    count = batches.shape[1]
    cut = int(TRIMMED_SHARE * count)
    kept = count - 2 * cut
    ordered = np.sort(batches, axis=1)
    mean = ordered[:, cut : count - cut].mean(axis=1)
    low, high = ordered[:, cut, None], ordered[:, count - cut - 1, None]
    winsorised = np.clip(batches, low, high)
    squares = winsorised.var(axis=1, ddof=1) * (count - 1)
    correlation = _serial_correlation(winsorised)
    variance = squares / (kept * (kept - 1)) * (1 + correlation) / (1 - correlation)
    return Means(mean, variance, np.full(len(batches), kept - 1.0))


def _serial_correlation(batches: Floats) -> Floats:
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
        """Return the half width of the interval at a confidence of 1 - `level`."""
        return student_quantile(level, self.freedom) * self.error


def welch(new: Means, old: Means) -> Contrast:
    """Compare two means whose variances may differ (Welch, Biometrika 34, 1947)."""
    variance = new.variance + old.variance
    parts = new.variance**2 / new.freedom + old.variance**2 / old.freedom
    # With a variance of 0, use the number of samples.
    freedom = np.divide(variance**2, parts, out=new.freedom + old.freedom, where=parts > 0)
    difference, error = new.mean - old.mean, np.sqrt(variance)
    exact = np.where(difference == 0, 0.0, math.inf)
    t = np.divide(np.abs(difference), error, out=exact, where=error > 0)
    return Contrast(difference, error, freedom, student_p_value(t, freedom))


def discoveries(p_values: Floats, rate: float) -> tuple[Flags, float]:
    """Return which differences are significant, and the level of their intervals.

    Benjamini and Hochberg, J. R. Statist. Soc. B 57 (1995): the false discovery rate is at most `rate`. If
    nothing differs, the probability of any significant difference is at most `rate`. The intervals are those
    of Benjamini and Yekutieli (JASA 100, 2005): at the level of `rate` times the significant fraction, an
    interval excludes 0 exactly if its difference is significant.
    """
    count = len(p_values)
    if not count:
        return np.zeros(0, dtype=np.bool_), rate
    ordered = np.sort(p_values)
    below = np.flatnonzero(ordered <= rate * np.arange(1, count + 1) / count)
    level = rate * (int(below[-1]) + 1 if len(below) else 1) / count
    return p_values <= level if len(below) else np.zeros(count, dtype=np.bool_), level
