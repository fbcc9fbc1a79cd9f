# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: each page has one stream, and gets the newest message when it has read the one before.

A page that does not read holds one task and what the connection buffers; no queue grows.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio
from starlette.types import Receive, Scope, Send

from gpuprof.live.dashboard.items import Plain

MOST_STREAMS = 256
_STALLED_S = 60.0  # a page that reads nothing for so long is disconnected
_HEARTBEAT_S = 15.0


class Broadcast:
    """The newest message, with its number, and those who wait for the next one."""

    def __init__(self) -> None:
        self.streams = 0
        self._number = 0
        self._message = b""
        self._changed = anyio.Event()
        self._is_closed = False

    def publish(self, kind: str, content: Plain) -> None:
        """Replace the message and wake those who wait."""
        self._number += 1
        self._message = encoded_event(kind, content)
        self._wake()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def after(self, number: int) -> tuple[int, bytes | None]:
        """Wait for a message newer than `number`; None at the end, b"" if there is none for a while."""
        while not self._is_closed and self._number <= number:
            with anyio.move_on_after(_HEARTBEAT_S) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                return number, b": \n\n"
        return self._number, None if self._is_closed else self._message

    @property
    def number(self) -> int:
        """The number of the newest message."""
        return self._number


def encoded_event(kind: str, content: Plain) -> bytes:
    """Return a message in the format of server-sent events."""
    data = json.dumps(content, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode("ascii")


class EventStream:
    """The response to a page: what it has to know first, then every message."""

    def __init__(self, broadcast: Broadcast, first: Callable[[], Plain]) -> None:
        self._broadcast = broadcast
        self._first = first

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the page closes, stalls, or the server ends."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        self._broadcast.streams += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with anyio.create_task_group() as group:
                group.start_soon(_until_closed, receive, group.cancel_scope)
                await self._send_all(send)
                group.cancel_scope.cancel()
        finally:
            self._broadcast.streams -= 1

    async def _send_all(self, send: Send) -> None:
        number = self._broadcast.number
        message: bytes | None = encoded_event("hello", self._first())
        while message is not None:
            with anyio.move_on_after(_STALLED_S) as limit:
                await send({"type": "http.response.body", "body": message, "more_body": True})
            if limit.cancelled_caught:
                return
            number, message = await self._broadcast.after(number)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_closed(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
