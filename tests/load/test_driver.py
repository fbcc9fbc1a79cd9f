# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from refusals import refused

from gpuprof import _native
from gpuprof.errors import BenchmarkError
from gpuprof.load.driver import MOST_THREADS, MOST_UNDER_WAY, DrivenLoad, DriveSettings, drive, drive_closed
from gpuprof.load.requests import REQUEST, RequestStatus, latency_ns
from gpuprof.load.targets.base import RequestError
from gpuprof.load.targets.event_loop import paced_file
from gpuprof.load.targets.in_process import BatchedCallableTarget, CallableTarget, CoroutineTarget
from gpuprof.load.targets.server_target import server_target

EVERY_MS = np.arange(40) * 1_000_000


def check_order(load: DrivenLoad, count: int) -> None:
    rows = load.rows
    assert len(rows) == count
    assert (rows["status"] == RequestStatus.OK).all()
    assert (rows["planned_ns"] <= load.released_ns).all()
    assert (load.released_ns <= rows["end_ns"]).all()
    assert (rows["sent_ns"] <= rows["end_ns"]).all()
    assert load.end_ns == rows["end_ns"].max()


@pytest.mark.parametrize("concurrency", [None, 1, 3])
def test_every_request_of_a_plan_is_sent_once_and_never_early(concurrency: int | None) -> None:
    seen: list[int] = []
    target = CallableTarget(seen.append, with_index=True)
    load = drive(target, EVERY_MS, DriveSettings(concurrency=concurrency))
    assert sorted(seen) == list(range(40))
    assert (load.rows["planned_ns"] - load.start_ns).tolist() == EVERY_MS.tolist()
    check_order(load, 40)
    assert not load.interrupted


def test_coroutines_are_in_service_at_the_same_time() -> None:
    seen: list[int] = []
    all_are_sent = asyncio.Event()

    async def respond(index: int) -> None:
        seen.append(index)
        if len(seen) == 30:
            all_are_sent.set()
        await all_are_sent.wait()

    check_order(drive(CoroutineTarget(respond, with_index=True), np.zeros(30, np.int64)), 30)
    assert seen == list(range(30))


def test_a_cap_delays_coroutines_and_skips_none() -> None:
    seen: list[int] = []
    most = now = 0

    async def respond(index: int) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        seen.append(index)
        await asyncio.sleep(0)
        now -= 1

    plan = np.zeros(30, np.int64)
    check_order(drive(CoroutineTarget(respond, with_index=True), plan, DriveSettings(concurrency=2)), 30)
    assert seen == list(range(30))
    assert most <= 2


def test_a_batch_has_what_is_due_within_its_delay() -> None:
    batches: list[list[int]] = []
    plan = np.zeros(10, np.int64)
    target = BatchedCallableTarget(lambda indexes: batches.append(indexes.tolist()), 4, 0)
    check_order(drive(target, plan), 10)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_failures_have_their_status() -> None:
    def respond(index: int) -> None:
        if index == 1:
            raise RequestError(RequestStatus.REFUSED)
        if index == 2:
            raise ValueError("x")

    async def respond_later(index: int) -> None:
        respond(index)

    expected = [RequestStatus.OK, RequestStatus.REFUSED, RequestStatus.FAILED]
    for target in (CallableTarget(respond, with_index=True), CoroutineTarget(respond_later, with_index=True)):
        load = drive(target, np.zeros(3, np.int64))
        assert load.rows["status"].tolist() == expected


def test_what_is_unfinished_at_the_deadline_is_late_and_does_not_vanish() -> None:
    never = threading.Event()

    async def hang() -> None:
        await asyncio.sleep(3600)

    for target in (CallableTarget(never.wait), CoroutineTarget(hang)):
        load = drive(target, np.zeros(3, np.int64), DriveSettings(concurrency=1, drain_s=0.5))
        assert load.rows["status"].tolist() == [
            RequestStatus.TIMEOUT,
            RequestStatus.NOT_SENT,
            RequestStatus.NOT_SENT,
        ]
        assert (latency_ns(load.rows) >= 0.5e9).all()
    never.set()


def test_ctrl_c_keeps_what_was_due() -> None:
    def respond(index: int) -> None:
        if index == 5:
            os.kill(os.getpid(), signal.SIGINT)

    async def respond_later(index: int) -> None:
        respond(index)

    plan = np.concatenate([np.zeros(6, np.int64), np.full(10, 3_600_000_000_000)])
    for target in (CallableTarget(respond, with_index=True), CoroutineTarget(respond_later, with_index=True)):
        load = drive(target, plan)
        assert load.interrupted
        assert len(load.rows) == 6
        assert (load.rows["status"][:5] == RequestStatus.OK).all()


def test_a_closed_loop_sends_when_the_former_request_ended() -> None:
    load = drive_closed(CallableTarget(lambda: None), count=50)
    rows = load.rows
    assert rows["planned_ns"][1:].tolist() == rows["end_ns"][:-1].tolist()
    check_order(load, 50)


def test_a_closed_loop_runs_for_its_duration_and_its_least_count() -> None:
    assert len(drive_closed(CallableTarget(lambda: None), duration_s=1e-9, least=20).rows) == 20
    found = drive_closed(
        CallableTarget(lambda: None), duration_s=0.01, least=1, settings=DriveSettings(concurrency=2)
    )
    check_order(found, len(found.rows))


def test_rows_are_in_the_file_while_requests_run(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    found: list[int] = []

    def respond(index: int) -> None:
        found.append(int((np.fromfile(path, REQUEST)["end_ns"] > 0).sum()))

    drive(CallableTarget(respond, with_index=True), np.zeros(3, np.int64), DriveSettings(log_path=path))
    assert found == [0, 1, 2]


def test_what_sends_nothing_is_refused() -> None:
    with refused(BenchmarkError, "empty_plan"):
        drive(CallableTarget(lambda: None), np.zeros(0, np.int64))
    with refused(BenchmarkError, "invalid_concurrency", 0):
        DriveSettings(concurrency=0)
    with refused(BenchmarkError, "endless"):
        drive_closed(CallableTarget(lambda: None))


@pytest.mark.parametrize("concurrency", [MOST_THREADS + 1, 99_999_999_999])
def test_more_threads_than_a_limit_are_refused_before_any_work(concurrency: int) -> None:
    target = mock.Mock(spec=CallableTarget)
    with refused(BenchmarkError, "too_many_at_once"):
        drive(target, EVERY_MS, DriveSettings(concurrency=concurrency))
    with refused(BenchmarkError, "too_many_at_once"):
        drive_closed(target, count=5, settings=DriveSettings(concurrency=concurrency))
    assert not target.method_calls


def test_more_requests_at_once_than_there_are_ports_are_refused() -> None:
    DriveSettings(concurrency=MOST_UNDER_WAY)
    with refused(BenchmarkError, "too_many_at_once"):
        server_target("http://127.0.0.1:1/", concurrency=MOST_UNDER_WAY + 1)


def test_a_machine_without_more_threads_ends_those_that_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def start_three(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    target = mock.Mock(wraps=CallableTarget(lambda: None))
    settings = DriveSettings(concurrency=5)
    for run in (
        lambda: drive(target, np.full(3, 3_600_000_000_000), settings),
        lambda: drive_closed(target, duration_s=3600, settings=settings),
    ):
        started.clear()
        target.close.reset_mock()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_three)
            with refused(BenchmarkError, "no_threads"):
                run()
        assert [thread.is_alive() for thread in started] == [False] * 3
        target.close.assert_called_once()


def test_a_pacer_whose_thread_cannot_be_started_is_refused() -> None:
    pacer = mock.Mock()
    pacer.fileno.side_effect = BlockingIOError(11, "Resource temporarily unavailable")
    with refused(BenchmarkError, "no_threads"):
        paced_file(pacer)


def test_a_plan_out_of_order_is_refused() -> None:
    for offsets in ([2, 1], [-1, 0]):
        with pytest.raises(ValueError, match="order"):
            _native.Pacer(np.array(offsets, np.int64))


def test_stopping_a_pacer_ends_every_wait() -> None:
    pacer = _native.Pacer(np.full(3, 3_600_000_000_000))
    pacer.start(time.monotonic_ns())
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(pacer.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    pacer.stop()
    for thread in threads:
        thread.join(30)
    assert found == [None] * 3
    assert pacer.is_finished


def leaves(index: int) -> None:
    if index % 2:
        sys.exit(3)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_function_that_exits_fails_its_requests_and_no_others(concurrency: int) -> None:
    target = CallableTarget(leaves, with_index=True)
    settings = DriveSettings(concurrency=concurrency)
    plan = np.zeros(20, np.int64)
    for load in (drive(target, plan, settings), drive_closed(target, count=20, settings=settings)):
        assert load.rows["status"].tolist() == [RequestStatus.OK, RequestStatus.FAILED] * 10
        assert load.first_failure is not None
        assert (load.first_failure.type, load.first_failure.message) == ("SystemExit", "3")


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_a_task_that_exits_or_cancels_itself_fails_its_request(error: type[BaseException]) -> None:
    async def respond(index: int) -> None:
        if index % 2:
            raise error

    load = drive(CoroutineTarget(respond, with_index=True), np.zeros(20, np.int64), DriveSettings(drain_s=20))
    assert load.rows["status"].tolist() == [RequestStatus.OK, RequestStatus.FAILED] * 10
    assert load.first_failure is not None
    assert load.first_failure.type == error.__name__
