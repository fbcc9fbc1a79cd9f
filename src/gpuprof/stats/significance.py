# SPDX-License-Identifier: Apache-2.0
"""Statistics of a comparison: means with their uncertainty, Welch's test, and many tests at once.

Every function works on columns: one element, or one row, for each thing that is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

TRIMMED_SHARE = 0.2  # of the samples, at each end
_STEPS_OF_FRACTION = 300
_MOST_NEWTON_STEPS = 300
_LARGEST_T = 1e12
_SMALLEST = 1e-300
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


def student_p_value(t: Floats, freedom: Floats) -> Floats:
    """Return how probable a t at least as far from 0 is: I_x(freedom / 2, 1 / 2), x = f / (f + t^2)."""
    finite = np.where(np.isinf(t), 0.0, t)
    x = np.where(np.isinf(t), 0.0, freedom / (freedom + finite**2))
    return _incomplete_beta(freedom / 2, x)


def student_quantile(level: float, freedom: Floats) -> Floats:
    """Return the t that is exceeded on either side with a probability of `level`, by Newton's method.

    The probability falls ever more slowly with t, and the normal quantile lies below Student's: from there
    each step stays below the root, so none can go astray.
    """
    shared, place = np.unique(np.round(freedom, 3), return_inverse=True)
    wanted = min(max(level, _SMALLEST), 1.0)
    t = np.full(len(shared), -NormalDist().inv_cdf(wanted / 2))
    for _ in range(_MOST_NEWTON_STEPS):
        step = (student_p_value(t, shared) - wanted) / (2 * _student_density(t, shared))
        t = t + np.maximum(step, 0.0)
        if bool((step <= 1e-14 * t).all()):
            break
    found: Floats = np.minimum(t, _LARGEST_T)[place.reshape(-1)]
    return found


def _student_density(t: Floats, freedom: Floats) -> Floats:
    half = [math.lgamma((f + 1) / 2) - math.lgamma(f / 2) for f in freedom.tolist()]
    scale = np.exp(np.array(half)) / np.sqrt(math.pi * freedom)
    return np.asarray(scale * np.exp(-(freedom + 1) / 2 * np.log1p(t**2 / freedom)))


def _incomplete_beta(a: Floats, x: Floats) -> Floats:
    """Return I_x(a, 1/2) by its continued fraction (NIST Handbook, 8.17.22), evaluated from the front."""
    b = 0.5
    mirrored = x > (a + 1) / (a + b + 2)
    first = np.where(mirrored, b, a)
    second = np.where(mirrored, a, b)
    at = np.clip(np.where(mirrored, 1 - x, x), 0.0, 1.0)
    beta = np.array([math.lgamma(p) + math.lgamma(b) - math.lgamma(p + b) for p in a.tolist()])
    with np.errstate(divide="ignore", under="ignore"):
        front = np.exp(first * np.log(at) + second * np.log1p(-at) - beta) / first
    value = np.where(at <= 0, 0.0, front * _fraction(first, second, at))
    found: Floats = np.clip(np.where(mirrored, 1 - value, value), 0.0, 1.0)
    return found


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Lentz's method, as Thompson and Barnett modified it (J. Comput. Phys. 64, 1986)."""
    c = np.ones_like(x)
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d.copy()
    for m in range(1, _STEPS_OF_FRACTION):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            step = c * d
            value = value * step
        if bool((np.abs(step - 1) < 1e-13).all()):
            break
    return np.asarray(value)


def _not_zero(values: Floats) -> Floats:
    kept: Floats = np.where(np.abs(values) < _SMALLEST, _SMALLEST, values)
    return kept


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
