# SPDX-License-Identifier: Apache-2.0
"""The highest rate of a server whose capacity is known: M/M/1, which meets its target up to 80% load."""

from __future__ import annotations

import dataclasses
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
from gpuprof.load.search import _value, find_max_rate, lowest_rate

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
    assert {"short_runs_at_rate", "never_met"} <= set(codes(found))
    # The number of requests is that of this rate: runs at the others have other numbers.
    assert found.reasons[0].values["rate"] == found.probes[0].rate
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


def test_a_missed_rate_is_not_halved_to_runs_without_requests() -> None:
    lengths: list[int] = []

    def measure(rate: float, seed: int) -> Any:
        lengths.append(round(10 * rate))
        return np.random.default_rng(seed).uniform(0.03, 0.04, lengths[-1])

    target = parse_target("p99<1ms")
    found = find_max_rate(measure, target, 200.0, lowest=lowest_rate(target, 10.0))
    # 459 independent requests bound a p99 on both sides at 99%: no run with fewer can meet it.
    assert {each.rate for each in found.probes} == {200.0, 100.0, 50.0}
    assert min(lengths) == 500
    assert (found.low, found.high, found.is_conclusive) == (None, 50.0, False)
    assert "never_met" in codes(found)
    (why,) = [each for each in found.reasons if each.code == "lower_rates_short"]
    assert why.values == {"rate": 45.9, "percent": 99, "least": 459}


def test_failed_requests_miss_the_target() -> None:
    def measure(rate: float, seed: int) -> Any:
        latencies = np.random.default_rng(seed).uniform(0.001, 0.002, 3_000)
        return np.where(np.arange(3_000) % 20 == 0, math.inf, latencies) if rate > 100 else latencies

    found = find_max_rate(measure, parse_target("p99<10ms"), 60)
    assert found.low is not None
    assert found.high is not None
    assert 97 < found.low <= 100 < found.high < 103


def disturbed(slow: dict[float, float], highest: float) -> Callable[[float, int], Any]:
    """Return a p90 of 19 ms up to a rate, 30 ms beyond it, and others at the rates in `slow`."""

    def measure(rate: float, seed: int) -> Any:
        p90_s = slow.get(rate, 0.019 if rate <= highest else 0.030)
        return p90_s * np.random.default_rng(seed).uniform(0, 1 / 0.9, 2_000)

    return measure


def test_a_disturbed_rate_is_not_named_the_highest() -> None:
    # The search halves gaps: another program disturbs the rate that it measures below an inconclusive one.
    slow = {1_919.53125: 0.263, 1_950.0: 0.02}
    found = find_max_rate(disturbed(slow, 1_950), parse_target("p90<20ms"), 975)
    verdicts = {each.rate: each.verdict for each in found.probes}
    assert verdicts[1_950] is TargetVerdict.INCONCLUSIVE
    assert (found.low, found.high) == (1_889.0625, 1_919.53125)
    assert found.value is not None
    assert found.low <= found.value < found.high
    assert (found.is_in_order, found.is_conclusive) == (False, False)
    (why,) = [each for each in found.reasons if each.code == "not_in_order"]
    assert why.values == {"missed": found.high, "rate": 1_950, "verdict": "inconclusive"}


def test_rates_in_order_have_no_note() -> None:
    found = find_max_rate(disturbed({}, 1_000), parse_target("p90<20ms"), 900)
    assert (found.is_in_order, found.is_conclusive, found.reasons) == (True, True, ())
    assert found.low is not None
    assert found.value is not None
    assert found.high is not None
    assert found.low <= found.value < found.high


def test_a_crossing_is_an_estimate_and_failed_runs_give_none() -> None:
    ended: list[BaseException] = []

    def measure(rate: float, seed: int) -> Any:
        if rate not in (4_000.0, 8_000.0):
            raise KeyboardInterrupt
        return disturbed({8_000.0: last_s}, 4_000)(rate, seed)

    last_s = 0.03
    found = find_max_rate(measure, parse_target("p90<20ms"), 4_000, ended_by=ended)
    # The line through both quantiles, of logarithms.
    crossing = 4_000 + 4_000 * math.log(20 / 19) / math.log(30 / 19)
    assert found.value == pytest.approx(crossing, rel=0.01)
    assert found.is_estimate
    last_s = math.inf
    found = find_max_rate(measure, parse_target("p90<20ms"), 4_000, ended_by=ended)
    assert (found.low, found.value, found.high, found.is_estimate) == (4_000, 4_000, 8_000, False)


def test_a_disturbed_search_crosses_where_most_of_its_rates_do() -> None:
    """Quantiles in the order of rates, as a busy machine gave them: 6,200/s is below the limit by chance."""
    quantiles = {900: 0.02, 3_200: 0.0434, 4_800: 0.194, 5_600: 0.102, 6_200: 0.0387, 6_400: 0.448}
    (found, *_) = find_max_rate(disturbed({}, 1_000), parse_target("p90<20ms"), 900).probes
    probes = tuple(
        dataclasses.replace(found, rate=rate, quantile=dataclasses.replace(found.quantile, value=value))
        for rate, value in quantiles.items()
    )
    pooled = math.log(0.194 * 0.102 * 0.0387) / 3
    begin = math.log(0.0434)
    crossing = 3_200 + 1_600 * (math.log(0.05) - begin) / (pooled - begin)
    assert _value(probes, 900, 6_400, 0.05) == pytest.approx(crossing)
    assert crossing < 3_600


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
