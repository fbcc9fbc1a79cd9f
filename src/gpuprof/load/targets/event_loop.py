# SPDX-License-Identifier: Apache-2.0
"""The event loop that starts requests: when the native pacer announces them, or when others have ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.client import Client, OnEnd, load_package
from gpuprof.load.targets.connection_errors import no_file


class ReadyRequests(Protocol):
    """The pacer: its file is readable while requests are due; `gpuprof._native.Pacer`."""

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""

    def take_ready(self) -> Sequence[int] | Any:
        """Return the indexes of the requests that are due and were not returned before."""


def paced_file(pacer: ReadyRequests) -> int:
    """Return the file of a pacer, whose thread starts now. Raises BenchmarkError where it cannot."""
    try:
        return pacer.fileno()
    except OSError as error:
        what = "the thread that waits for the next request cannot be started"
        raise no_file(error, what) or no_thread(what, error) from error


def no_thread(message: str, error: BaseException) -> BenchmarkError:
    """Return the error of a system that gives no more threads."""
    return BenchmarkError(
        "no_threads",
        f"{message} ({str(error) or type(error).__name__})",
        hint="use a lower --concurrency, or raise the limits of threads and memory (ulimit -u, ulimit -v)",
    )


MakeClient = Callable[[OnEnd], Awaitable[Client]]


class RequestLoop:
    """Starts requests 0 to `count` - 1, and waits until all that were started have ended.

    After the last one was started, drain_s is the longest wait: what has not ended then is abandoned, and
    stays in the log as timed out or not sent.
    """

    def __init__(self, count: int, *, drain_s: float) -> None:
        self.count, self._drain_s = count, drain_s
        self.started = self._ended = 0
        self._has_all_started, self._is_over = asyncio.Event(), asyncio.Event()
        self.client: Client | None = None

    async def run(self, make: MakeClient, on_open: Callable[[], None]) -> None:
        """Open the client, call on_open, and send all requests; raises BenchmarkError."""
        self.client = await make(self.on_end)
        await self.client.open()
        on_open()
        self.begin()
        try:
            await self._has_all_started.wait()
            self._check_end()
            await asyncio.wait_for(self._is_over.wait(), self._drain_s)
        except asyncio.TimeoutError:
            pass  # what is under way is abandoned below
        finally:
            self.finish()
            self.client.abandon()
            await self.client.close()

    def begin(self) -> None:
        """Start the first requests."""
        raise NotImplementedError

    def finish(self) -> None:
        """Start no more."""

    def start(self, index: int) -> None:
        """Start a request."""
        assert self.client is not None
        self.started += 1
        self.client.start(index)

    def on_end(self, _: int, __: RequestStatus) -> None:
        """Count the end of a request."""
        self._ended += 1
        self._check_end()

    def _check_end(self) -> None:
        if self._has_all_started.is_set() and self._ended >= self.started:
            self._is_over.set()

    def start_no_more(self) -> None:
        """Wait for what is under way only."""
        self._has_all_started.set()

    def stop(self) -> None:
        """End now: what is under way is abandoned."""
        self._has_all_started.set()
        self._is_over.set()


class OpenLoop(RequestLoop):
    """Requests start when they are due, whether or not those before have ended."""

    def __init__(self, pacer: ReadyRequests, count: int, *, drain_s: float) -> None:
        super().__init__(count, drain_s=drain_s)
        self._pacer = pacer
        self._file = -1

    def begin(self) -> None:
        """Watch the pacer."""
        self._file = paced_file(self._pacer)
        asyncio.get_running_loop().add_reader(self._file, self._start_ready)

    def finish(self) -> None:
        """Watch it no more."""
        asyncio.get_running_loop().remove_reader(self._file)

    def _start_ready(self) -> None:
        for index in self._pacer.take_ready():
            self.start(int(index))
        if self.started >= self.count:
            self.start_no_more()


class ClosedLoop(RequestLoop):
    """A number of requests is under way at any time: each end starts the next one, until duration_s is over.

    on_next is called before with the request that starts and the one whose end made it due, -1 at first.
    """

    def __init__(
        self,
        count: int,
        *,
        outstanding: int,
        duration_s: float,
        drain_s: float,
        on_next: Callable[[int, int], None],
    ) -> None:
        super().__init__(count, drain_s=drain_s)
        self._outstanding, self._duration_s, self._on_next = outstanding, duration_s, on_next
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start as many requests as may be under way."""
        loop = asyncio.get_running_loop()
        if math.isfinite(self._duration_s):
            self._timer = loop.call_later(self._duration_s, self.start_no_more)
        for _ in range(min(self._outstanding, self.count)):
            self._start_next(-1)

    def finish(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def on_end(self, index: int, status: RequestStatus) -> None:
        """Start the next request."""
        if not self._has_all_started.is_set():
            self._start_next(index)
        super().on_end(index, status)

    def _start_next(self, former: int) -> None:
        index = self.started
        self._on_next(index, former)
        self.start(index)
        if self.started >= self.count:
            self.start_no_more()


def run_event_loop(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on uvloop: asyncio's own loop rounds timers to 1 ms."""
    uvloop = load_package("uvloop")

    async def run() -> None:
        await main()

    uvloop.run(run())
