# SPDX-License-Identifier: Apache-2.0
"""Intervals of quantiles of a queue, from independent runs or from batches of one long run.

Latencies of one run of a queue are correlated: after a slow request the next ones are slow too. The rank
interval of a quantile assumes that they are independent, and holds the true p99 of an M/M/1 queue at 80%
load in 17 of 100 runs instead of 95. So the interval is Student's, over the quantiles of runs or batches
(method of batch means; Law, Simulation Modeling and Analysis, 5th ed., 9.5), and each of them must be much
longer than the correlation. Otherwise the result has no interval, and the reason: a value, not an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.bench.facts import TextEnum
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.quantiles import CONFIDENCE, samples_needed
from gpuprof.stats.ratio_test import geometric_mean

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

FEWEST_RUNS = 5
BATCHES = 20


class IntervalMethod(TextEnum):
    """What the interval is over."""

    RUNS = "independent runs"
    BATCHES = "batches of one run"


@dataclass(frozen=True, slots=True)
class QueueQuantile:
    """A quantile of latencies in a queue, in the unit of the latencies.

    `low` and `high` are None and `insufficiency` has the reason where the runs are too few or too short.
    `value` is the geometric mean over the runs, None without any request. `effective` is how many independent
    requests those of one run are worth.
    """

    quantile: float
    method: IntervalMethod
    groups: int
    value: float | None
    low: float | None
    high: float | None
    effective: float
    insufficiency: LoadReason | None = None

    @property
    def is_sufficient(self) -> bool:
        """Whether there is an interval."""
        return self.insufficiency is None


def quantile_of_runs(
    runs: Sequence[Floats], quantile: float, confidence: float = CONFIDENCE
) -> QueueQuantile:
    """Return a quantile with its interval over independent runs, such as runs of different seeds.

    Latencies are positive; those of requests that failed are infinite, and the interval is then open above.
    """
    return _over_groups([run for run in runs if len(run)], quantile, confidence, IntervalMethod.RUNS)


def lower_end_of_runs(
    runs: Sequence[Floats], quantile: float, confidence: float = CONFIDENCE
) -> float | None:
    """Return the lower end of a quantile's interval, also of runs that are too short for an interval.

    Runs from an empty queue that are too short have too low quantiles: what they show to be slow is slow.
    None with too few runs.
    """
    values = [float(np.quantile(run, quantile, method="higher")) for run in runs if len(run)]
    return None if len(values) < FEWEST_RUNS else _student_ends(np.array(values), confidence)[0]


def quantile_of_batches(
    latencies: Floats, quantile: float, confidence: float = CONFIDENCE, batches: int = BATCHES
) -> QueueQuantile:
    """Return a quantile with its interval over batches of one run, in the order of arrival.

    The run must not contain its start from an empty queue.
    """
    parts = np.array_split(latencies, batches) if len(latencies) >= batches else [latencies]
    return _over_groups([each for each in parts if len(each)], quantile, confidence, IntervalMethod.BATCHES)


def _over_groups(
    groups: list[Floats], quantile: float, confidence: float, method: IntervalMethod
) -> QueueQuantile:
    values = np.array([float(np.quantile(each, quantile, method="higher")) for each in groups])
    correlation = correlation_length(groups, quantile) if groups else 1.0
    shortest = min(map(len, groups), default=0)
    effective = shortest / correlation
    found = _insufficiency(len(groups), shortest, effective, correlation, quantile, confidence)
    value = None if not groups else geometric_mean(values)
    low, high = (None, None) if found is not None else _student_ends(values, confidence)
    return QueueQuantile(quantile, method, len(groups), value, low, high, effective, found)


def _insufficiency(
    groups: int, shortest: int, effective: float, correlation: float, quantile: float, confidence: float
) -> LoadReason | None:
    least = samples_needed(quantile, confidence)
    if groups < FEWEST_RUNS:
        return reason("too_few_runs", runs=groups, least=FEWEST_RUNS)
    if effective < least:
        return reason(
            "short_runs",
            requests=shortest,
            effective=effective,
            percent=100 * quantile,
            least=least,
            needed=math.ceil(least * correlation),
        )
    return None


def _student_ends(values: Floats, confidence: float) -> tuple[float, float]:
    """Return the ends of Student's interval of the logarithms, since quantiles of a queue are skewed."""
    if not np.isfinite(values).all():
        return float(values.min()), math.inf
    if values.min() <= 0:
        return float(values.min()), float(values.max())
    logs, count = np.log(values), len(values)
    half = float(student_quantile(1 - confidence, count - 1)) * float(logs.std(ddof=1)) / math.sqrt(count)
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def correlation_length(groups: Sequence[Floats], quantile: float) -> float:
    """Return how many consecutive requests are worth one independent one, for a quantile; at least 1.

    It is the integrated autocorrelation time of "slower than the quantile", over all runs around their common
    mean. The sum ends where two consecutive terms are not positive (initial positive sequence; Geyer,
    Statistical Science 7, 1992).
    """
    pooled = np.concatenate(groups)
    threshold = float(np.quantile(pooled, quantile, method="higher"))
    slow = [(each >= threshold).astype(np.float64) for each in groups]
    mean = float(np.concatenate(slow).mean())
    if not 0 < mean < 1:
        return 1.0
    lags = min(map(len, groups))
    sums = np.zeros(lags)
    for each in slow:
        sums += _products_at_lags(each[:lags] - mean)
    return _positive_sum(sums / sums[0]) if sums[0] > 0 else 1.0


def _products_at_lags(centered: Floats) -> Floats:
    """Return the sum of products at each lag, by the Fourier transform."""
    size = 1 << (2 * len(centered) - 1).bit_length()
    spectrum = np.fft.rfft(centered, size)
    products: Floats = np.fft.irfft(spectrum * np.conj(spectrum), size)[: len(centered)]
    return products


def _positive_sum(correlations: Floats) -> float:
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    used = pairs[: int(ends[0])] if len(ends) else pairs
    return max(1.0, 2 * float(used.sum()) - 1.0)
