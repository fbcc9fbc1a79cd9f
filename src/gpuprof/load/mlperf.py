# SPDX-License-Identifier: Apache-2.0
"""Scenarios in the style of MLPerf inference: their rules, and verdicts on requests that were measured.

The rules are those of the MLPerf inference policies: minimum duration and counts, percentiles, and early
stopping. Only what LoadGen itself ran may be called an MLPerf result (`load/loadgen.py` runs it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.facts import TextEnum
from gpuprof.errors import BenchmarkError
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.load.requests import Rows, is_ok
from gpuprof.stats.distributions import binomial_quantile, scipy_module

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats, Integers

CONFIDENCE = 0.99
LEAST_DURATION_S = 600.0
OFFLINE_SAMPLES = 24_576
_COUNT_STEP = 8_192
_MARGIN_PART = 20  # the margin of error is this part of the tail


class MlperfScenario(TextEnum):
    """How queries arrive."""

    SINGLE_STREAM = "single-stream"
    MULTI_STREAM = "multi-stream"
    SERVER = "server"
    OFFLINE = "offline"


class ScenarioVerdict(TextEnum):
    """Whether a run follows the rules. `INSUFFICIENT`: a longer one might."""

    VALID = "valid"
    INVALID = "invalid"
    INSUFFICIENT = "inconclusive"


@dataclass(frozen=True, slots=True)
class ScenarioRules:
    """The rules of one scenario. `quantile` is None where latency does not count."""

    scenario: MlperfScenario
    quantile: float | None
    samples_per_query: int = 1
    least_duration_s: float = LEAST_DURATION_S
    least_queries: int = 1
    least_samples: int = 1
    latency_bound_s: float | None = None

    def with_bound(self, latency_bound_s: float) -> ScenarioRules:
        """Return the rules with a bound of the latency, which server needs."""
        return replace(self, latency_bound_s=latency_bound_s)

    def with_duration(self, least_duration_s: float) -> ScenarioRules:
        """Return the rules with another duration and no least counts but those of early stopping."""
        return replace(self, least_duration_s=least_duration_s, least_queries=1, least_samples=1)


RULES = {
    each.scenario: each
    for each in (
        ScenarioRules(MlperfScenario.SINGLE_STREAM, 0.9),
        ScenarioRules(MlperfScenario.MULTI_STREAM, 0.99, samples_per_query=8),
        ScenarioRules(MlperfScenario.SERVER, 0.99),
        ScenarioRules(MlperfScenario.OFFLINE, None, least_samples=OFFLINE_SAMPLES),
    )
}


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries in the order of their plan: nanoseconds of one clock, and whether each was completed.

    `sent_ns` and `end_ns` of a query that failed are ignored. `duration_s` is for how long queries were sent,
    0 for unknown: no query has to arrive at its very end.
    """

    planned_ns: Integers
    sent_ns: Integers
    end_ns: Integers
    completed: Integers
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        if len({len(self.planned_ns), len(self.sent_ns), len(self.end_ns), len(self.completed)}) != 1:
            raise BenchmarkError(
                "unequal_lengths", "the columns of the queries differ in length", hint="give one row a query"
            )

    def latencies_ns(self, *, from_plan: bool) -> Floats:
        """Return the latency of each query; that of one that failed is infinite."""
        begin = self.planned_ns if from_plan else self.sent_ns
        return np.where(self.completed != 0, (self.end_ns - begin).astype(np.float64), math.inf)


def queries_of(rows: Rows, duration_s: float | None = None, *, per_sample: bool = False) -> Queries:
    """Return requests as queries of the rules; with `per_sample` each sample of a batch is one."""
    times = np.maximum(rows["units"], 1) if per_sample else 1
    planned, sent, end, completed = (
        np.repeat(np.asarray(each, np.int64), times)
        for each in (rows["planned_ns"], rows["sent_ns"], rows["end_ns"], is_ok(rows))
    )
    return Queries(planned, sent, end, completed, duration_s or 0.0)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What the rules give for one run.

    `latency_s` is the percentile of the rules, and `early_stopping_s` the upper bound of it that early
    stopping gives (single-stream and multi-stream). `samples_per_s` is what server and offline are ranked by.
    """

    scenario: MlperfScenario
    verdict: ScenarioVerdict
    reasons: tuple[LoadReason, ...]
    queries: int
    duration_s: float
    quantile: float | None
    latency_s: float | None
    early_stopping_s: float | None
    samples_per_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in seconds."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        verdicts = {"scenario": str(self.scenario), "verdict": str(self.verdict)}
        return {**plain, **verdicts, "reasons": [each.to_dict() for each in self.reasons]}


def sample_size(quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the queries that estimate a quantile within a twentieth of its tail, up to a multiple of 8,192.

    z^2 p (1 - p) / ((1 - p) / 20)^2, where z is the normal quantile of the confidence (MLPerf inference
    rules, appendix on the number of queries).
    """
    tail = 1 - quantile
    z = NormalDist().inv_cdf((1 - confidence) / 2)
    count = z * z * quantile * tail / (tail / _MARGIN_PART) ** 2
    return math.ceil(count / _COUNT_STEP) * _COUNT_STEP


def stops_early(queries: int, over: int, quantile: float, confidence: float = CONFIDENCE) -> bool:
    """Whether so few queries over a bound show that the quantile is below it.

    If the quantile were at the bound, as few or fewer would be over it with a probability of
    P(Bin(n, 1 - p) <= over), which must be below 1 - confidence.
    """
    if over >= queries:
        return False
    probability = float(scipy_module("special").bdtr(over, queries, 1 - quantile))
    return probability < 1 - confidence


def queries_needed(quantile: float, over: int = 0, confidence: float = CONFIDENCE) -> int:
    """Return the fewest queries with which `over` of them beyond the bound still stop early."""
    low, high = over, over + 1
    while not stops_early(high, over, quantile, confidence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stops_early(middle, over, quantile, confidence) else (middle, high)
    return high


def early_stopping_estimate(latencies: Floats, quantile: float) -> float | None:
    """Return the upper bound of a quantile at 99%; None with too few queries.

    It is the highest latency that remains after as many were discarded as early stopping allows, less one.
    """
    count = len(latencies)
    discarded = binomial_quantile(count, 1 - quantile, 1 - CONFIDENCE) - 1
    if discarded < 1:
        return None
    return float(np.partition(latencies, count - discarded)[count - discarded])


def percentile_of(latencies: Floats, quantile: float) -> float:
    """Return the percentile as LoadGen takes it: the element n p of the sorted latencies, from 0."""
    place = min(int(len(latencies) * quantile), len(latencies) - 1)
    return float(np.partition(latencies, place)[place])


def judge(queries: Queries, rules: ScenarioRules) -> ScenarioResult:
    """Apply the rules of a scenario to queries. Raises BenchmarkError without queries or without a bound."""
    count = len(queries.planned_ns)
    if not count:
        raise BenchmarkError("no_queries", "there are no queries to judge", hint="run the scenario first")
    is_server = rules.scenario is MlperfScenario.SERVER
    if is_server and rules.latency_bound_s is None:
        raise BenchmarkError(
            "no_latency_bound", "the server scenario needs a latency bound", hint="add --slo 'p99<20ms'"
        )
    latencies = queries.latencies_ns(from_plan=is_server) / 1e9
    latency, estimate = None, None
    if rules.quantile is not None:
        latency = percentile_of(latencies, rules.quantile)
        estimate = None if is_server else early_stopping_estimate(latencies, rules.quantile)
    duration_s = _duration_s(queries, rules.scenario)
    invalid = _invalid(queries, rules, latency)
    insufficient = [*_too_few(count, duration_s, rules), *_not_early(latencies, rules, estimate)]
    verdict = ScenarioVerdict.INSUFFICIENT if insufficient else ScenarioVerdict.VALID
    return ScenarioResult(
        scenario=rules.scenario,
        verdict=ScenarioVerdict.INVALID if invalid else verdict,
        reasons=(*invalid, *insufficient),
        queries=count,
        duration_s=duration_s,
        quantile=rules.quantile,
        latency_s=latency,
        early_stopping_s=estimate,
        samples_per_s=_samples_per_s(queries, rules),
    )


def _duration_s(queries: Queries, scenario: MlperfScenario) -> float:
    """Return the time that the rules count: to the last arrival, the last query sent, or the last end."""
    end = int(queries.sent_ns[-1])
    if scenario is MlperfScenario.SERVER:
        end = int(queries.planned_ns[-1])
    elif scenario is MlperfScenario.OFFLINE:
        end = _last_end_ns(queries)
    return max((end - int(queries.planned_ns[0])) / 1e9, queries.duration_s)


def _last_end_ns(queries: Queries) -> int:
    ended = queries.end_ns[queries.completed != 0]
    return int(ended.max()) if len(ended) else int(queries.planned_ns[-1])


def _samples_per_s(queries: Queries, rules: ScenarioRules) -> float:
    """Return the completed samples per second, from the first arrival to the last end.

    As in LoadGen, the last sample of server is not counted: its arrival ends the time of arrivals.
    """
    done = int((queries.completed != 0).sum()) * rules.samples_per_query
    done -= rules.scenario is MlperfScenario.SERVER
    elapsed_s = (_last_end_ns(queries) - int(queries.planned_ns[0])) / 1e9
    return done / elapsed_s if elapsed_s > 0 else 0.0


def _invalid(queries: Queries, rules: ScenarioRules, latency: float | None) -> list[LoadReason]:
    found = []
    failed = int((queries.completed == 0).sum())
    if failed:
        found.append(reason("failed_queries", failed=failed, queries=len(queries.completed)))
    bound, quantile = rules.latency_bound_s, rules.quantile
    if bound is not None and latency is not None and quantile is not None and latency > bound:
        percent = 100 * quantile
        if math.isfinite(latency):
            found.append(reason("latency_bound", percent=percent, latency_s=latency, bound_s=bound))
        else:
            found.append(reason("failed_quantile", percent=percent, bound_s=bound))
    return found


def _too_few(count: int, duration_s: float, rules: ScenarioRules) -> list[LoadReason]:
    found = []
    if duration_s < rules.least_duration_s:
        found.append(reason("too_short", seconds=duration_s, least_s=rules.least_duration_s))
    if count < rules.least_queries:
        found.append(reason("too_few_queries", queries=count, least=rules.least_queries))
    samples = count * rules.samples_per_query
    if samples < rules.least_samples:
        found.append(reason("too_few_samples", samples=samples, least=rules.least_samples))
    return found


def _not_early(latencies: Floats, rules: ScenarioRules, estimate: float | None) -> list[LoadReason]:
    """Return the reason why early stopping does not hold, if it does not."""
    count, quantile = len(latencies), rules.quantile
    if quantile is None:
        return []
    if rules.scenario is not MlperfScenario.SERVER:
        least = queries_needed(quantile, over=1)
        return [] if estimate is not None else [reason("too_few_queries", queries=count, least=least)]
    over = int((latencies > (rules.latency_bound_s or 0.0)).sum())
    if stops_early(count, over, quantile):
        return []
    if over > count * (1 - quantile):  # more queries of the same kind would not help
        return [reason("above_bound", over=over, queries=count, most=100 * (1 - quantile))]
    return [reason("early_stopping", over=over, queries=count, least=queries_needed(quantile, over))]
