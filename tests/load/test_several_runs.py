# SPDX-License-Identifier: Apache-2.0
"""The highest rate and the sweep over concurrency, on simulated targets whose rows are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queues import served

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.load import several_runs
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.several_runs import find_rate, sweep_concurrency

SERVICE_S = 0.01


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[LoadSettings]:
    """Replace runs by one server with services of 10 ms (M/D/1), or by as many as the concurrency."""
    asked: list[LoadSettings] = []

    def run(_target: Any, settings: LoadSettings, _inputs: Any, _options: Any) -> LoadResult:
        asked.append(settings)
        rows = _closed(settings) if settings.rate is None else _open(settings)
        return LoadResult(settings, LoadRun(10**9, int(rows["end_ns"].max())), rows)

    monkeypatch.setattr(several_runs, "run_load", run)
    return asked


def _open(settings: LoadSettings) -> Any:
    generator = np.random.default_rng(settings.seed)
    count = 4_000
    planned_ns = np.cumsum(generator.exponential(1e9 / (settings.rate or 1), count)).astype(np.int64)
    return served(planned_ns, np.full(count, int(SERVICE_S * 1e9)))


def _closed(settings: LoadSettings) -> Any:
    """Four servers: at a concurrency of 8, requests wait as long as they are served."""
    level = settings.concurrency or 1
    wait = max(1.0, level / 4)
    rows = np.zeros(400, REQUEST)
    each_ns = int(SERVICE_S * wait * 1e9)
    rows["sent_ns"] = 10**9 + (np.arange(400) // level) * each_ns
    rows["planned_ns"] = rows["sent_ns"]
    rows["end_ns"] = rows["sent_ns"] + each_ns
    rows["status"] = RequestStatus.OK
    return rows


def test_the_highest_rate_is_that_of_the_queue(simulated: list[LoadSettings]) -> None:
    settings = LoadSettings("f", "server", rate=40.0, duration_s=20.0, slo="p90<50ms", seed=7)
    found = find_rate("f", settings, runs=6)
    # The p90 of an M/D/1 queue is 5 services at a load of 0.757: Lindley's recursion over 8 million requests.
    assert found.found.low is not None
    assert found.found.high is not None
    assert found.found.low < 75.7 < found.found.high
    verdicts = {each.rate: each.verdict for each in found.found.probes}
    assert verdicts[40.0] is TargetVerdict.MET
    assert verdicts[max(verdicts)] is TargetVerdict.MISSED
    seeds = [each.seed for each in simulated]
    assert len(seeds) == len(set(seeds)), "runs are not independent"
    assert all(each.slo is None for each in simulated)


def test_ctrl_c_keeps_the_rates_that_were_measured(
    simulated: list[LoadSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = several_runs.run_load

    def interrupted(*words: Any) -> LoadResult:
        if len(simulated) == 7:
            raise KeyboardInterrupt
        return run(*words)

    monkeypatch.setattr(several_runs, "run_load", interrupted)
    settings = LoadSettings("f", "server", rate=40.0, duration_s=20.0, slo="p90<50ms")
    found = find_rate("f", settings, runs=5)
    assert found.interrupted
    assert [each.rate for each in found.found.probes] == [40.0]
    plain = json.loads(found.save(tmp_path / "new").read_text())
    assert (plain["interrupted"], plain["high"]) == (True, None)


def test_a_sweep_shows_where_throughput_ends_to_grow(simulated: list[LoadSettings], tmp_path: Path) -> None:
    levels = (1, 2, 4, 8, 16)
    found = sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), levels)
    throughput = {each.concurrency: each.throughput for each in found.found.runs}
    assert throughput == pytest.approx({1: 100, 2: 200, 4: 400, 8: 400, 16: 400}, rel=0.02)
    assert found.found.saturation == 4
    assert [each.scenario for each in simulated] == ["closed-loop"] * 5
    plain = json.loads(found.save(tmp_path).read_text())
    assert [each["concurrency"] for each in plain["runs"]] == list(levels)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (LoadSettings("f", "server", rate=40.0, duration_s=20.0), "no_latency_bound"),
        (LoadSettings("f", "offline", slo="p90<50ms"), "invalid_load"),
        (LoadSettings("f", "server", rate=1.0, duration_s=2.0, slo="p90<50ms"), "too_few_requests"),
        (LoadSettings("f", "server", rate=-1.0, duration_s=2.0, slo="p90<50ms"), "invalid_schedule"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_a_run(
    simulated: list[LoadSettings], settings: LoadSettings, code: str
) -> None:
    with pytest.raises(BenchmarkError) as refused:
        find_rate("f", settings)
    assert refused.value.code == code
    assert simulated == []


def test_a_sweep_of_a_plan_is_refused(simulated: list[LoadSettings]) -> None:
    with pytest.raises(BenchmarkError) as refused:
        sweep_concurrency("f", LoadSettings("f", "burst", rate=9.0), (1, 2))
    assert (refused.value.code, simulated) == ("invalid_load", [])
