# SPDX-License-Identifier: Apache-2.0
"""Cycles of a soak test, with planted memory and requests of known times."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.errors import BenchmarkError
from gpuprof.load import soak_readings, soak_run
from gpuprof.load.leaks import FEWEST_READINGS, MemoryLevels, Meter, SoakVerdict, trim_memory
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.soak_readings import SoakReadings
from gpuprof.load.soak_run import CYCLES, run_soak
from gpuprof.load.targets.in_process import CallableTarget

SETTINGS = LoadSettings("f", "soak", duration_s=96.0, seed=5)
PER_CYCLE = 100


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[LoadSettings]]:
    """Replace a cycle by 100 requests within a second, and memory by so many bytes a request."""

    def simulate(leak_bytes: float, *, stop_after: int | None = None) -> list[LoadSettings]:
        asked: list[LoadSettings] = []
        generator = np.random.default_rng(3)

        def run(_target: Any, settings: LoadSettings, _inputs: Any, _options: Any) -> LoadResult:
            if len(asked) == stop_after:
                raise KeyboardInterrupt
            rows = np.zeros(PER_CYCLE, REQUEST)
            rows["planned_ns"] = (1 + len(asked)) * 10**9 + np.arange(PER_CYCLE) * 10**7
            rows["sent_ns"] = rows["planned_ns"]
            rows["end_ns"] = rows["sent_ns"] + 10**6 + generator.integers(0, 1000, PER_CYCLE)
            rows["status"] = RequestStatus.OK
            rows["status"][:2] = RequestStatus.FAILED
            asked.append(settings)
            return LoadResult(settings, LoadRun(0, int(rows["end_ns"].max())), rows)

        def read(requests: int) -> MemoryLevels:
            noise = int(generator.integers(0, 200))
            return MemoryLevels(requests, {Meter.RSS: 10**8 + int(leak_bytes * requests) + noise})

        monkeypatch.setattr(soak_run, "run_load", run)
        monkeypatch.setattr(soak_readings, "read_memory", read)
        monkeypatch.setattr(soak_run, "trim_memory", lambda: None)
        return asked

    return simulate


def rss(found: Any) -> Any:
    (growth,) = [each for each in found.report.leaks.meters if each.meter is Meter.RSS]
    return growth


@pytest.mark.parametrize(("leak_bytes", "verdict"), [(0, SoakVerdict.NO), (64, SoakVerdict.YES)])
def test_a_planted_leak_is_found_and_none_is_not(
    simulated: Any, leak_bytes: int, verdict: SoakVerdict, tmp_path: Path
) -> None:
    asked = simulated(leak_bytes)
    found = run_soak(lambda: None, SETTINGS)
    growth = rss(found)
    assert growth.verdict is verdict
    assert growth.low <= leak_bytes <= growth.high
    assert (found.requests, found.failed) == (CYCLES * PER_CYCLE, CYCLES * 2)
    assert {each.duration_s for each in asked} == {1.0}
    assert [each.seed for each in asked] == list(range(5, 5 + CYCLES))
    plain = json.loads(found.save(tmp_path).read_text())
    assert plain["memory"][0]["verdict"] == str(verdict)
    assert [each["verdict"] for each in plain["memory"][1:]] == ["unavailable"] * 3


def test_service_that_does_not_change_is_no_drift(simulated: Any) -> None:
    simulated(0)
    assert run_soak(lambda: None, SETTINGS).report.drift.verdict is SoakVerdict.NO


def test_ctrl_c_keeps_the_cycles_that_ended(simulated: Any) -> None:
    simulated(0, stop_after=30)
    found = run_soak(lambda: None, SETTINGS)
    assert (found.interrupted, found.cycles) == (True, 30)


def test_ctrl_c_keeps_a_single_cycle(simulated: Any) -> None:
    simulated(0, stop_after=1)
    found = run_soak(lambda: None, SETTINGS)
    assert (found.interrupted, found.cycles, found.requests) == (True, 1, PER_CYCLE)
    assert "interrupted" in str(found)


def test_ctrl_c_at_once_has_no_result(simulated: Any) -> None:
    simulated(0, stop_after=0)
    with pytest.raises(KeyboardInterrupt):
        run_soak(lambda: None, SETTINGS)


@pytest.mark.parametrize("cycles", [0, 1, 30])
def test_a_server_that_ends_ends_the_test_and_keeps_its_cycles(
    simulated: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cycles: int
) -> None:
    asked, run = simulated(64), soak_run.run_load

    def ending(*words: Any) -> LoadResult:
        if len(asked) == cycles:
            raise BenchmarkError("no_server", "no server responds", hint="start it")
        return run(*words)

    monkeypatch.setattr(soak_run, "run_load", ending)
    if not cycles:
        with refused(BenchmarkError, "no_server"):
            run_soak(lambda: None, SETTINGS)
        return
    found = run_soak(lambda: None, SETTINGS)
    assert found.stopped is not None
    assert (found.stopped.code, found.cycles, found.interrupted) == ("cannot_continue", cycles, False)
    assert found.requests == cycles * PER_CYCLE
    assert json.loads(found.save(tmp_path).read_text())["stopped"]["code"] == "cannot_continue"


def test_a_target_that_never_works_ends_the_test_at_once(tmp_path: Path) -> None:
    def respond() -> None:
        raise ValueError("planted")

    settings = LoadSettings("f", "soak", rate=2_000.0, duration_s=1.0)
    found = run_soak(respond, settings, cycles=50)
    assert found.stopped is not None
    assert (found.stopped.code, found.stopped.values["cause"]) == ("all_failed", "ValueError: planted")
    assert (found.requests, found.failed, found.cycles) == (40, 40, 1)
    # What can be read on this machine has too few readings, and is not called unavailable.
    (blocks,) = [each for each in found.report.leaks.meters if each.meter is Meter.PYTHON_BLOCKS]
    assert (blocks.verdict, blocks.reason.code) == (SoakVerdict.INCONCLUSIVE, "short_series")


@pytest.mark.parametrize("more", [{"count": 5}, {"max_batch": 4}])
def test_what_a_soak_does_not_have_is_refused(simulated: Any, more: dict[str, int]) -> None:
    asked = simulated(0)
    with refused(BenchmarkError, "invalid_load"):
        run_soak(lambda: None, replace(SETTINGS, **more))
    assert asked == []


@pytest.mark.slow
@pytest.mark.texts
def test_a_rate_without_a_request_in_each_cycle_is_refused(simulated: Any) -> None:
    asked = simulated(0)
    with refused(BenchmarkError, "too_few_requests", "--duration of 10s"):
        run_soak(lambda: None, replace(SETTINGS, rate=10.0, duration_s=1.0))
    assert asked == []


def test_a_soak_mixes_batch_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def found(_target: Any, _inputs: Any, sizes: Any, _system: Any) -> Any:
        seen.extend(set(sizes.tolist()))
        return CallableTarget(lambda: None)

    monkeypatch.setattr(soak_run, "find_target", found)
    settings = LoadSettings("model", "soak", rate=1_000.0, duration_s=0.1, mix="batch=1:80,8:20")
    run_soak("model", settings, cycles=2)
    assert sorted(seen) == [1, 8]


def test_a_target_is_loaded_once_and_closed(monkeypatch: pytest.MonkeyPatch, simulated: Any) -> None:
    simulated(0)
    calls: list[str] = []

    class Target:
        def prepare(self) -> None:
            calls.append("prepare")

        def call(self, index: int) -> int:
            return 1

        def close(self) -> None:
            calls.append("close")

    run_soak(Target(), SETTINGS)
    assert calls == ["prepare", "close"]


def test_the_memory_of_a_server_is_unavailable(simulated: Any) -> None:
    simulated(64)
    found = run_soak("http://127.0.0.1:9/", SETTINGS)
    assert found.report.leaks.verdict is SoakVerdict.UNAVAILABLE
    assert {each.reason.code for each in found.report.leaks.meters} == {"other_process"}


def test_a_soak_without_a_duration_is_refused(simulated: Any) -> None:
    asked = simulated(0)
    with refused(BenchmarkError, "invalid_load"):
        run_soak(lambda: None, LoadSettings("f", "soak"))
    assert asked == []


@pytest.mark.slow
def test_readings_take_no_memory_of_their_own() -> None:
    readings = SoakReadings(400, has_memory=True)
    for number in range(100):
        readings.read(number)
    trim_memory()
    before = sys.getallocatedblocks()
    for number in range(100, 400):
        readings.read(number)
    trim_memory()
    # A reading that is kept as an object is more than 10 blocks.
    assert sys.getallocatedblocks() - before < 300
    memory, throttling = [*readings.memory()], [*readings.throttling()]
    assert [each.requests for each in memory] == list(range(400))
    assert all(each.values[Meter.PYTHON_BLOCKS] is not None for each in memory)
    assert (np.diff([each.at_ns for each in throttling]) >= 0).all()


@pytest.mark.slow
def test_the_cycles_do_not_describe_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # The packages of the machine are read by code of the standard library that keeps memory.
    monkeypatch.setattr("gpuprof.load.run.describe_environment", lambda: pytest.fail("it was described"))
    settings = LoadSettings("f", "soak", rate=500.0, duration_s=0.1)
    assert run_soak(lambda: None, settings, cycles=3).requests > 0


@pytest.mark.slow
def test_objects_that_are_kept_are_found_by_the_real_meters() -> None:
    kept = []
    settings = LoadSettings("f", "soak", duration_s=1.0)
    found = run_soak(lambda: kept.append(bytearray(64)), settings, cycles=FEWEST_READINGS)
    (blocks,) = [each for each in found.report.leaks.meters if each.meter is Meter.PYTHON_BLOCKS]
    assert blocks.verdict is SoakVerdict.YES
    assert blocks.value == pytest.approx(2.0, abs=0.2)
