# SPDX-License-Identifier: Apache-2.0
"""Sends requests with a client and returns what it logged; a log that refuses what must not happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuprof._native import RequestLog
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.client import Client, OnEnd


@dataclass
class CheckedLog:
    """Each request begins at most once, and ends exactly once."""

    begun: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    ends: dict[int, tuple[RequestStatus, int]] = field(default_factory=dict)

    def begin(self, index: int) -> None:
        assert index not in self.begun
        self.begun.append(index)

    def send(self, index: int, socket: int, request: bytes) -> int:
        self.begin(index)
        return RequestLog(1).send(0, socket, request)

    def first(self, index: int) -> None:
        assert index in self.begun
        assert index not in self.firsts
        self.firsts.append(index)

    def end(self, index: int, status: int, units: int) -> None:
        assert index not in self.ends
        self.ends[index] = RequestStatus(status), units

    @property
    def statuses(self) -> list[RequestStatus]:
        """In the order of the requests."""
        return [self.ends[index][0] for index in sorted(self.ends)]


MakeClient = Callable[[CheckedLog, OnEnd], Client]


def send_all(make: MakeClient, count: int = 1, *, one_by_one: bool = False) -> CheckedLog:
    """Start `count` requests, all at once or each after the one before, and wait until all have ended."""
    log = CheckedLog()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        finished = loop.create_future()

        def on_end(index: int, status: RequestStatus) -> None:
            if len(log.ends) == count and not finished.done():
                finished.set_result(None)
            elif one_by_one:
                loop.call_soon(client.start, index + 1)

        client = make(log, on_end)
        await client.open()
        for index in range(1 if one_by_one else count):
            client.start(index)
        await asyncio.wait_for(finished, 60)
        await client.close()

    asyncio.run(run())
    assert len(log.ends) == count
    return log
