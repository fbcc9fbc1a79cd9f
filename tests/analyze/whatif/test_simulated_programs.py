# SPDX-License-Identifier: Apache-2.0
"""Predictions for invented programs, which are then executed with the change: they must agree within 1%."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_program import Host

import gpuprof
from gpuprof.analyze.whatif.prediction import predict
from gpuprof.analyze.whatif.program import RecordedProcess, ReplayRules

World = Callable[[Host, float, float], None]


def loader_and_logging(host: Host, load: float, log: float) -> None:
    """A step that loads, launches kernels, and waits for a value."""
    for _ in range(40):
        with host.span("load"):
            host.work(round(300_000 * load))
        with host.span("model", "layer"):
            for _ in range(12):
                with host.span("aten::mm", "operator"):
                    host.work(8_000)
                    host.launch("gemm", 30_000)
        if log:
            with host.span("log"):
                host.work(round(5_000 * log))
                host.wait()


def two_streams(host: Host, load: float, log: float) -> None:
    """Copies on one stream, kernels on another, in step by events."""
    event = 0
    for _ in range(40):
        with host.span("load"):
            host.work(round(60_000 * load))
        host.launch("copy_kernel", 90_000, stream=9)
        event += 1
        host.record(event, stream=9)
        host.wait_for_event(event, stream=7)
        with host.span("model", "layer"):
            for _ in range(5):
                host.work(3_000)
                host.launch("gemm", 25_000)
        event += 1
        host.record(event, stream=7)
        host.wait_for_event(event, stream=9)
        if log:
            with host.span("log"):
                host.wait()
    host.wait()


WORLDS: list[World] = [loader_and_logging, two_streams]


def executed(world: World, load: float = 1, log: float = 1, **values: Any) -> Host:
    host = Host(**values)
    world(host, load, log)
    return host


def wall_ns(run: Path, **changes: Any) -> tuple[int, int, int]:
    """Return the recorded time, and the lowest and highest predicted."""
    found = gpuprof.open(run).whatif(**changes)
    assert found.low_ns is not None
    assert found.high_ns is not None
    return found.recorded_ns, found.recorded_ns - found.high_ns, found.recorded_ns - found.low_ns


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_a_replay_without_changes_takes_the_recorded_time(
    world: World, jitter: float, tmp_path: Path
) -> None:
    host = executed(world, jitter=jitter)
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    program = RecordedProcess.read(run._folder, 7).changed([])
    assert program.execute(ReplayRules(is_changed=False), of_all=False) == host.now_ns
    without = program.execute(ReplayRules(is_changed=False, keeps_delays=False), of_all=False)
    assert without == pytest.approx(host.now_ns, rel=0.03 if jitter else 1e-9)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("jitter", [0.0, 0.2])
@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"speed_up": {"load": 4}}, {"load": 0.25}),
        ({"remove": "log"}, {"log": 0}),
        ({"speed_up": {"load": 2}, "remove": "span:log"}, {"load": 0.5, "log": 0}),
    ],
)
def test_a_change_of_the_host_is_predicted(
    world: World, jitter: float, changes: dict[str, Any], changed: dict[str, float], tmp_path: Path
) -> None:
    recorded = executed(world, jitter=jitter)
    truth = executed(world, jitter=jitter, seed=2, **changed).now_ns
    recorded_ns, low, high = wall_ns(recorded.write(tmp_path / "r.gpuprof"), **changes)
    assert recorded_ns == recorded.now_ns
    assert low * 0.99 <= truth <= high * 1.01
    assert high - low <= 0.02 * recorded_ns


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("factor", [2, 5])
def test_faster_kernels_are_predicted(world: World, factor: int, tmp_path: Path) -> None:
    class Faster(Host):
        def launch(self, name: str, duration_ns: int, stream: int = 7) -> None:
            super().launch(name, round(duration_ns / (factor if name == "gemm" else 1)), stream)

    recorded, other = Host(), Faster()
    world(recorded, 1, 1)
    world(other, 1, 1)
    _, low, high = wall_ns(recorded.write(tmp_path / "r.gpuprof"), speed_up={"kernel:gemm": factor})
    assert low * 0.99 <= other.now_ns <= high * 1.01


FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FETCHES_NS = [3_000_000 + 400_000 * (7 * number % 5) for number in range(24)]
COMPUTE_NS = 2_000_000


def with_workers(workers: int) -> int:
    """Return the time of two epochs: worker i % workers fetches batch i, two batches ahead each."""
    now = 0
    for _ in range(2):
        consumed: list[int] = []
        free = [now] * workers
        for number, fetch_ns in enumerate(FETCHES_NS):
            ordered = consumed[number - 2 * workers] if number >= 2 * workers else now
            ready = max(free[number % workers], ordered) + fetch_ns
            free[number % workers] = ready
            consumed.append(max(ready, consumed[-1] + COMPUTE_NS if consumed else ready))
        now = consumed[-1] + COMPUTE_NS + 20_000  # and the call that ends the epoch
    return now


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_fetch_while_the_main_process_computes(workers: int, tmp_path: Path) -> None:
    host = Host()
    for _ in range(2):
        for fetch_ns in FETCHES_NS:
            with host.span(FETCH):
                host.work(fetch_ns)
            host.work(COMPUTE_NS)
        with host.span(FETCH):
            host.work(20_000)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).whatif(workers=workers)
    assert found.high_ns == host.now_ns - with_workers(workers)
    assert found.low_ns is not None
    # Four processors: more than three workers that compute share them with the main process.
    assert (found.low_ns < found.high_ns) == (workers > 3)


def random_program(seed: int) -> Host:
    """Any order of work, launches and waits."""
    draw = random.Random(seed)
    host = Host(jitter=0.2, seed=seed)
    event = 0
    for _ in range(60):
        with host.span(draw.choice("abc")):
            host.work(draw.randrange(1, 50_000))
            for _ in range(draw.randrange(4)):
                host.launch(draw.choice(["k", "l"]), draw.randrange(1_000, 60_000), draw.choice([7, 8]))
            if draw.random() < 0.3:
                event += 1
                host.record(event, draw.choice([7, 8]))
                host.wait_for_event(event, draw.choice([7, 8]))
        if draw.random() < 0.3:
            host.wait(draw.choice([7, 8]))
    return host


@pytest.mark.parametrize("seed", range(8))
def test_any_program_is_replayed_exactly_and_gains_are_bounded(seed: int, tmp_path: Path) -> None:
    host = random_program(seed)
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    gains = [predict(run._folder, speed_up={"a": factor}) for factor in (1.0, 1.5, 4.0)]
    gains.append(predict(run._folder, remove=["a"]))
    assert {each.recorded_ns for each in gains} == {host.now_ns}
    lows = [each.low_ns for each in gains if each.low_ns is not None]
    if lows:  # the rules explain enough
        assert lows[0] == 0 == gains[0].high_ns
        assert lows == sorted(lows)
        cost = gains[-1].changes[0].thread_ns + gains[-1].changes[0].gpu_ns
        highs = [each.high_ns for each in gains]
        assert all(high is not None and 0 <= high <= cost + 0.1 * host.now_ns for high in highs)


def test_a_long_call_that_waits_for_nothing_is_replayed_exactly(tmp_path: Path) -> None:
    host = Host()
    for _ in range(5):
        with host.span("step"):
            host.launch("gemm", 10_000)
            host.work(100_000)
            host.wait(least_ns=40_000)
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    program = RecordedProcess.read(run._folder, run.meta["process_id"]).changed([])
    assert program.execute(ReplayRules(is_changed=False), of_all=False) == host.now_ns


def test_waits_that_the_recorded_times_contradict_are_left_out(tmp_path: Path) -> None:
    host = executed(two_streams)
    for kernel in host.kernels:
        if kernel["stream"] == 9:
            kernel["start_ns"] += 10_000_000
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).whatif(remove="load")
    assert found.contradicted > 0
    assert found.recorded_ns == host.now_ns


def test_a_run_that_the_rules_do_not_explain_has_no_predicted_time(tmp_path: Path) -> None:
    host = executed(loader_and_logging)
    # Kernels wait for something that was not recorded.
    for kernel in host.kernels:
        kernel["start_ns"] = host.kernels[0]["start_ns"] + 2 * (
            kernel["start_ns"] - host.kernels[0]["start_ns"]
        )
    last = host.kernels[-1]
    host.now_ns = last["start_ns"] + last["duration_ns"]
    host.wait()
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).whatif(remove="load")
    assert found.explained < 0.9
    assert found.low_ns is None
    assert found.high_ns is None
    assert "unknown" in str(found)
