# SPDX-License-Identifier: Apache-2.0
"""The report of a growing load: figures by hand, and the machines of a plan."""

from __future__ import annotations

import re

import numpy as np
from refusals import refused

import gpuprof
from gpuprof.bench import ProductionBenchmarkingProfiler, generate_capacity_planning_report
from gpuprof.errors import BenchmarkError

NOW = {"cpu_usage": 70.0, "memory_usage": 6_000.0, "request_rate": 100.0, "latency": 12.0}
SECTIONS = [
    "Current System Load", "Projected Requirements (growth 1.5)", "Scaling Recommendations",
    "Infrastructure Recommendations",
]  # fmt: skip


def test_a_report_multiplies_the_load_with_its_growth() -> None:
    found = generate_capacity_planning_report(NOW)
    assert found.projected == {"cpu_usage": 105.0, "memory_usage": 9_000.0, "request_rate": 150.0}
    assert found.instances == 2  # 105% is above 80%, and 52.5% each is not
    assert [each.code for each in found.reasons] == ["cpu_above", "memory_above"]
    assert re.findall("^## (.*)$", str(found), re.MULTILINE) == SECTIONS
    assert ProductionBenchmarkingProfiler().generate_capacity_planning_report(NOW) == str(found)


def test_a_small_load_needs_nothing() -> None:
    found = generate_capacity_planning_report({"cpu_usage": 80.0, "memory_usage": 8_000.0}, 1.0)
    assert (found.instances, found.reasons) == (1, ())


def test_measured_service_times_give_the_machines_of_a_plan() -> None:
    generator = np.random.default_rng(0)
    times = [generator.exponential(0.01, 500).tolist() for _ in range(4)]
    found = generate_capacity_planning_report(NOW, 2.0, measured=times, slo="p99<200ms", price_per_hour=3.0)
    plan = gpuprof.plan_capacity(times, 100, "p99<200ms", growth=2.0, price_per_hour=3.0)
    assert found.plan is not None
    assert (found.instances, found.plan.machines) == (plan.machines.value, plan.machines)
    assert str(plan) in str(found)


def test_loads_that_cannot_be_planned_are_refused() -> None:
    for load, growth in (({}, 1.5), ({"disk": 1.0}, 1.5), (NOW, 0.0), ({"cpu_usage": float("nan")}, 1.5)):
        with refused(BenchmarkError, "invalid_load"):
            generate_capacity_planning_report(load, growth)
    with refused(BenchmarkError, "invalid_load"):
        generate_capacity_planning_report(NOW, slo="p99<1s")
