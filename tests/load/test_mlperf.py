# SPDX-License-Identifier: Apache-2.0
"""The rules of MLPerf-style scenarios: counts by hand, and verdicts on queries of known latency."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.errors import BenchmarkError
from gpuprof.load.mlperf import (
    RULES,
    MlperfScenario,
    Queries,
    ScenarioRules,
    ScenarioVerdict,
    early_stopping_estimate,
    judge,
    percentile_of,
    queries_needed,
    sample_size,
    stops_early,
)

SHORT = {name: replace(each, least_duration_s=1.0) for name, each in RULES.items()}


def queries(latencies_s: Any, *, every_s: float = 0.01) -> Queries:
    planned = (np.arange(len(latencies_s)) * every_s * 1e9).astype(np.int64)
    ends = planned + np.round(np.asarray(latencies_s) * 1e9).astype(np.int64)
    return Queries(planned, planned, ends, np.ones(len(planned), dtype=np.int64))


def codes(rules: ScenarioRules, given: Queries) -> tuple[ScenarioVerdict, list[str]]:
    found = judge(given, rules)
    return found.verdict, [each.code for each in found.reasons]


@pytest.mark.parametrize(("quantile", "count"), [(0.9, 24_576), (0.95, 57_344), (0.99, 270_336)])
def test_the_sample_sizes_of_the_rules(quantile: float, count: int) -> None:
    assert sample_size(quantile) == count


@pytest.mark.parametrize(("quantile", "over", "least"), [(0.99, 0, 459), (0.9, 1, 64), (0.99, 1, 662)])
def test_the_least_counts_of_the_rules(quantile: float, over: int, least: int) -> None:
    assert queries_needed(quantile, over) == least


@pytest.mark.parametrize("quantile", [0.9, 0.99])
@pytest.mark.parametrize("over", [0, 3, 40])
def test_early_stopping_is_the_binomial_tail(quantile: float, over: int) -> None:
    least = queries_needed(quantile, over)
    for count in (least - 1, least):
        tail = math.fsum(
            math.comb(count, each) * (1 - quantile) ** each * quantile ** (count - each)
            for each in range(over + 1)
        )
        assert stops_early(count, over, quantile) == (tail < 0.01)
    assert not stops_early(least - 1, over, quantile)


def test_the_estimate_is_an_upper_bound_at_99_percent() -> None:
    generator = np.random.default_rng(0)
    estimates = [early_stopping_estimate(generator.exponential(1.0, 2_000), 0.9) for _ in range(400)]
    below = sum(each < math.log(10) for each in estimates if each is not None)
    assert below <= 10  # 4 are expected
    assert early_stopping_estimate(np.ones(63), 0.9) is None
    assert early_stopping_estimate(np.arange(64.0), 0.9) == 63


def test_a_percentile_is_an_element() -> None:
    values = np.arange(100.0)[::-1].copy()
    assert percentile_of(values, 0.99) == 99
    assert percentile_of(values, 0.9) == 90


def test_single_stream() -> None:
    rules = SHORT[MlperfScenario.SINGLE_STREAM]
    latencies = np.linspace(0.001, 0.009, 1_000)
    found = judge(queries(latencies), rules)
    assert (found.verdict, found.reasons) == (ScenarioVerdict.VALID, ())
    assert found.latency_s == pytest.approx(latencies[900])
    assert found.early_stopping_s is not None
    assert found.early_stopping_s > found.latency_s
    assert codes(rules, queries(latencies[:50])) == (
        ScenarioVerdict.INSUFFICIENT,
        ["too_short", "too_few_queries"],
    )


def test_multi_stream_counts_samples_of_queries() -> None:
    found = judge(queries(np.full(700, 0.002)), SHORT[MlperfScenario.MULTI_STREAM])
    assert found.verdict is ScenarioVerdict.VALID
    assert found.samples_per_s == pytest.approx(8 * 700 / (699 * 0.01 + 0.002))
    assert codes(SHORT[MlperfScenario.MULTI_STREAM], queries(np.full(661, 0.002)))[1] == ["too_few_queries"]


def test_server() -> None:
    rules = SHORT[MlperfScenario.SERVER].with_bound(0.005)
    fast = np.full(1_000, 0.001)
    assert judge(queries(fast), rules).verdict is ScenarioVerdict.VALID
    slow = fast.copy()
    slow[:8] = 0.02
    # The percentile is below the bound, and 8 of 1,000 do not show that it is.
    assert codes(rules, queries(slow)) == (ScenarioVerdict.INSUFFICIENT, ["early_stopping"])
    slow[:20] = 0.02
    assert codes(rules, queries(slow)) == (ScenarioVerdict.INVALID, ["latency_bound", "above_bound"])
    with refused(BenchmarkError, "no_latency_bound"):
        judge(queries(fast), SHORT[MlperfScenario.SERVER])


def test_the_latency_of_server_is_from_the_plan() -> None:
    given = queries(np.full(1_000, 0.02))
    late = replace(given, sent_ns=given.end_ns - 1_000_000)
    found = judge(late, SHORT[MlperfScenario.SERVER].with_bound(0.005))
    assert found.latency_s == pytest.approx(0.02)
    assert found.verdict is ScenarioVerdict.INVALID


def test_offline() -> None:
    rules = SHORT[MlperfScenario.OFFLINE]
    count = rules.least_samples
    planned, ends = np.zeros(count, dtype=np.int64), np.linspace(1, 4e9, count).astype(np.int64)
    found = judge(Queries(planned, planned, ends, np.ones(count, dtype=np.int64)), rules)
    assert found.verdict is ScenarioVerdict.VALID
    assert found.samples_per_s == pytest.approx(count / 4)
    assert found.latency_s is None
    short = Queries(planned[:9], planned[:9], ends[:9], np.ones(9, dtype=np.int64))
    assert codes(rules, short)[1] == ["too_short", "too_few_samples"]


def test_a_failed_query_makes_a_run_invalid_and_is_infinitely_late() -> None:
    given = queries(np.full(1_000, 0.001))
    completed = given.completed.copy()
    completed[:30] = 0
    found = judge(replace(given, completed=completed), SHORT[MlperfScenario.SERVER].with_bound(0.005))
    assert found.verdict is ScenarioVerdict.INVALID
    assert [each.code for each in found.reasons] == ["failed_queries", "failed_quantile", "above_bound"]
    assert found.latency_s == math.inf
    assert "inf" not in " ".join(map(str, found.reasons))


def test_no_queries_and_columns_of_unequal_length() -> None:
    with refused(BenchmarkError, "no_queries"):
        judge(queries([]), RULES[MlperfScenario.OFFLINE])
    one, two = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    with refused(BenchmarkError, "unequal_lengths"):
        Queries(one, one, two, one)
