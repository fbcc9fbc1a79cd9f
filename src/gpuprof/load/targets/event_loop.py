# SPDX-License-Identifier: Apache-2.0
"""The event loop that starts the requests of a plan, at the moments that the native pacer announces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from gpuprof.load.targets.client import Client, OnEnd, load_package
from gpuprof.load.targets.statuses import ResponseStatus


class ReadyRequests(Protocol):
    """The pacer: its file is readable while requests are due; `gpuprof._native.Pacer`."""

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""

    def take_ready(self) -> Sequence[int] | Any:
        """Return the indexes of the requests that are due and were not returned before."""


MakeClient = Callable[[OnEnd], Awaitable[Client]]


class EventLoopDriver:
    """Starts each of `count` requests once, when it is due, and waits until all have ended.

    After the last one was started, drain_s is the longest wait: what has not ended then is abandoned, and
    stays in the log as timed out or not sent.
    """

    def __init__(self, pacer: ReadyRequests, count: int, *, drain_s: float) -> None:
        self._pacer, self._count, self._drain_s = pacer, count, drain_s
        self._started = self._ended = 0
        self._client: Client | None = None

    async def run(self, make: MakeClient, on_open: Callable[[], None]) -> None:
        """Open the client, call on_open, which starts the pacer, and send all; raises BenchmarkError."""
        loop = asyncio.get_running_loop()
        self._all_started, self._all_ended = asyncio.Event(), asyncio.Event()
        self._client = await make(self._on_end)
        await self._client.open()
        on_open()
        loop.add_reader(self._pacer.fileno(), self._start_ready)
        try:
            await self._all_started.wait()
            await asyncio.wait_for(self._all_ended.wait(), self._drain_s)
        except asyncio.TimeoutError:
            self._client.abandon()
        finally:
            loop.remove_reader(self._pacer.fileno())
            await self._client.close()

    def _start_ready(self) -> None:
        ready = self._pacer.take_ready()
        assert self._client is not None
        self._started += len(ready)
        for index in map(int, ready):
            self._client.start(index)
        if self._started >= self._count:
            self._all_started.set()

    def _on_end(self, _: int, __: ResponseStatus) -> None:
        self._ended += 1
        if self._ended >= self._count:
            self._all_ended.set()


def run_event_loop(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on uvloop where it exists: asyncio's own loop rounds timers to 1 ms."""
    uvloop = load_package("uvloop")

    async def run() -> None:
        await main()

    uvloop.run(run())
