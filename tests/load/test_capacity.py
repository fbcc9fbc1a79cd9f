# SPDX-License-Identifier: Apache-2.0
"""Farms whose capacity is known, and the formulas next to the simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from queue_truths import MD1_P99, mm1_quantile, waits
from refusals import refused

from gpuprof import _native
from gpuprof.bench.results.target import parse_target
from gpuprof.errors import BenchmarkError
from gpuprof.load.capacity import plan_farm
from gpuprof.load.capacity_plan import Load, MachineModel, Router, ServiceRun
from gpuprof.load.queue_formulas import erlang_c, formula_machines, latency_quantile_s, mean_wait_s

RANDOM = MachineModel(router=Router.RANDOM)


def target(seconds: float) -> Any:
    return parse_target(f"p99<{seconds:.6f}s")


def exponential_runs(seed: int, runs: int = 8, samples: int = 1_000) -> list[ServiceRun]:
    generator = np.random.default_rng(seed)
    return [ServiceRun({1: generator.exponential(1.0, samples)}) for _ in range(runs)]


def simulated(arrivals: Any, times: dict[int, Any], **farm: Any) -> Any:
    return _native.simulate_farm(
        arrivals,
        np.array(list(times), dtype=np.int64),
        np.cumsum([0, *map(len, times.values())], dtype=np.int64),
        np.concatenate([np.asarray(each, dtype=np.float64) for each in times.values()]),
        **{"machines": 1, "slots": 1, "largest_batch": 1, "least_loaded": True, "seed": 0, **farm},
    )


# --- the simulation -------------------------------------------------------------------------------


def test_one_machine_is_lindleys_recursion() -> None:
    gaps = np.random.default_rng(0).exponential(1.3, 3_000)
    found = simulated(np.cumsum(gaps), {1: [1.0]})
    np.testing.assert_allclose(found, waits(gaps, np.ones(3_000)) + 1.0, atol=1e-9)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_quantiles_of_mm1_and_md1_in_simulations(load: float) -> None:
    generator = np.random.default_rng(1)
    arrivals = np.cumsum(generator.exponential(1 / load, 400_000))
    services = generator.exponential(1.0, 50_000)
    assert np.quantile(simulated(arrivals, {1: services}), 0.99) == pytest.approx(
        mm1_quantile(load, 0.99), rel=0.08
    )
    assert np.quantile(simulated(arrivals, {1: [1.0]}), 0.99) == pytest.approx(MD1_P99[load], rel=0.05)


def test_a_machine_with_four_slots_waits_as_erlang_c_in_simulations() -> None:
    generator = np.random.default_rng(2)
    arrivals = np.cumsum(generator.exponential(1 / 3.2, 300_000))
    services = generator.exponential(1.0, 100_000)
    found = simulated(arrivals, {1: services}, slots=4)
    # The wait of an M/M/4 queue has the mean C / (k mu - lambda).
    assert found.mean() - 1 == pytest.approx(erlang_c(4, 3.2) / (4 - 3.2), rel=0.06)


def test_batches_take_what_waits_and_have_the_time_of_their_size() -> None:
    arrivals = np.array([0.0, 0.1, 0.2, 0.3, 5.0])
    found = simulated(arrivals, {1: [1.0], 2: [1.5], 4: [2.0]}, largest_batch=4)
    # The first runs alone until 1.0, then three run as a batch of 3, with the time of 4.
    np.testing.assert_allclose(found, [1.0, 2.9, 2.8, 2.7, 1.0])


def test_replicas_have_the_time_of_as_many_next_to_each_other() -> None:
    found = simulated(np.array([0.0, 0.1, 0.2]), {1: [1.0], 2: [1.5]}, slots=2)
    np.testing.assert_allclose(found, [1.0, 1.5, 1.0 - 0.2 + 1.5])


def test_least_loaded_takes_an_idle_machine() -> None:
    np.testing.assert_allclose(simulated(np.zeros(4), {1: [1.0]}, machines=4), np.ones(4))
    assert simulated(np.zeros(4), {1: [1.0]}, machines=4, least_loaded=False).max() > 1


def test_columns_that_do_not_fit_are_refused() -> None:
    one = np.array([1], dtype=np.int64)
    for begin in ([0], [0, 5], [1, 2], [0, 0]):
        with pytest.raises(ValueError, match="do not fit"):
            _native.simulate_farm(
                np.zeros(1), one, np.array(begin), np.ones(2),
                machines=1, slots=1, largest_batch=1, least_loaded=True, seed=0,
            )  # fmt: skip
    with pytest.raises(ValueError, match="do not fit"):
        simulated(np.zeros(1), {1: [1.0]}, machines=0)


# --- formulas -------------------------------------------------------------------------------------


def test_erlang_c() -> None:
    assert erlang_c(4, 3.2) == pytest.approx(0.5964, abs=1e-4)
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(2, 2.0) == 1.0


def test_formulas_are_exact_for_mm1() -> None:
    services = -np.log(1 - (np.arange(100_000) + 0.5) / 100_000)
    assert mean_wait_s(1, 0.8, services) == pytest.approx(0.8 / 0.2, rel=0.01)
    assert latency_quantile_s(1, 0.8, services, 0.99) == pytest.approx(mm1_quantile(0.8, 0.99), rel=0.02)
    assert mean_wait_s(1, 1.1, services) == math.inf
    assert latency_quantile_s(1, 1.1, services, 0.99) == math.inf
    limit = mm1_quantile(0.65, 0.99)
    assert formula_machines(services, 4.0, 0.99, limit, is_shared=False) == math.ceil(4.0 / 0.65)
    assert formula_machines(services, 4.0, 0.99, 0.5) is None


# --- plans ----------------------------------------------------------------------------------------


def test_a_plan_has_load_cost_and_formula() -> None:
    plan = plan_farm(
        exponential_runs(0), Load(5.0, growth=1.5), target(mm1_quantile(0.73, 0.99)), RANDOM,
        price_per_hour=2.5, resamples=20,
    )  # fmt: skip
    assert plan.machines.value == pytest.approx(7.5 / 0.73, abs=1.5)
    assert plan.formula == pytest.approx(plan.machines.value, abs=1)
    assert plan.utilization == pytest.approx(7.5 / plan.machines.value, rel=0.05)
    assert plan.latency_s < mm1_quantile(0.73, 0.99)
    assert plan.cost_per_hour == 2.5 * plan.machines.value
    assert plan.cost_per_million == pytest.approx(plan.cost_per_hour / (7.5 * 3_600) * 1e6)
    assert plan.scaled_cost_per_day is None


def test_least_loaded_needs_fewer_machines_than_random() -> None:
    runs, goal = exponential_runs(1), target(8.0)
    plans = [plan_farm(runs, Load(8.0), goal, MachineModel(router=each), resamples=5) for each in Router]
    assert plans[1].machines.value < plans[0].machines.value


def test_seasons_and_peaks_are_planned_for() -> None:
    load = Load(6.0, peak=1.5, seasons=(0.5, 1.0, 1.5))
    assert load.planned_rate == 13.5
    plan = plan_farm(exponential_runs(2), load, target(9.0), price_per_hour=1.0, resamples=5)
    assert plan.by_season[-1] == plan.machines.value > plan.by_season[0]
    assert plan.scaled_cost_per_day == pytest.approx(24 * sum(plan.by_season) / 3)
    assert plan.cost_per_hour is not None
    assert plan.scaled_cost_per_day < 24 * plan.cost_per_hour


def test_bursts_of_a_trace_need_more_machines_than_a_steady_one() -> None:
    runs = [ServiceRun({1: np.full(100, 0.01)}) for _ in range(4)]
    generator = np.random.default_rng(3)
    burst = np.where(np.arange(5_000) % 50, 0.0001, 0.5)
    steady = generator.exponential(1.0, 5_000)
    plans = [plan_farm(runs, Load(100.0, gaps_s=each), target(0.1), resamples=5) for each in (steady, burst)]
    assert plans[1].machines.value > 2 * plans[0].machines.value
    assert plans[1].formula is None


def test_runs_that_differ_widen_the_interval() -> None:
    generator = np.random.default_rng(4)
    runs = [ServiceRun({1: scale * generator.exponential(1.0, 1_000)}) for scale in np.linspace(0.8, 1.25, 6)]
    wide = plan_farm(runs, Load(30.0), target(10.0), resamples=40).machines
    narrow = plan_farm(exponential_runs(4, 6), Load(30.0), target(10.0), resamples=40).machines
    assert wide.high - wide.low > narrow.high - narrow.low  # type: ignore[operator]


def test_few_runs_have_no_interval() -> None:
    plan = plan_farm(exponential_runs(0, runs=2), Load(5.0), target(10.0))
    assert (plan.machines.low, plan.machines.high) == (None, None)
    assert [each.code for each in plan.reasons] == ["too_few_runs"]


def test_what_cannot_be_planned_is_refused() -> None:
    runs, goal = exponential_runs(0, runs=3, samples=100), target(10.0)
    for bad in (
        Load(0.0),
        Load(math.nan),
        Load(1.0, growth=-1),
        Load(1.0, peak=math.inf),
        Load(1.0, seasons=(0.0,)),
    ):
        with refused(BenchmarkError, "invalid_load"):
            plan_farm(runs, bad, goal)
    with refused(BenchmarkError, "invalid_load", "price"):
        plan_farm(runs, Load(1.0), goal, price_per_hour=-2.5)
    with refused(BenchmarkError, "target_without_quantile"):
        plan_farm(runs, Load(1.0), parse_target("mean<1s"))
    with refused(BenchmarkError, "invalid_trace"):
        plan_farm(runs, Load(1.0, gaps_s=np.zeros(5)), goal)
    for none in ([], [ServiceRun({})], [ServiceRun({1: np.zeros(0)})]):
        with refused(BenchmarkError, "no_service_times"):
            plan_farm(none, Load(1.0), goal)
    with refused(BenchmarkError, "not_measured", "8 requests"):
        plan_farm(runs, Load(1.0), goal, MachineModel(largest_batch=8))
    with refused(BenchmarkError, "service_above_limit"):
        plan_farm(runs, Load(1.0), target(0.5))
    few = replace(RANDOM, router=Router.LEAST_LOADED)
    assert plan_farm(runs, Load(0.001), goal, few, resamples=5).machines.value == 1
