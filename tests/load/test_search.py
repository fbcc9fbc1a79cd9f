# SPDX-License-Identifier: Apache-2.0
"""The highest rate of a server whose capacity is known: M/M/1, which meets its target up to 80% load."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from queue_truths import mm1_quantile, times_in_queue
from refusals import refused

from gpuprof.bench.results.target import parse_target
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.load.search import find_max_rate

TARGET = parse_target(f"p99<{mm1_quantile(0.8, 0.99):.6f}s")


def server(requests: int, stream: int = 0) -> Callable[[float, int], Any]:
    def measure(rate: float, seed: int) -> Any:
        return times_in_queue(rate, requests, np.random.default_rng([stream, seed]))

    return measure


def codes(found: Any) -> list[str]:
    return [each.code for each in found.reasons]


@pytest.mark.parametrize("requests", [2_000, 10_000])
def test_the_interval_holds_the_capacity_in_simulations(requests: int) -> None:
    held = 0
    for stream in range(12):
        found = find_max_rate(server(requests, stream), TARGET, 0.5, highest=1.5)
        assert found.is_conclusive
        held += found.low <= 0.8 <= found.high  # type: ignore[operator]
    assert held >= 11


def test_longer_runs_narrow_the_interval_in_simulations() -> None:
    found = find_max_rate(server(50_000), TARGET, 0.5, highest=1.5)
    assert found.low is not None
    assert found.high is not None
    assert 0.74 < found.low < 0.8 < found.high < 0.88
    assert found.value == pytest.approx(0.8, abs=0.02)


def test_runs_that_are_too_short_do_not_show_that_a_target_is_met() -> None:
    found = find_max_rate(server(200), TARGET, 0.5, highest=1.5)
    assert found.low is None
    assert {"short_runs", "never_met"} <= set(codes(found))
    assert not [each for each in found.probes if each.verdict is TargetVerdict.MET]


def test_a_rate_that_is_never_missed_has_no_upper_end() -> None:
    found = find_max_rate(server(5_000), parse_target("p99<1000s"), 0.1, highest=0.4)
    assert (found.low, found.high, found.value) == (0.4, None, None)
    assert codes(found) == ["never_missed"]


def test_a_target_that_no_rate_meets() -> None:
    found = find_max_rate(server(2_000), parse_target("p99<1ms"), 0.5, most_rates=6)
    assert found.low is None
    assert found.high is not None
    assert "never_met" in codes(found)
    assert len(found.probes) == 6


def test_failed_requests_miss_the_target() -> None:
    def measure(rate: float, seed: int) -> Any:
        latencies = np.random.default_rng(seed).uniform(0.001, 0.002, 3_000)
        return np.where(np.arange(3_000) % 20 == 0, math.inf, latencies) if rate > 100 else latencies

    found = find_max_rate(measure, parse_target("p99<10ms"), 60)
    assert found.low is not None
    assert found.high is not None
    assert 97 < found.low <= 100 < found.high < 103


def test_what_cannot_be_searched_is_refused() -> None:
    with refused(BenchmarkError, "target_without_quantile", "mean"):
        find_max_rate(server(10), parse_target("mean<1s"), 1)
    for start in (0.0, -1.0, math.nan, math.inf):
        with refused(BenchmarkError, "invalid_rate"):
            find_max_rate(server(10), TARGET, start)
    with refused(BenchmarkError, "too_few_runs"):
        find_max_rate(server(10), TARGET, 1, runs=2)
    with refused(BenchmarkError, "invalid_precision"):
        find_max_rate(server(10), TARGET, 1, precision=0)
