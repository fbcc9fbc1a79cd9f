# SPDX-License-Identifier: Apache-2.0
"""Loads that are recorded while they run: requests with planted causes, on real clocks.

A busy machine may make any request slow: tests look at the causes of the planted ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import gpuprof
from gpuprof.analyze.requests.slow_request import SlowRequest, TimePart
from gpuprof.errors import BenchmarkError, RecordingError, RunError
from gpuprof.load import open_result
from gpuprof.load.driver import DriveSettings, drive, drive_closed
from gpuprof.load.profiling import ProfiledLoad
from gpuprof.load.result import PROFILE_FOLDER, LoadResult, LoadSettings
from gpuprof.load.run import LoadOptions, run_load
from gpuprof.load.targets.base import Target
from gpuprof.load.targets.in_process import BatchedCallableTarget, CallableTarget, CoroutineTarget
from gpuprof.record.stack_sampler import why_not

needs_sampler = pytest.mark.skipif(why_not() is not None, reason="no native sampler")
EVERY = 10
PLANTED_S = 0.03


def load_of(target: Any, folder: Path, count: int = 3 * EVERY) -> LoadResult:
    settings = LoadSettings("target", "closed-loop", count=count)
    options = LoadOptions(profile=folder / PROFILE_FOLDER, probe=False)
    return run_load(target, settings, options=options)


def drive_profiled(
    target: Target, folder: Path, *, count: int = 8, concurrency: int = 1
) -> tuple[ProfiledLoad, Any]:
    profile = ProfiledLoad(folder / PROFILE_FOLDER, target, count)
    found = drive(profile.profiled, np.zeros(count, np.int64), DriveSettings(concurrency))
    profile.close(found)
    return profile, found


def planted(result: LoadResult) -> list[SlowRequest]:
    return [each for each in result.slowest(1000) if each.index % EVERY == EVERY - 1]


def check_sums(result: LoadResult) -> None:
    """Check the parts against the service times of the result, which another clock has measured."""
    rows = result.rows
    for each in result.slowest(1000):
        assert each.parts_ns is not None
        assert each.service_ns == rows["end_ns"][each.index] - rows["sent_ns"][each.index]
        in_span = sum(time_ns for part, time_ns in each.parts_ns.items() if part is not TimePart.PARALLEL)
        assert in_span == each.service_ns
        assert each.parts_ns[TimePart.OUTSIDE] > -50_000  # the clocks differ by less


def check_one_of_three(folder: Path, target: Any, check: Callable[[LoadResult], None]) -> None:
    """Check a load, or another one: where the sampler gets no processor, it sees a wait too late."""
    for number in range(3):
        result = load_of(target, folder / str(number))
        check_sums(result)
        try:
            check(result)
        except AssertionError:
            if number == 2:
                raise
        else:
            return


class Counted:
    """Calls a function, and another one first in each tenth call."""

    def __init__(self, usual: Callable[[], object], rare: Callable[[], object]) -> None:
        self._usual, self._rare, self._calls = usual, rare, 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls % EVERY == 0:
            self._rare()
        self._usual()


def nothing() -> None:
    pass


def rarely_sleeps() -> None:
    time.sleep(PLANTED_S)


@needs_sampler
def test_a_request_that_sleeps(tmp_path: Path) -> None:
    def check(result: LoadResult) -> None:
        found = planted(result)
        assert len(found) == 3
        for each in found:
            assert each.cause is not None
            assert each.cause.kind == "waiting"
            assert each.cause.inside.startswith("rarely_sleeps (")
            assert each.cause.typical_ns == 0
            assert each.parts_ns is not None
            assert each.parts_ns[TimePart.WAITING] > 0.8 * PLANTED_S * 1e9

    check_one_of_three(tmp_path, Counted(nothing, rarely_sleeps), check)


@pytest.fixture
def held_lock() -> Iterator[Callable[[], None]]:
    """A function that waits for a lock until another thread, which it wakes up, releases it."""
    lock, wanted, held = threading.Lock(), threading.Event(), threading.Event()
    stopped = False

    def hold() -> None:
        while True:
            wanted.wait()
            wanted.clear()
            if stopped:
                return
            with lock:
                held.set()
                time.sleep(PLANTED_S)

    def wait_for_lock() -> None:
        wanted.set()
        held.wait()
        held.clear()
        with lock:
            pass

    thread = threading.Thread(target=hold)
    thread.start()
    yield wait_for_lock
    stopped = True
    wanted.set()
    thread.join()


@needs_sampler
def test_a_request_that_waits_for_a_lock(tmp_path: Path, held_lock: Callable[[], None]) -> None:
    def check(result: LoadResult) -> None:
        for each in planted(result):
            assert each.cause is not None
            assert each.cause.kind == "waiting"
            assert "wait_for_lock (" in each.cause.inside
            assert each.cause.typical_ns == 0

    check_one_of_three(tmp_path, Counted(nothing, held_lock), check)


@needs_sampler
@pytest.mark.slow
def test_a_request_that_collects_garbage(tmp_path: Path) -> None:
    kept = [[number] for number in range(400_000)]  # each collection visits these
    gc.collect()
    gc.disable()
    try:
        result = load_of(Counted(nothing, gc.collect), tmp_path)
    finally:
        gc.enable()
    assert len(kept) == 400_000
    check_sums(result)
    for each in planted(result):
        assert each.cause is not None
        assert (each.cause.kind, each.cause.name) == ("gc", "generation 2")
        assert each.parts_ns is not None
        assert each.parts_ns[TimePart.GC] > each.service_ns // 2


def test_a_request_with_a_slow_layer(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Rare(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, value: Any) -> Any:
            for _ in range(2_000):
                value = torch.sin(value)
            return value

    class Net(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.rare, self.usual, self.calls = Rare(), torch.nn.Linear(8, 8), 0

        def forward(self, value: Any) -> Any:
            self.calls += 1
            if self.calls % EVERY == 0:
                value = self.rare(value)
            return self.usual(value)

    model, value = Net(), torch.zeros(4, 8)

    def call() -> None:
        with torch.no_grad():
            model(value)

    result = load_of(call, tmp_path)
    check_sums(result)
    run = gpuprof.open(tmp_path / PROFILE_FOLDER)
    query = "SELECT index, count(*) FROM request_spans WHERE name = 'aten::sin' GROUP BY 1 ORDER BY 1"
    assert run.sql(query).fetchall() == [(index, 2_000) for index in (9, 19, 29)]
    causes = [each.cause for each in planted(result)]
    # The loop itself, or the operator that it calls; one of the requests may have waited for a processor.
    expected = [("operator", "aten::sin", "rare"), ("layer", "rare", "Net")]
    found = [each is not None and (each.kind, each.name, each.inside) in expected for each in causes]
    assert sum(found) >= len(found) - 1 > 0, causes


def test_requests_of_threads_are_those_that_each_thread_served(tmp_path: Path) -> None:
    served: dict[int, int] = {}

    def serve(index: int) -> None:
        with gpuprof.span(f"work of {index}"):
            served[index] = threading.get_native_id()

    drive_profiled(CallableTarget(serve, with_index=True), tmp_path, count=200, concurrency=4)
    run = gpuprof.open(tmp_path / PROFILE_FOLDER)
    rows = run.sql("SELECT index, name, thread_id FROM request_spans WHERE name LIKE 'work%'").fetchall()
    assert sorted(rows) == [(index, f"work of {index}", served[index]) for index in range(200)]
    assert run.requests().rows.status == ["ok"] * 200


def test_requests_of_tasks_have_their_own_spans(tmp_path: Path) -> None:
    async def inner(index: int) -> None:
        with gpuprof.span(f"inner {index}"):
            await asyncio.sleep(0)

    async def serve(index: int) -> None:
        with gpuprof.span(f"work of {index}"):
            await asyncio.gather(inner(index), inner(index))

    drive_profiled(CoroutineTarget(serve, with_index=True), tmp_path, count=40, concurrency=8)
    run = gpuprof.open(tmp_path / PROFILE_FOLDER)
    counted = dict(
        run.sql(
            "SELECT name, list(index) FROM request_spans WHERE name SIMILAR TO '(work|inner).*' GROUP BY 1"
        ).fetchall()
    )
    assert counted == {
        **{f"work of {index}": [index] for index in range(40)},
        **{f"inner {index}": [index] * 2 for index in range(40)},
    }
    turns = run.sql("SELECT count(*) FROM request_spans WHERE name = 'running' GROUP BY index").fetchall()
    assert len(turns) == 40
    assert {count for (count,) in turns} == {2}


def test_tasks_end_as_they_do_without_a_profile(tmp_path: Path) -> None:
    async def serve(index: int) -> str:
        if index == 0:
            raise ValueError(index)
        try:
            await asyncio.wait_for(asyncio.sleep(3600), 0.001)
        except asyncio.TimeoutError:
            return "timeout"
        return "never"

    _, found = drive_profiled(CoroutineTarget(serve, with_index=True), tmp_path, count=2, concurrency=2)
    assert [each.name for each in map(_status, found.rows["status"])] == ["FAILED", "OK"]
    assert (found.first_failure.type, found.first_failure.message) == ("ValueError", "0")


def _status(code: int) -> Any:
    from gpuprof.load.requests import RequestStatus

    return RequestStatus(code)


def test_a_batch_is_one_span_of_all_its_requests(tmp_path: Path) -> None:
    sizes = []

    def serve(indexes: Any) -> None:
        sizes.append(len(indexes))
        with gpuprof.span("work"):
            pass

    drive_profiled(BatchedCallableTarget(serve, 4, 0), tmp_path, count=10)
    run = gpuprof.open(tmp_path / PROFILE_FOLDER)
    found = run.sql("SELECT count(*) FROM requests GROUP BY span_id ORDER BY min(index)").fetchall()
    assert [count for (count,) in found] == sizes
    assert run.sql("SELECT count(DISTINCT index) FROM request_spans WHERE name = 'work'").fetchall() == [
        (10,)
    ]
    assert [each.batch_size for each in run.requests().slowest(3)].count(4) == 2


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    def serve(index: int) -> None:
        if index == 5:
            os.kill(os.getpid(), signal.SIGINT)

    profile = ProfiledLoad(tmp_path / PROFILE_FOLDER, CallableTarget(serve, with_index=True), 1000)
    plan = np.concatenate([np.zeros(6, np.int64), np.full(10, 3_600_000_000_000)])
    found = drive(profile.profiled, plan)
    profile.close(found)
    assert found.interrupted
    requests = gpuprof.open(tmp_path / PROFILE_FOLDER).requests()
    assert len(requests) == 6
    assert len(requests.known) == 6


def test_a_request_that_hangs_is_a_timeout_with_a_span(tmp_path: Path) -> None:
    never = threading.Event()
    profile = ProfiledLoad(tmp_path / PROFILE_FOLDER, CallableTarget(never.wait), 2)
    found = drive(profile.profiled, np.zeros(2, np.int64), DriveSettings(drain_s=0.2))
    profile.close(found)
    never.set()
    hung, not_sent = gpuprof.open(tmp_path / PROFILE_FOLDER).requests().rows.status
    assert (hung, not_sent) == ("timeout", "not_sent")
    (slow,) = gpuprof.open(tmp_path / PROFILE_FOLDER).requests().slowest()
    assert slow.parts_ns is not None
    assert slow.service_ns > 0.1e9


def test_a_closed_loop_matches_each_client(tmp_path: Path) -> None:
    def serve(index: int) -> None:
        with gpuprof.span(f"work of {index}"):
            pass

    profile = ProfiledLoad(tmp_path / PROFILE_FOLDER, CallableTarget(serve, with_index=True), 100)
    profile.close(drive_closed(profile.profiled, count=100, settings=DriveSettings(3)))  # type: ignore[arg-type]
    run = gpuprof.open(tmp_path / PROFILE_FOLDER)
    rows = run.sql("SELECT index, name FROM request_spans WHERE name LIKE 'work%' ORDER BY 1").fetchall()
    assert rows == [(index, f"work of {index}") for index in range(100)]


def test_the_result_opens_again(tmp_path: Path) -> None:
    result = gpuprof.load(nothing, scenario="closed-loop", count=30, out=str(tmp_path), profile=True)
    assert (tmp_path / "tail.html").exists()
    again = open_result(tmp_path)
    assert again.profile == tmp_path / PROFILE_FOLDER
    assert again.slowest() == result.slowest()
    # A second load replaces the first, profile and all.
    gpuprof.load(nothing, scenario="closed-loop", count=5, out=str(tmp_path), profile=True)
    assert len(open_result(tmp_path).profiled) == 5
    assert not (tmp_path / "tail.html").exists()
    gpuprof.load(nothing, scenario="closed-loop", count=5, out=str(tmp_path))
    with refused(RunError, "no_profile"):
        open_result(tmp_path).slowest()


def test_a_folder_that_is_no_run_is_not_replaced(tmp_path: Path) -> None:
    kept = tmp_path / PROFILE_FOLDER / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with refused(gpuprof.RecordingError, "exists", PROFILE_FOLDER):
        load_of(nothing, tmp_path)
    assert kept.read_text() == "mine"


def test_a_profile_that_cannot_be_written_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_path: Path) -> None:
        raise RunError("cannot_write", "no room")

    monkeypatch.setattr("gpuprof.load.profiling.close_run", no_room)
    result = load_of(nothing, tmp_path)
    assert len(result.rows) == 3 * EVERY
    assert result.profile is None
    assert "no_profile" in [each.code for each in result.warnings]


def test_what_cannot_be_profiled_is_refused(tmp_path: Path) -> None:
    class Other:
        async def open(self, sink: Any, concurrency: Any) -> None: ...
        def send(self, index: int) -> None: ...
        async def close(self) -> None: ...

    with refused(BenchmarkError, "cannot_profile", "Other"):
        ProfiledLoad(tmp_path, Other(), 1)
    with refused(BenchmarkError, "no_out"):
        gpuprof.load(nothing, profile=True)
    with gpuprof.profile(), refused(gpuprof.RecordingError, "recording_active"):
        load_of(nothing, tmp_path)
    assert not (tmp_path / PROFILE_FOLDER).exists()


def test_a_profile_that_is_being_recorded_is_not_removed(tmp_path: Path) -> None:
    from gpuprof.load.profiling import _make_room

    path = tmp_path / "profile.gpuprof"
    with gpuprof.profile(out=path, operators=False, gpu=False):
        with refused(RecordingError, "in_use", path):
            _make_room(path)
        assert path.exists()
    _make_room(path)
    assert not path.exists()
