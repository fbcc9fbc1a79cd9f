# SPDX-License-Identifier: Apache-2.0
"""Runs requests against a target: open loop by a plan, or closed loop, where each waits for the one before.

A cap on the concurrency queues requests and skips none. What is unfinished at the deadline ends as a timeout,
and Ctrl-C keeps what was due until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof import _native
from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import REQUEST, Nanoseconds, RequestStatus, Rows, rows_of
from gpuprof.load.targets.base import (
    BatchTarget,
    LoopTarget,
    RequestError,
    Target,
    TargetFailure,
    ThreadTarget,
    failure_of,
)
from gpuprof.load.targets.event_loop import no_thread, paced_file

# How long after the last planned arrival responses are waited for.
DRAIN_S = 60.0
PROGRESS_EVERY_S = 0.5
_LEAD_NS = 5_000_000  # from the start of the threads to the first arrival
MOST_CLOSED = 1 << 24  # requests of a closed loop without a count
MOST_THREADS = 10_000  # of a target in this process
MOST_UNDER_WAY = 65_535  # requests at once: as many as there are ports for connections to a server
_CLOSING_NS = 5_000_000_000  # for the threads that were started where others cannot be
_OK = int(RequestStatus.OK)
_FAILED = int(RequestStatus.FAILED)
Progress = Callable[[Rows], None]


@dataclass(frozen=True)
class DrivenLoad:
    """What a run gave: a row for each request that was due, in the order of the plan.

    `released_ns` is when the pacer handed over each request; later than planned where all workers were busy.
    `indexes` are the numbers by which the target knew the requests, None for 0, 1, 2, ... `client_code` is
    what the process of a client returned that ended before the load; None of others.
    """

    rows: Rows
    start_ns: int
    end_ns: int
    released_ns: Nanoseconds
    interrupted: bool = False
    duplicates: int = 0  # ends that were reported for a request that had ended
    first_failure: TargetFailure | None = None
    batch_wait_s: float | None = None  # of a target that batches; None of others
    indexes: Nanoseconds | None = None
    client_code: int | None = None


@dataclass(frozen=True, slots=True)
class DriveSettings:
    """How a plan is run. `concurrency` None is no cap in an event loop, and one thread in process."""

    concurrency: int | None = None
    drain_s: float = DRAIN_S
    log_path: Path | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise BenchmarkError(
                "invalid_concurrency",
                f"a concurrency of {self.concurrency} sends nothing",
                hint="use a whole number from 1",
            )
        if self.concurrency is not None and self.concurrency > MOST_UNDER_WAY:
            raise _too_many(self.concurrency, MOST_UNDER_WAY, "requests at once")


def check_threads(concurrency: int | None) -> None:
    """Raise BenchmarkError for more threads than a target in this process is given."""
    if concurrency is not None and concurrency > MOST_THREADS:
        raise _too_many(concurrency, MOST_THREADS, "threads of a target in this process")


def _too_many(concurrency: int, most: int, what: str) -> BenchmarkError:
    return BenchmarkError(
        "too_many_at_once",
        f"a concurrency of {concurrency:,} is above the limit of {most:,} {what}",
        hint="use a lower --concurrency",
    )


def drive(target: Target, arrivals_ns: Nanoseconds, settings: DriveSettings | None = None) -> DrivenLoad:
    """Send a request at each planned offset from the start, in nanoseconds; returns when all have ended.

    Raises GpuprofError where the target cannot be prepared, and BenchmarkError for an empty plan and for
    threads that cannot be started.
    """
    if not len(arrivals_ns):
        raise BenchmarkError(
            "empty_plan", "the plan has no arrivals", hint="use a longer duration or a higher rate"
        )
    settings = settings or DriveSettings()
    if not isinstance(target, LoopTarget):
        check_threads(settings.concurrency)
    return _OpenRun(np.ascontiguousarray(arrivals_ns, np.int64), settings).run(target)


def drive_closed(
    target: ThreadTarget,
    *,
    count: int | None = None,
    duration_s: float | None = None,
    least: int = 0,
    settings: DriveSettings | None = None,
) -> DrivenLoad:
    """Send each request when the one before it ended, in as many threads as the concurrency.

    Ends after `count` requests, or once `duration_s` is over and `least` requests were sent. Raises
    BenchmarkError where neither is given, and for threads that cannot be started.
    """
    if count is None and duration_s is None:
        raise BenchmarkError("endless", "a closed loop without an end", hint="set a count or a duration")
    settings = settings or DriveSettings()
    check_threads(settings.concurrency)
    return _ClosedRun(count, duration_s, least, settings).run(target)


class _OpenRun:
    def __init__(self, arrivals_ns: Nanoseconds, settings: DriveSettings) -> None:
        self.settings = settings
        self.arrivals_ns = arrivals_ns
        self.pacer = _native.Pacer(arrivals_ns)
        path = settings.log_path
        self.log = _native.RequestLog(len(arrivals_ns), "" if path is None else str(path))
        self.rows: Rows = rows_of(self.log)
        self.start_ns = 0
        self.interrupted_ns: int | None = None
        self.first_failure: TargetFailure | None = None
        self.batching = threading.Lock()
        self.batch_wait_s: float | None = None

    def failed(self, error: BaseException) -> None:
        if self.first_failure is None:
            self.first_failure = failure_of(error)

    def run(self, target: Target) -> DrivenLoad:
        if isinstance(target, LoopTarget):
            try:
                asyncio.run(self._run_loop(target))
            except KeyboardInterrupt:  # on Python 3.10 also where the loop has ended in good order
                if self.interrupted_ns is None:
                    raise
        else:
            with _prepared(target):
                self._run_threads(target)
        return self._result()

    def start(self) -> None:
        self.start_ns = time.monotonic_ns() + _LEAD_NS
        self.rows["planned_ns"] = self.start_ns + self.arrivals_ns
        self.pacer.start(self.start_ns)

    @property
    def deadline_ns(self) -> int:
        return int(self.rows["planned_ns"][-1] + self.settings.drain_s * 1e9)

    def _run_threads(self, target: ThreadTarget | BatchTarget) -> None:
        work = self._calls
        if isinstance(target, BatchTarget):
            work, self.batch_wait_s = self._batches, target.max_delay_ns / 1e9
        self.start()
        try:
            count = self.settings.concurrency or 1
            threads = _start_threads(lambda _: work(target), count, self.pacer.stop)
            _join(threads, self.deadline_ns, self.settings.progress, self.rows)
        except KeyboardInterrupt:
            self.interrupted_ns = time.monotonic_ns()
        finally:
            self.pacer.stop()

    def _calls(self, target: Any) -> None:
        take, begin, end, call = self.pacer.take, self.log.begin, self.log.end, target.call
        while (index := take()) is not None:
            begin(index)
            try:
                units = call(index)
            except BaseException as error:  # SystemExit would end the thread without a word
                self.failed(error)
                end(index, _status_of(error), 0)
            else:
                end(index, _OK, units)

    def _batches(self, target: Any) -> None:
        while len(indexes := self._batch(target)):
            try:
                pairs = [*zip(indexes.tolist(), target.call_batch(indexes), strict=True)]
                status = _OK
            except BaseException as error:
                self.failed(error)
                status, pairs = _status_of(error), [(index, 0) for index in indexes.tolist()]
            ended = [index for index, units in pairs if self.log.end(index, status, units)]
            if ended:
                self.rows["end_ns"][ended] = self.rows["end_ns"][ended[0]]

    def _batch(self, target: Any) -> Nanoseconds:
        """Return the next batch, sent at one moment, by which its requests are found in the rows."""
        # One batch is filled at a time: requests that wait are not divided among free threads.
        with self.batching:
            indexes = self.pacer.take_batch(target.max_batch, target.max_delay_ns)
        for index in indexes.tolist():
            self.log.begin(index)
        if len(indexes):
            self.rows["sent_ns"][indexes] = self.rows["sent_ns"][indexes[0]]
        return indexes

    async def _run_loop(self, target: LoopTarget) -> None:
        sender = _LoopSender(self, target)
        await target.open(sender, self.settings.concurrency)
        try:
            await sender.run()
        except asyncio.CancelledError:  # Ctrl-C, as asyncio.run reports it
            self.interrupted_ns = time.monotonic_ns()
            task = asyncio.current_task()
            if task is not None and hasattr(task, "uncancel"):
                task.uncancel()
        finally:
            self.pacer.stop()
            await target.close()

    def _result(self) -> DrivenLoad:
        duplicates = self.log.duplicates
        self.log.close()
        stop_ns = self.interrupted_ns
        due = len(self.rows) if stop_ns is None else int((self.rows["planned_ns"] <= stop_ns).sum())
        rows = self.rows[:due].copy()
        return DrivenLoad(
            rows=rows,
            start_ns=self.start_ns,
            end_ns=int(rows["end_ns"].max(initial=self.start_ns)),
            released_ns=self.pacer.released_ns()[:due],
            interrupted=stop_ns is not None,
            duplicates=duplicates,
            first_failure=self.first_failure,
            batch_wait_s=self.batch_wait_s,
        )


class _LoopSender:
    """Sends what is due in the event loop, and keeps what the cap on the concurrency delays."""

    def __init__(self, run: _OpenRun, target: LoopTarget) -> None:
        self._run, self._log, self._send = run, run.log, target.send
        self._free = run.settings.concurrency or len(run.rows)
        self._queue: deque[int] = deque()
        self._is_sending = False
        self._done = asyncio.Event()
        self.first = run.log.first
        self.failed = run.failed

    def end(self, index: int, status: int, units: int) -> None:
        """Report the end of a request, and send the next one that waits."""
        if not self._log.end(index, status, units):
            return
        self._free += 1
        if self._queue and not self._is_sending:
            self._send_queued()
        elif self._log.ended == len(self._log):
            self._done.set()

    async def run(self) -> None:
        """Send the whole plan; returns at the deadline at the latest."""
        loop = asyncio.get_running_loop()
        self._run.start()
        file = paced_file(self._run.pacer)
        loop.add_reader(file, self._send_due)
        deadline_ns = self._run.deadline_ns
        try:
            while not self._done.is_set() and (left_ns := deadline_ns - time.monotonic_ns()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._done.wait(), min(left_ns / 1e9, PROGRESS_EVERY_S))
                if self._run.settings.progress is not None:
                    self._run.settings.progress(self._run.rows)
        finally:
            loop.remove_reader(file)

    def _send_due(self) -> None:
        self._queue.extend(self._run.pacer.take_ready().tolist())
        self._send_queued()

    def _send_queued(self) -> None:
        # A target that ends a request at once calls `end` from inside `send`: the loop here sees it.
        self._is_sending = True
        while self._queue and self._free:
            self._free -= 1
            index = self._queue.popleft()
            self._log.begin(index)
            self._send(index)
        self._is_sending = False
        if self._log.ended == len(self._log):
            self._done.set()


class _ClosedRun:
    def __init__(
        self, count: int | None, duration_s: float | None, least: int, settings: DriveSettings
    ) -> None:
        self.settings = settings
        self.duration_ns = None if duration_s is None else int(duration_s * 1e9)
        self.least = least
        self.count = MOST_CLOSED if count is None else count
        self.log = _native.RequestLog(self.count)
        self.indexes = iter(range(self.count))
        self.stopped = False
        self.start_ns = 0
        self.first_failure: TargetFailure | None = None

    def run(self, target: ThreadTarget) -> DrivenLoad:
        rows: Rows = rows_of(self.log)
        interrupted = False
        with _prepared(target):
            self.start_ns = time.monotonic_ns()
            try:
                count = self.settings.concurrency or 1
                threads = _start_threads(lambda _: self._calls(target), count, self._stop)
                _join(threads, self._deadline_ns(), self.settings.progress, rows)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                self._stop()
        return self._result(rows, interrupted)

    def _stop(self) -> None:
        self.stopped = True

    def _deadline_ns(self) -> int | None:
        if self.duration_ns is None or self.least:
            return None
        return self.start_ns + self.duration_ns + int(self.settings.drain_s * 1e9)

    def _calls(self, target: ThreadTarget) -> None:
        call, begin_next, end = target.call, self.log.begin_next, self.log.end
        former = -1
        for index in self.indexes:
            if self.stopped or self._is_over(index):
                return
            begin_next(index, former)
            try:
                units = call(index)
            except BaseException as error:
                self.first_failure = self.first_failure or failure_of(error)
                end(index, _status_of(error), 0)
            else:
                end(index, _OK, units)
            former = index

    def _is_over(self, index: int) -> bool:
        return (
            self.duration_ns is not None
            and index >= self.least
            and time.monotonic_ns() - self.start_ns >= self.duration_ns
        )

    def _result(self, rows: Rows, interrupted: bool) -> DrivenLoad:
        duplicates = self.log.duplicates
        # The log has room for many more, and reading it all would take its memory.
        taken = next(self.indexes, self.count)
        now_ns = time.monotonic_ns()
        indexes = np.flatnonzero(rows["sent_ns"][:taken] > 0)
        kept = rows[indexes]
        unfinished = kept["status"] <= int(RequestStatus.PENDING)
        kept["end_ns"][unfinished], kept["status"][unfinished] = now_ns, int(RequestStatus.TIMEOUT)
        return DrivenLoad(
            rows=kept,
            start_ns=self.start_ns,
            end_ns=int(kept["end_ns"].max(initial=self.start_ns)),
            released_ns=kept["sent_ns"],
            indexes=indexes,
            interrupted=interrupted,
            duplicates=duplicates,
            first_failure=self.first_failure,
        )


def _status_of(error: BaseException) -> int:
    return int(error.status) if isinstance(error, RequestError) else _FAILED


@contextlib.contextmanager
def _prepared(target: ThreadTarget | BatchTarget) -> Iterator[None]:
    target.prepare()
    try:
        yield
    finally:
        target.close()


def _start_threads(
    work: Callable[[int], None], count: int, stop: Callable[[], None]
) -> list[threading.Thread]:
    """Start threads; where the system has no more, `stop` ends those that were started."""
    threads: list[threading.Thread] = []
    try:
        for place in range(count):
            # A request that never ends must not keep the process alive.
            thread = threading.Thread(target=work, args=(place,), name=f"load {place}", daemon=True)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError) as error:
        stop()
        # Native code that waits for a request must not be in it when the interpreter ends.
        _join(threads, time.monotonic_ns() + _CLOSING_NS, None, np.zeros(0, REQUEST))
        raise no_thread(f"{len(threads):,} of {count:,} threads could be started", error) from error
    return threads


def _join(
    threads: list[threading.Thread], deadline_ns: int | None, progress: Progress | None, rows: Rows
) -> None:
    while alive := [thread for thread in threads if thread.is_alive()]:
        left_s = (
            PROGRESS_EVERY_S if deadline_ns is None else max((deadline_ns - time.monotonic_ns()) / 1e9, 0)
        )
        alive[0].join(min(left_s, PROGRESS_EVERY_S))
        if progress is not None:
            progress(rows)
        if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
            return
