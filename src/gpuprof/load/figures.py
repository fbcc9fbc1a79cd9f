# SPDX-License-Identifier: Apache-2.0
"""Figures of request rows: quantiles from the plan, rates, Little's law, and the verdict on a target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof.bench.results.target import LatencyTarget
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.load.correlated import (
    BATCHES,
    batch_means,
    fraction_above,
    is_correlated,
    mean_interval,
)
from gpuprof.load.requests import Rows, is_ok, latency_ns, lateness_ns, service_ns
from gpuprof.stats.quantiles import order_statistic, samples_needed

Floats = npt.NDArray[np.float64]
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds at quantiles; None with too few requests, and where failed requests decide the quantile."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """N = X R (Little, Operations Research 9, 1961) from the first to the last planned arrival.

    `in_system` is the mean number of requests planned and not ended, `rate_times_latency` the completions per
    second times their mean latency. They differ where the queue grows.
    """

    in_system: float
    rate_times_latency: float

    @property
    def gap(self) -> float:
        """Return the difference relative to the number in the system."""
        return abs(self.in_system - self.rate_times_latency) / self.in_system if self.in_system else 0.0


def latencies_s(rows: Rows) -> Floats:
    """Return the latency of each request from its plan; infinite where it has no successful response."""
    return np.where(is_ok(rows), latency_ns(rows) / 1e9, np.inf)


def distribution_of(values_s: Floats) -> Distribution:
    """Return the figures of seconds; a quantile is an order statistic, with no interpolation."""
    ordered = np.sort(values_s)
    mean = float(ordered.mean()) if len(ordered) else math.inf
    p50, p90, p95, p99, p999 = (_finite(quantile(ordered, each)) for each in _QUANTILES)
    maximum = _finite(float(ordered[-1]) if len(ordered) else math.inf)
    return Distribution(len(ordered), _finite(mean), p50, p90, p95, p99, p999, maximum)


def quantile(ordered: Floats, share: float) -> float:
    """Return the smallest of sorted values that is not below a fraction of them; infinite for too few."""
    if len(ordered) * (1 - share) < 1 - 1e-9:
        return math.inf
    return order_statistic(ordered, share)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def service_distribution(rows: Rows) -> Distribution:
    """Return the times from sending to the end, of requests that succeeded."""
    return distribution_of(service_ns(rows[is_ok(rows)]) / 1e9)


def lateness_distribution(rows: Rows) -> Distribution:
    """Return the times from the plan to sending, of requests that were sent: the queue before the target."""
    return distribution_of(lateness_ns(rows[rows["sent_ns"] > 0]) / 1e9)


def generator_lateness_s(rows: Rows, concurrency: int | None) -> Floats:
    """Return how late those requests were sent that found no queue and the target free: the generator's part.

    `rows` are in the order of the plan; `concurrency` None is no cap.
    """
    sent = rows[rows["sent_ns"] > 0]
    planned_ns = sent["planned_ns"]
    former = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(sent["sent_ns"])[:-1]])
    started = np.searchsorted(np.sort(sent["sent_ns"]), planned_ns, "right")
    in_service = started - np.searchsorted(np.sort(sent["end_ns"]), planned_ns, "right")
    is_free = former <= planned_ns
    if concurrency is not None:
        is_free &= in_service < concurrency
    late_s: Floats = (sent["sent_ns"] - planned_ns)[is_free] / 1e9
    return late_s


def littles_law(rows: Rows) -> LittlesLaw | None:
    """Return both sides of Little's law; None where all were planned at one moment, or none succeeded."""
    if not is_ok(rows).any():
        return None
    begin, end = int(rows["planned_ns"].min()), int(rows["planned_ns"].max())
    if end <= begin:
        return None
    inside_ns = np.minimum(rows["end_ns"], end) - np.minimum(rows["planned_ns"], end)
    completed = rows["end_ns"] <= end
    return LittlesLaw(
        float(inside_ns.sum() / (end - begin)),
        float(latency_ns(rows[completed]).sum() / (end - begin)),
    )


# --- the verdict on a target ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetJudgement:
    """Whether a latency target is met, and the fraction of requests above its limit with a 95% interval.

    The fraction and its ends are None for targets of the mean and the maximum, and with too few requests.
    """

    verdict: TargetVerdict
    above: float | None = None
    low: float | None = None
    high: float | None = None
    is_correlated: bool = False


def requests_needed(found: TargetJudgement, count: int, share: float) -> int | None:
    """Return about how many requests an inconclusive target needs, if their fraction above it stays the same.

    None where nothing is known, or the fraction is so close to 1 - q that 100 times as many are not enough.
    """
    above, low, high, limit = found.above, found.low, found.high, 1 - share
    if above is None or low is None or high is None or above == limit:
        return None
    if above:
        # The width of the interval is in proportion to one over the root of the number.
        end = high if above < limit else low
        factor = ((end - above) / (limit - above)) ** 2
    else:
        factor = high / limit  # without any above, its end is in proportion to one over the number
    return math.ceil(_SPARE * count * factor) if 1 <= factor <= _MOST_TIMES else None


_SPARE = 2  # the fraction of the longer run will be another one
_MOST_TIMES = 100


def requests_judged(share: float) -> int:
    """Return the fewest requests of one run on which a quantile is judged."""
    return max(samples_needed(share), 2 * BATCHES)


def judge(rows: Rows, target: LatencyTarget) -> TargetJudgement:
    """Judge the latencies of one run against a target."""
    return judge_seconds(latencies_s(rows), target)


def judge_seconds(latencies: Floats, target: LatencyTarget) -> TargetJudgement:
    """Judge times in the order of their requests against a target; those of failed requests are infinite.

    A quantile is below the limit if the fraction of requests above the limit is below 1 - q. Requests of one
    run are correlated, and so many of them count as one (`gpuprof.load.correlated`). Where neighboring
    batches are correlated too, the run is too short, and the verdict inconclusive.
    """
    if not len(latencies):
        return TargetJudgement(TargetVerdict.INCONCLUSIVE)
    if target.figure == "max":
        is_met = float(latencies.max()) < target.limit_s
        return TargetJudgement(TargetVerdict.MET if is_met else TargetVerdict.MISSED)
    share = target.share
    if share is None:
        return _judge_mean(latencies, target.limit_s)
    if len(latencies) < requests_judged(share):
        return TargetJudgement(TargetVerdict.INCONCLUSIVE)
    found = fraction_above(latencies, target.limit_s)
    verdict = _side(found.low, found.high, 1 - share)
    value = found.value
    if found.is_correlated and min(value / (1 - share), (1 - share) / value if value else 0) > _FAR:
        verdict = TargetVerdict.INCONCLUSIVE
    return TargetJudgement(verdict, value, found.low, found.high, found.is_correlated)


# A fraction ten times too large or too small needs no precise interval.
_FAR = 0.1


def _judge_mean(latencies: Floats, limit_s: float) -> TargetJudgement:
    if not np.isfinite(latencies).all():
        return TargetJudgement(TargetVerdict.MISSED)
    if len(latencies) < 2 * BATCHES:
        return TargetJudgement(TargetVerdict.INCONCLUSIVE)
    low, high = mean_interval(latencies)
    correlated = is_correlated(batch_means(latencies))
    verdict = TargetVerdict.INCONCLUSIVE if correlated else _side(low, high, limit_s)
    return TargetJudgement(verdict, is_correlated=correlated)


def _side(low: float, high: float, limit: float) -> TargetVerdict:
    if high < limit:
        return TargetVerdict.MET
    return TargetVerdict.MISSED if low >= limit else TargetVerdict.INCONCLUSIVE
