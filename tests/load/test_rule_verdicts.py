# SPDX-License-Identifier: Apache-2.0
"""The rules of MLPerf on loads that gpuprof ran itself: rows of known times, and runs that are short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from queues import served

import gpuprof
from gpuprof.bench import MLPerfBenchmark
from gpuprof.load.mlperf import ScenarioVerdict
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings

SECOND_NS = 10**9


def loaded(scenario: str, requests: int, every_ms: float, **settings: Any) -> LoadResult:
    """Return a load of a server with services of 1 ms; its last request is sent before the time ends."""
    rows = served((np.arange(requests) * every_ms * 1e6).astype(np.int64), np.full(requests, 1_000_000))
    is_closed = scenario.endswith("stream")
    run = LoadRun(SECOND_NS, SECOND_NS + int(requests * every_ms * 1e6), closed=is_closed)
    return LoadResult(LoadSettings("f", scenario, **settings), run, rows)


def verdicts(result: LoadResult) -> tuple[ScenarioVerdict, ScenarioVerdict, list[str]]:
    found = result.rule_verdicts
    assert found is not None
    return found.as_set.verdict, found.by_rules.verdict, [each.code for each in found.by_rules.reasons]


@pytest.mark.parametrize(
    ("scenario", "more"),
    [("single-stream", {}), ("multi-stream", {}), ("server", {"slo": "p99<20ms", "pattern": "poisson"})],
)
def test_a_run_of_the_duration_of_the_rules_is_valid(scenario: str, more: dict[str, Any]) -> None:
    found = loaded(scenario, 300_000, 2.0, duration_s=600.0, **more)
    assert verdicts(found) == (ScenarioVerdict.VALID, ScenarioVerdict.VALID, [])


def test_a_short_run_is_valid_as_set_and_too_short_by_the_rules() -> None:
    found = loaded("server", 5_000, 2.0, duration_s=10.0, slo="p99<20ms", pattern="poisson")
    assert verdicts(found) == (ScenarioVerdict.VALID, ScenarioVerdict.INSUFFICIENT, ["too_short"])
    interrupted = replace(found, run=replace(found.run, interrupted=True))
    assert verdicts(interrupted)[0] is ScenarioVerdict.INSUFFICIENT


def test_a_bound_that_is_missed_is_invalid() -> None:
    found = loaded("server", 5_000, 2.0, duration_s=10.0, slo="p99<1us", pattern="poisson")
    assert verdicts(found)[:2] == (ScenarioVerdict.INVALID, ScenarioVerdict.INVALID)


def test_offline_counts_samples() -> None:
    few, many = loaded("offline", 1_000, 0.0, count=1_000), loaded("offline", 24_576, 25.0, count=24_576)
    assert verdicts(few) == (
        ScenarioVerdict.VALID,
        ScenarioVerdict.INSUFFICIENT,
        ["too_short", "too_few_samples"],
    )
    assert verdicts(many) == (ScenarioVerdict.VALID, ScenarioVerdict.VALID, [])


@pytest.mark.parametrize(
    ("scenario", "more"),
    [
        ("server", {}),
        ("server", {"slo": "p90<20ms"}),
        ("server", {"slo": "p99<20ms", "pattern": "gamma:0.5"}),
        ("constant", {"slo": "p99<20ms"}),
        ("closed-loop", {}),
    ],
)
def test_other_loads_have_no_rules(scenario: str, more: dict[str, Any]) -> None:
    found = loaded(scenario, 100, 2.0, duration_s=10.0, **more)
    assert found.rule_verdicts is None
    assert found.to_dict()["mlperf_style"] is None


def test_the_verdicts_are_in_the_text_and_in_json() -> None:
    found = gpuprof.load(lambda: None, scenario="single-stream", duration_s=0.1)
    assert found.rule_verdicts is not None
    assert all(line in str(found).splitlines() for line in found.rule_verdicts.lines())
    plain = found.to_dict()["mlperf_style"]
    assert (plain["same_settings"]["verdict"], plain["rules_of_mlperf"]["verdict"]) == (
        "valid",
        "inconclusive",
    )


def test_a_server_that_ran_for_its_duration_is_not_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprof.load import mlperf_benchmark

    rules = mlperf_benchmark.RULES
    short = {name: replace(each, least_duration_s=0.2) for name, each in rules.items()}
    monkeypatch.setattr(mlperf_benchmark, "RULES", short)
    found = MLPerfBenchmark().server(sum, [[1, 2]], target_qps=3_000, duration=0.2, latency_bound_s=60.0)
    assert found.rules is not None
    assert found.rules.reasons == ()
