# SPDX-License-Identifier: Apache-2.0
"""Intervals of quantiles in queues whose quantiles are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from queue_truths import MD1_P99, mm1_quantile, times_in_queue, waits

from gpuprof.load.intervals import (
    FEWEST_RUNS,
    IntervalMethod,
    correlation_length,
    quantile_of_batches,
    quantile_of_runs,
)
from gpuprof.stats.quantiles import quantile_of


def test_waits_are_lindleys_recursion() -> None:
    generator = np.random.default_rng(3)
    gaps, services = generator.exponential(1.2, 500), generator.exponential(1.0, 500)
    expected = [0.0]
    for gap, service in zip(gaps[1:], services[:-1], strict=True):
        expected.append(max(0.0, expected[-1] + service - gap))
    np.testing.assert_allclose(waits(gaps, services), expected, atol=1e-9)


@pytest.mark.parametrize(("load", "requests"), [(0.5, 8_000), (0.7, 20_000), (0.8, 50_000)])
@pytest.mark.slow
def test_intervals_of_runs_hold_the_truth_of_mm1_in_simulations(load: float, requests: int) -> None:
    generator = np.random.default_rng(1)
    found = [
        quantile_of_runs([times_in_queue(load, requests, generator) for _ in range(8)], 0.99)
        for _ in range(60)
    ]
    true = mm1_quantile(load, 0.99)
    assert all(each.is_sufficient for each in found)
    # 95 of 100 are expected; P(B(60, 0.95) < 52) is 1 in 1,000.
    assert sum(each.low <= true <= each.high for each in found) >= 52  # type: ignore[operator]


def test_the_rank_interval_of_one_run_does_not_hold_the_truth_in_simulations() -> None:
    generator = np.random.default_rng(1)
    true, held = mm1_quantile(0.8, 0.99), 0
    for _ in range(60):
        found = quantile_of(times_in_queue(0.8, 10_000, generator), 0.99)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= true <= found.high
    assert held < 30


def test_intervals_of_md1_hold_the_truth_in_simulations() -> None:
    generator = np.random.default_rng(2)
    runs = [[times_in_queue(0.8, 25_000, generator, is_fixed=True) for _ in range(8)] for _ in range(40)]
    found = [quantile_of_runs(each, 0.99) for each in runs]
    assert all(each.is_sufficient for each in found)
    assert sum(each.low <= MD1_P99[0.8] <= each.high for each in found) >= 34  # type: ignore[operator]


def test_batches_of_a_long_run() -> None:
    generator = np.random.default_rng(5)
    found = [quantile_of_batches(times_in_queue(0.5, 120_000, generator)[1_000:], 0.99) for _ in range(30)]
    true = mm1_quantile(0.5, 0.99)
    assert {each.method for each in found} == {IntervalMethod.BATCHES}
    assert sum(each.low <= true <= each.high for each in found) >= 25  # type: ignore[operator]


def test_runs_that_are_too_short_have_no_interval() -> None:
    generator = np.random.default_rng(1)
    found = quantile_of_runs([times_in_queue(0.9, 10_000, generator) for _ in range(10)], 0.99)
    assert (found.low, found.high) == (None, None)
    assert found.insufficiency is not None
    assert found.insufficiency.code == "short_runs"
    # 1 / (1 - sqrt(load))^2 service times relax the queue: far more than 10,000 requests are needed.
    assert found.insufficiency.values["needed"] > 30_000


def test_few_runs_have_no_interval() -> None:
    runs = [np.random.default_rng(each).exponential(1, 1_000) for each in range(FEWEST_RUNS - 1)]
    found = quantile_of_runs(runs, 0.5)
    assert found.insufficiency is not None
    assert found.insufficiency.code == "too_few_runs"
    assert found.value == pytest.approx(math.log(2), rel=0.1)
    nothing = quantile_of_runs([], 0.99)
    assert (nothing.value, nothing.is_sufficient) == (None, False)


def test_failed_requests_leave_the_interval_open_above() -> None:
    runs = [np.random.default_rng(each).exponential(1, 2_000) for each in range(6)]
    runs[0][::20] = math.inf
    found = quantile_of_runs(runs, 0.99)
    assert found.high == math.inf
    assert found.low == pytest.approx(-math.log(0.01), rel=0.3)


def test_independent_requests_count_each() -> None:
    runs = [np.random.default_rng(each).exponential(1, 4_000) for each in range(6)]
    assert correlation_length(runs, 0.9) == pytest.approx(1, abs=0.15)
    assert correlation_length([np.repeat(each, 10) for each in runs], 0.9) == pytest.approx(10, rel=0.15)
    assert correlation_length([np.ones(100)], 0.9) == 1.0
