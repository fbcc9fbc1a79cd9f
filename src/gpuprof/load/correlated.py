# SPDX-License-Identifier: Apache-2.0
"""Intervals of figures of one run, whose requests are correlated: one slow request delays those after it.

The run is cut into BATCHES consecutive batches. The variance of a count between them is a multiple of that of
independent requests, the inflation: so many requests count as one (batch means; Law, Simulation Modeling and
Analysis, 5th ed., 9.5). If neighboring batches are correlated too, the run is too short for any interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.stats.distributions import scipy_module, student_quantile
from gpuprof.stats.quantiles import CONFIDENCE, order_statistic, samples_needed

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

BATCHES = 20
_COMMON = 0.9
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Fraction:
    """A fraction of the requests of a run with its 95% interval; `inflation` requests count as one."""

    low: float
    value: float
    high: float
    inflation: float
    is_correlated: bool


@dataclass(frozen=True, slots=True)
class RunQuantile:
    """A quantile of one run with its 95% interval; an end is infinite where failed requests decide it.

    `effective` is how many independent requests the run is worth. The ends are None if these are too few, or
    if neighboring batches are correlated.
    """

    value: float
    low: float | None
    high: float | None
    effective: float
    is_correlated: bool


def fraction_of(flags: Floats, common: Floats | None = None) -> Fraction:
    """Return the fraction of flags (0 or 1, in the order of the requests).

    Few flags do not show how correlated they are: `common` are flags that are more frequent.
    """
    inflation = max(inflation_of(flags), 1.0 if common is None else inflation_of(common))
    low, value, high = _fraction_interval(flags, inflation)
    return Fraction(low, value, high, inflation, is_correlated(batch_means(flags)))


def fraction_above(values: Floats, limit: float) -> Fraction:
    """Return the fraction of values that are not below a limit; they are in the order of their requests."""
    return fraction_of((values >= limit).astype(np.float64), _common(values))


def quantile_of_run(values: Floats, share: float) -> RunQuantile:
    """Return a quantile of values in the order of their requests; failed ones are infinite.

    Its ends are order statistics, at the ends of the exact binomial interval (Clopper and Pearson, Biometrika
    26, 1934) for as many independent values as the run is worth.
    """
    ordered, count = np.sort(values), len(values)
    value = order_statistic(ordered, share)
    found = fraction_of((values > value).astype(np.float64), _common(values))
    effective = count / found.inflation
    if found.is_correlated or effective < samples_needed(share):
        return RunQuantile(value, None, None, effective, found.is_correlated)
    below, tail = share * effective, (1 - CONFIDENCE) / 2
    beta = scipy_module("special").betaincinv
    low = float(beta(below, effective - below + 1, tail))
    high = float(beta(below + 1, effective - below, 1 - tail))
    return RunQuantile(
        value, order_statistic(ordered, low), order_statistic(ordered, high), effective, is_correlated=False
    )


def _common(values: Floats) -> Floats:
    return (values > order_statistic(np.sort(values), _COMMON)).astype(np.float64)


def relative_rate_error(ends_ns: Floats, units: Floats, start_ns: int, end_ns: int) -> float | None:
    """Return the standard error of units per second, relative to it, over BATCHES parts of the time.

    None without units.
    """
    edges = np.linspace(start_ns, max(end_ns, start_ns + 1), BATCHES + 1)
    found, _ = np.histogram(ends_ns, edges, weights=units)
    mean = float(found.mean())
    return float(found.std(ddof=1)) / math.sqrt(BATCHES) / mean if mean > 0 else None


def batch_means(values: Floats) -> Floats:
    """Return the mean of each batch."""
    return np.array([float(part.mean()) for part in np.array_split(values, BATCHES)])


def inflation_of(flags: Floats) -> float:
    """Return the variance of the numbers in batches relative to that of independent requests, at least 1."""
    means = batch_means(flags)
    mean = float(means.mean())
    if mean == 0:
        return 1.0
    return max(float(means.var(ddof=1)) * (len(flags) / BATCHES) / (mean * (1 - mean) or 1.0), 1.0)


def _fraction_interval(flags: Floats, inflation: float) -> tuple[float, float, float]:
    """Return low, value and high of a fraction: exact for Poisson counts (Garwood, Biometrika 28, 1936)."""
    count, total = float(flags.sum()), len(flags)
    if count == 0:
        return 0.0, 0.0, 1 - (1 - CONFIDENCE) ** (inflation / total)
    effective, tail = count / inflation, (1 - CONFIDENCE) / 2
    gamma = scipy_module("special").gammaincinv
    low, high = gamma(effective, tail), gamma(effective + 1, 1 - tail)
    return float(low) * inflation / total, count / total, min(float(high) * inflation / total, 1.0)


def mean_interval(values: Floats) -> tuple[float, float]:
    """Return the ends of a mean's interval, Student's over the batches."""
    means = batch_means(values)
    half = float(student_quantile(1 - CONFIDENCE, BATCHES - 1)) * float(means.std(ddof=1))
    return float(means.mean()) - half / math.sqrt(BATCHES), float(means.mean()) + half / math.sqrt(BATCHES)


def is_correlated(means: Floats) -> bool:
    """Whether neighboring batches are correlated (5%, one-sided)."""
    centered = means - means.mean()
    squares = float((centered**2).sum())
    if squares <= (_ROUNDING * float(means.mean())) ** 2:  # the batches do not differ
        return False
    lag = float((centered[:-1] * centered[1:]).sum()) / squares
    return lag > 1.645 / math.sqrt(BATCHES)
