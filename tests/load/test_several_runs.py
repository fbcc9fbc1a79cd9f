# SPDX-License-Identifier: Apache-2.0
"""The highest rate and the sweep over concurrency, on simulated targets whose rows are known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from load_server import OK, Exchange, serving
from queues import served
from refusals import refused

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.load import several_runs, sweep
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.search import MaxRate
from gpuprof.load.several_report import write_several
from gpuprof.load.several_runs import MaxRateResult, find_rate, sweep_concurrency
from gpuprof.load.targets.server_target import ServerTarget

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


def test_a_target_that_is_never_met_ends_inconclusive(
    simulated: list[LoadSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--find-max-rate", "--slo", "p90<1ms", "--rate", "40", "--duration", "20s", "--runs", "5"]
    assert execute(["load", "python:math:pi", *words, "--out", str(tmp_path)]) == 3
    plain = json.loads((tmp_path / "max_rate.json").read_text())
    assert (plain["low"], plain["stopped"]) == (None, None)
    assert [each["code"] for each in plain["reasons"]][-2:] == ["never_met", "lower_rates_short"]
    assert str(plain["reasons"][-1]["text"]) in capsys.readouterr().out
    assert min(each.rate or 0 for each in simulated) * 20 >= plain["reasons"][-1]["values"]["least"]


def test_an_estimate_is_not_rounded_up_to_a_missed_rate() -> None:
    found = MaxRate(12_300.0, 12_399.7, 12_400.0, ())
    settings = LoadSettings("f", "server", slo="p90<50ms")
    headline, *_ = str(MaxRateResult(settings, found)).splitlines()
    assert headline.split(": ")[1].split("/s")[0] == "12,300"


@pytest.mark.usefixtures("simulated")
def test_each_rate_of_a_search_is_shown_with_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--find-max-rate", "--slo", "p90<50ms", "--rate", "40", "--duration", "20s", "--runs", "5"]
    assert execute(["load", "python:math:pi", *words, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "max_rate.json").read_text())["rates"]
    _begin, *shown, _written = capsys.readouterr().err.splitlines()
    assert [line.split("/s: ")[0] for line in shown[:2]] == ["40", "80"]
    expected = {(f"{each['rate']:,.4g}", each["verdict"]) for each in found}
    assert {(line.split("/s: ")[0], line.split(": ")[-1]) for line in shown} == expected
    assert len(shown) == len(found)


def test_ctrl_c_before_the_first_verdict_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_words: Any) -> LoadResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(several_runs, "run_load", interrupted)
    words = ["--find-max-rate", "--slo", "p90<50ms", "--rate", "40", "--duration", "20s"]
    assert execute(["load", "python:math:pi", *words, "--out", str(tmp_path)]) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("interrupted before")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_sweep_is_shown_as_one(
    simulated: list[LoadSettings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = several_runs.run_load

    def interrupted(*words: Any) -> LoadResult:
        if len(simulated) == 2:
            raise KeyboardInterrupt
        return run(*words)

    words = ["load", "python:math:pi", "--concurrency", "1,2,4", "--out", str(tmp_path)]
    monkeypatch.setattr(several_runs, "run_load", interrupted)
    assert execute(words) == 130
    assert "interrupted" in capsys.readouterr().out.splitlines()[-1]
    simulated.clear()
    monkeypatch.setattr(several_runs, "run_load", run)
    execute(words)
    assert "interrupted" not in capsys.readouterr().out


@pytest.mark.usefixtures("simulated")
def test_ctrl_c_while_the_law_is_fitted_keeps_the_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_words: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_fit", interrupted)
    assert execute(["load", "python:math:pi", "--concurrency", "1,2,4,8", "--out", str(tmp_path)]) == 130
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert [each["concurrency"] for each in found["runs"]] == [1, 2, 4, 8]
    assert (found["interrupted"], found["saturation"], found["law"]) == (True, 4, None)


@pytest.mark.usefixtures("simulated")
def test_ctrl_c_while_a_run_is_evaluated_keeps_the_runs_before(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []

    def interrupted(_result: LoadResult) -> None:
        evaluated.append(1)
        if len(evaluated) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(several_runs, "_p99_ends", interrupted)
    found = sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), (1, 2, 4))
    assert found.interrupted
    assert [each.concurrency for each in found.found.runs] == [1]


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


@pytest.mark.usefixtures("simulated")
def test_failed_requests_are_in_the_p99_of_a_sweep_and_not_in_its_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = several_runs.run_load

    def failing(*words: Any) -> LoadResult:
        result = run(*words)
        result.rows["status"][::4] = RequestStatus.TIMEOUT
        result.rows["end_ns"][::4] += 30 * 10**9
        result.rows["sent_ns"][0] = 0  # one was never sent
        return result

    monkeypatch.setattr(several_runs, "run_load", failing)
    found = sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), (1, 2))
    assert [each.mean_latency_s for each in found.found.runs] == pytest.approx([SERVICE_S] * 2)
    assert (found.failed, found.p99_s) == ({1: 100, 2: 100}, {1: None, 2: None})


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
    with refused(BenchmarkError, code):
        find_rate("f", settings)
    assert simulated == []


def test_a_sweep_of_a_plan_is_refused(simulated: list[LoadSettings]) -> None:
    with refused(BenchmarkError, "invalid_load"):
        sweep_concurrency("f", LoadSettings("f", "burst", rate=9.0), (1, 2))
    assert simulated == []


@pytest.mark.parametrize("rate", [1e308, float("inf"), float("nan")])
def test_a_rate_beyond_numbers_is_refused(simulated: list[LoadSettings], rate: float) -> None:
    settings = LoadSettings("f", "server", rate=rate, duration_s=20.0, slo="p90<50ms")
    with refused(BenchmarkError, "invalid_schedule"):
        find_rate("f", settings)
    assert simulated == []


def fails(result: LoadResult) -> LoadResult:
    result.rows["status"] = RequestStatus.SERVER_ERROR
    return result


def ends_after(monkeypatch: pytest.MonkeyPatch, asked: list[LoadSettings], runs: int, *, by: str) -> None:
    """Have each run after so many fail in every request, or not begin."""
    run = several_runs.run_load

    def ending(*words: Any) -> LoadResult:
        if len(asked) < runs:
            return run(*words)
        if by == "error":
            raise BenchmarkError("no_server", "no server responds", hint="start it")
        return fails(run(*words))

    monkeypatch.setattr(several_runs, "run_load", ending)


@pytest.mark.parametrize(("by", "code"), [("failures", "all_failed"), ("error", "cannot_continue")])
def test_a_sweep_keeps_what_was_measured_before_its_target_ended(
    simulated: list[LoadSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str, code: str
) -> None:
    ends_after(monkeypatch, simulated, 2, by=by)
    found = sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), (1, 2, 4, 8))
    assert [each.concurrency for each in found.found.runs] == [1, 2]
    assert found.stopped is not None
    assert found.stopped.code == code
    assert not found.interrupted
    plain = json.loads(found.save(tmp_path).read_text())
    assert (len(plain["runs"]), plain["stopped"]["code"]) == (2, code)
    assert str(found.stopped) in str(found)


@pytest.mark.parametrize(("by", "code"), [("failures", "all_failed"), ("error", "cannot_continue")])
def test_a_search_keeps_what_was_measured_before_its_target_ended(
    simulated: list[LoadSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str, code: str
) -> None:
    ends_after(monkeypatch, simulated, 7, by=by)
    settings = LoadSettings("f", "server", rate=40.0, duration_s=20.0, slo="p90<50ms")
    found = find_rate("f", settings, runs=5)
    assert [each.rate for each in found.found.probes] == [40.0]
    assert (found.found.low, found.found.high) == (40.0, None)
    assert found.stopped is not None
    assert found.stopped.code == code
    assert len(simulated) <= 8, "no more runs of a target that does not work"
    assert json.loads(found.save(tmp_path).read_text())["stopped"]["code"] == code


def test_a_target_that_never_works_ends_a_sweep_and_a_search_at_once(
    simulated: list[LoadSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends_after(monkeypatch, simulated, 0, by="failures")
    swept = sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), (1, 2, 4))
    settings = LoadSettings("f", "server", rate=40.0, duration_s=20.0, slo="p90<50ms")
    searched = find_rate("f", settings, runs=5)
    for found in (swept, searched):
        assert found.stopped is not None
        assert found.stopped.code == "all_failed"
        assert found.stopped.values["cause"] == "server error"
        plain = json.loads(found.save(tmp_path).read_text())
        assert plain.get("runs", plain.get("rates")) == []
    assert (swept.stopped.values["requests"], searched.stopped.values["requests"]) == (400, 4_000)  # type: ignore[union-attr]
    assert len(simulated) == 2


@pytest.mark.parametrize("formats", [("html", "md", "csv", "json")])
def test_a_report_of_nothing_is_written(
    simulated: list[LoadSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, formats: tuple[str, ...]
) -> None:
    ends_after(monkeypatch, simulated, 0, by="failures")
    swept = sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), (1, 2, 4))
    settings = LoadSettings("f", "server", rate=40.0, duration_s=20.0, slo="p90<50ms")
    for found in (swept, find_rate("f", settings, runs=5)):
        files = write_several(found, formats, tmp_path, type(found).__name__)
        markdown = files[formats.index("md")].read_text(encoding="utf-8")
        assert str(found.stopped) in markdown.replace("\\_", "_")


def test_a_server_that_never_responds_is_an_error(
    simulated: list[LoadSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_after(monkeypatch, simulated, 0, by="error")
    with refused(BenchmarkError, "no_server"):
        sweep_concurrency("f", LoadSettings("f", "server", duration_s=1.0), (1, 2))


def test_a_sweep_of_a_server_has_as_many_connections_as_its_concurrency() -> None:
    now = most = 0
    seen: list[int] = []

    def respond(exchange: Exchange) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        seen.append(most)
        asyncio.get_running_loop().call_later(0.002, end, exchange)

    def end(exchange: Exchange) -> None:
        nonlocal now
        now -= 1
        exchange.transport.write(OK)

    mosts = []
    with serving({"/": respond}) as server:
        target = ServerTarget(address=server.address(), concurrency=6)  # as of --concurrency 1,3,6

        def before(_: float) -> None:
            nonlocal most
            mosts.append(most)
            most = 0

        settings = LoadSettings("http", "closed-loop", count=40)
        sweep_concurrency(target, settings, (1, 3, 6), before_run=before)
    assert [*mosts[1:], most] == [1, 3, 6]


def test_a_sweep_to_too_many_threads_is_refused_before_the_first_run() -> None:
    calls: list[int] = []
    settings = LoadSettings("target", "closed-loop", duration_s=0.01)
    with refused(BenchmarkError, "too_many_at_once"):
        sweep_concurrency(lambda: calls.append(1), settings, [1, 10_001])
    assert not calls
