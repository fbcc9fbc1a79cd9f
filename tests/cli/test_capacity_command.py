# SPDX-License-Identifier: Apache-2.0
"""`gpuprof capacity` and `gpuprof.plan_capacity` on result files, results and plain numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from refusals import refused, refused_command

import gpuprof
from gpuprof.cli.main import cli
from gpuprof.errors import BenchmarkError
from gpuprof.load.capacity_plan import ServiceRun

RESULTS = Path(__file__).parents[1] / "golden" / "inputs" / "results"
BASE = RESULTS / "base.json"


def invoke(*words: object) -> str:
    done = CliRunner().invoke(cli, ["capacity", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def runs(count: int = 4) -> list[Any]:
    generator = np.random.default_rng(0)
    return [generator.exponential(0.01, 500).tolist() for _ in range(count)]


def test_a_plan_of_a_result_file() -> None:
    words = (BASE, "--rate", "3000/s", "--growth", "1.5", "--slo", "p99<100ms", "--price", "2.50")
    plan = json.loads(invoke(*words, "--json"))["capacity"]
    assert plan["planned_rate_per_s"] == 4_500
    assert plan["machines_low"] <= plan["machines"] <= plan["machines_high"]
    assert plan["cost_per_hour"] == 2.5 * plan["machines"]
    assert plan["machines_by_formula"] == pytest.approx(plan["machines"], abs=1)
    text = invoke(*words)
    assert f"{plan['machines']} (95% CI {plan['machines_low']}-{plan['machines_high']})" in text
    assert "4,500/s (3,000/s x growth 1.5)" in text


@pytest.mark.parametrize(("text", "rate"), [("60/min", 1.0), ("3,600/h", 1.0), ("2.5", 2.5), ("4 / s", 4.0)])
def test_rates_have_units(text: str, rate: float) -> None:
    plan = json.loads(invoke(BASE, "--rate", text, "--slo", "p99<1s", "--json"))["capacity"]
    assert plan["rate_per_s"] == rate


def test_seasons_and_arrivals(tmp_path: Path) -> None:
    arrivals = tmp_path / "arrivals.txt"
    arrivals.write_text("\n".join(str(each) for each in np.cumsum(np.tile([0.001] * 9 + [0.1], 30))))
    words = (BASE, "--rate", 500, "--slo", "p99<100ms", "--seasons", "0.5,1.5", "--price", 1)
    plan = json.loads(invoke(*words, "--arrivals", arrivals, "--router", "random", "--json"))["capacity"]
    assert (plan["arrivals"], plan["router"]) == ("trace", "random")
    assert plan["machines_by_season"][-1] == plan["machines"]
    assert "cost a day" in invoke(*words)


def test_command_lines_that_are_refused(tmp_path: Path) -> None:
    usual = ["capacity", BASE, "--slo", "p99<100ms", "--rate"]
    for bad in ("0", "-3/s", "nan", "inf", "3/day", "fast"):
        refused_command([*usual, bad], "invalid_rate")
    refused_command([*usual, "1", "--seasons", "a,b"], "invalid_factors")
    refused_command([*usual, "1", "--arrivals", tmp_path / "none"], "invalid_arrivals")
    (tmp_path / "text").write_text("now\n")
    refused_command([*usual, "1", "--arrivals", tmp_path / "text"], "invalid_arrivals")
    (tmp_path / "text").write_text("1.0\n\nnow\n")
    refused_command([*usual, "1", "--arrivals", tmp_path / "text"], "invalid_arrivals", "line 3")
    refused_command([*usual, "1", "--batch-size", "64"], "not_measured", 64)
    refused_command([*usual, "1", "--growth", "nan"], "not_finite")
    refused_command([*usual, "1", "--price", "0"], "invalid_load", "price")
    refused_command([*usual, "1", "--model", "none"], "several_models")
    refused_command([*usual, "1e15"], "unbounded")
    refused_command([*usual, "1e308", "--growth", "1e10"], "unbounded")
    with refused(BenchmarkError, "invalid_seed"):
        gpuprof.plan_capacity(runs(), 1.0, "p99<1s", seed=-1)
    refused_command(["capacity", BASE, "--rate", "1", "--slo", "fast"], "invalid_target")
    refused_command(["capacity", tmp_path / "none.json", "--rate", "1", "--slo", "p99<1s"], "cannot_read")


def test_a_plan_of_seconds_and_of_results() -> None:
    plan = gpuprof.plan_capacity(runs(), 200, "p99<200ms", price_per_hour=1.0)
    assert plan.machines.low is not None
    assert "machines" in str(plan)
    result = gpuprof.benchmark(lambda: sum(range(1_000)), iterations=300, warmup=5)
    of_result = gpuprof.plan_capacity(result, 100, "p90<1s")
    assert of_result.machines.value == 1
    assert [each.code for each in of_result.reasons] == ["too_few_runs"]
    batches = [ServiceRun({1: np.full(9, 0.01), 8: np.full(9, 0.02)}) for _ in range(3)]
    assert (
        gpuprof.plan_capacity(batches, 1_000, "p99<100ms", largest_batch=8).machines.value
        < gpuprof.plan_capacity(batches, 1_000, "p99<100ms").machines.value
    )


def test_what_was_not_measured_is_refused() -> None:
    for bad in ([], 5, [object()], [[]], [[0.1, -1.0]], [[float("nan")]]):
        with refused(BenchmarkError, "no_service_times"):
            gpuprof.plan_capacity(bad, 1, "p99<1s")
    throughput = gpuprof.benchmark(lambda: None, iterations=5, warmup=1, mode="throughput")
    with refused(BenchmarkError, "no_service_times", "throughput"):
        gpuprof.plan_capacity(throughput, 1, "p99<1s")
    with refused(BenchmarkError, "invalid_machine"):
        gpuprof.plan_capacity(runs(), 1, "p99<1s", replicas=0)
    with refused(BenchmarkError, "invalid_machine"):
        gpuprof.plan_capacity(runs(), 1, "p99<1s", router="nearest")  # type: ignore[arg-type]
