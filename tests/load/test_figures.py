# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from queues import random_queue, served

from gpuprof.bench.results.target import parse_target
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.load.figures import (
    TargetJudgement,
    distribution_of,
    generator_lateness_s,
    judge,
    latencies_s,
    lateness_distribution,
    littles_law,
    requests_needed,
    service_distribution,
)
from gpuprof.load.requests import RequestStatus

# Of the sojourn time, with a service of 1: M/M/1 is exponential with the rate 1 - rho; M/D/1 by Erlang's sum.
MM1 = {0.5: (1.386, 9.210), 0.8: (3.466, 23.026)}
MD1 = {0.5: (1.000, 4.336), 0.8: (2.276, 11.356)}


@pytest.mark.parametrize(("known", "fixed_service"), [(MM1, False), (MD1, True)])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_quantiles_of_a_queue_are_those_of_theory(
    known: dict[float, tuple[float, float]], fixed_service: bool, load: float
) -> None:
    found = distribution_of(latencies_s(random_queue(load, 200_000, 1, fixed_service=fixed_service)))
    assert found.p50 == pytest.approx(known[load][0] * 1e-3, rel=0.03)
    assert found.p99 == pytest.approx(known[load][1] * 1e-3, rel=0.1)


def test_a_planted_stall_is_in_the_latency_and_not_in_the_service() -> None:
    # 200/s for 8 s with services of 1 ms, one of which takes a second: 200 requests wait after it
    planned = np.arange(1600) * 5_000_000
    service = np.full(1600, 1_000_000)
    service[400] = 1_000_000_000
    rows = served(planned, service)
    found = distribution_of(latencies_s(rows))
    # of the 1,600 the 16 worst are the one that stalled and those after it, 4 ms better each
    assert found.p99 == pytest.approx(1.0 - 16 * 0.004, abs=0.004)
    assert service_distribution(rows).p99 == pytest.approx(0.001)
    lateness = lateness_distribution(rows)
    assert lateness.p99 == pytest.approx(found.p99 - 0.001, abs=0.005)
    assert judge(rows, parse_target("p99<20ms")).verdict is not TargetVerdict.MET


def test_quantiles_are_those_that_were_seen() -> None:
    found = distribution_of(np.arange(1, 101) / 1.0)
    assert (found.p50, found.p90, found.p99, found.maximum) == (50, 90, 99, 100)
    assert found.p999 is None  # of 100 there is no thousandth
    assert distribution_of(np.zeros(0)).p50 is None


def test_requests_without_a_response_are_infinitely_late() -> None:
    rows = served(np.arange(100) * 1_000_000, np.full(100, 1000))
    rows["status"][:5] = RequestStatus.TIMEOUT
    found = distribution_of(latencies_s(rows))
    assert found.p90 == pytest.approx(1e-6)
    assert (found.p99, found.maximum, found.mean) == (None, None, None)
    assert service_distribution(rows).count == 95


def test_littles_law_holds_in_a_steady_state_and_not_where_the_queue_grows() -> None:
    steady = littles_law(random_queue(0.5, 50_000, 2))
    assert steady is not None
    assert steady.gap < 0.02
    assert steady.in_system == pytest.approx(0.5 / (1 - 0.5), rel=0.1)
    growing = littles_law(served(np.arange(1000) * 1_000_000, np.full(1000, 2_000_000)))
    assert growing is not None
    assert growing.gap > 0.3
    assert littles_law(served(np.zeros(5, np.int64), np.full(5, 1))) is None
    failed = served(np.arange(1000) * 1_000_000, np.full(1000, 500_000))
    failed["status"] = RequestStatus.FAILED
    assert littles_law(failed) is None


def test_only_requests_that_met_a_free_target_show_the_generators_lateness() -> None:
    rows = served(np.array([0, 10, 5000]), np.array([1000, 1000, 1000]))
    rows["sent_ns"] += 7
    assert generator_lateness_s(rows, 1).tolist() == pytest.approx([7e-9, 7e-9])
    # A second worker was free for the second one.
    assert generator_lateness_s(rows, 2).tolist() == pytest.approx([7e-9, 997e-9, 7e-9])


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.5, TargetVerdict.MISSED), (1.0, TargetVerdict.INCONCLUSIVE), (2.0, TargetVerdict.MET)],
)
def test_a_target_is_judged_by_its_distance_from_the_truth(factor: float, expected: TargetVerdict) -> None:
    limit_s = -math.log(0.01) / (1 - 0.5) * 1e-3 * factor
    rows = random_queue(0.5, 10_000, 3)
    assert judge(rows, parse_target(f"p99<{limit_s:.6f}s")).verdict is expected


def test_a_verdict_at_the_truth_is_rarely_certain() -> None:
    # A rank interval of independent requests would be certain in about 80 of 100 runs at 80% load.
    target = parse_target(f"p99<{-math.log(0.01) / (1 - 0.8) * 1e-3:.6f}s")
    verdicts = [judge(random_queue(0.8, 5000, seed), target).verdict for seed in range(30)]
    assert verdicts.count(TargetVerdict.INCONCLUSIVE) >= 27


def test_targets_of_the_mean_and_the_maximum() -> None:
    rows = random_queue(0.5, 10_000, 4)
    assert judge(rows, parse_target("mean<4ms")).verdict is TargetVerdict.MET
    assert judge(rows, parse_target("mean<1ms")).verdict is TargetVerdict.MISSED
    assert judge(rows, parse_target("max<1s")).verdict is TargetVerdict.MET
    assert judge(rows, parse_target("max<1ms")).verdict is TargetVerdict.MISSED
    rows["status"][0] = RequestStatus.FAILED
    assert judge(rows, parse_target("max<1s")).verdict is TargetVerdict.MISSED
    assert judge(rows, parse_target("mean<1s")).verdict is TargetVerdict.MISSED
    assert judge(rows[:0], parse_target("max<1s")).verdict is TargetVerdict.INCONCLUSIVE


def test_too_few_requests_are_inconclusive() -> None:
    rows = served(np.arange(298) * 1_000_000, np.full(298, 1000))
    assert judge(rows, parse_target("p99<1s")).verdict is TargetVerdict.INCONCLUSIVE
    rows = served(np.arange(299) * 1_000_000, np.full(299, 1000))
    assert judge(rows, parse_target("p99<1s")).verdict is TargetVerdict.MET


def test_a_run_of_as_many_requests_as_are_needed_has_a_verdict() -> None:
    limit_s = -math.log(0.01) / (1 - 0.5) * 1e-3 * 3
    target = parse_target(f"p99<{limit_s:.6f}s")
    verdicts = []
    for seed in range(12):
        found = judge(random_queue(0.5, 1500, seed), target)
        assert found.verdict is TargetVerdict.INCONCLUSIVE
        needed = requests_needed(found, 1500, 0.99)
        assert needed is not None
        verdicts.append(judge(random_queue(0.5, needed, 100 + seed), target).verdict)
    assert verdicts.count(TargetVerdict.MET) >= 10


@pytest.mark.parametrize(
    ("fractions", "needed"),
    [
        ((0.0, 0.0, 0.02), 2 * 1000 * 2),  # 0.02 / 0.01
        ((0.0, 0.005, 0.015), 2 * 1000 * 4),  # (0.01 / 0.005) squared
        ((0.005, 0.02, 0.03), 2 * 1000 * 2.25),  # (0.015 / 0.01) squared
        ((0.0, 0.0099, 0.02), None),  # 10,000 times as many
        ((0.0, 0.01, 0.02), None),
        ((None, None, None), None),
    ],
)
def test_how_many_requests_are_needed(
    fractions: tuple[float | None, float | None, float | None], needed: float | None
) -> None:
    low, above, high = fractions
    found = TargetJudgement(TargetVerdict.INCONCLUSIVE, above, low, high)
    assert requests_needed(found, 1000, 0.99) == (None if needed is None else pytest.approx(needed, abs=2))
