# SPDX-License-Identifier: Apache-2.0
"""Limits of connections: how many there are, how long one may send no whole request, or read nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuprof.live.dashboard.security import secured

_YOUNG_S = 1.0  # a request of a connection as young as this may be on its way


@dataclass(frozen=True, slots=True)
class Limits:
    """How many connections are served, and after how long one is closed that does not take its turn.

    `head_s` is for the head of a request, `stalled_s` for a client that reads nothing of a response. The
    streams of pages have a lower limit than `connections`, so that they leave room for requests.
    """

    connections: int = 1_000
    head_s: float = 10.0
    stalled_s: float = 60.0


class Connection(H11Protocol):
    """A connection that is closed when it waits for nothing: uvicorn waits for a request without a limit."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the limits; beyond the limit of connections, those that have no request are closed."""
        super().connection_made(transport)
        self._free_since = self._unread_since = self.loop.time()
        self._unread = 0
        self._watch = self.loop.call_later(self._period_s, self._check)
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the limits."""
        self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin the limit of the next request."""
        self._free_since = self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Take in that the client reads."""
        self._unread = 0
        super().resume_writing()

    @property
    def _period_s(self) -> float:
        return min(self.limits.head_s, self.limits.stalled_s) / 2

    def _is_free(self) -> bool:
        """Whether the connection has no request that is being responded to, and no response to send."""
        has_request = self.cycle is not None and not self.cycle.response_complete
        return not has_request and not self.transport.get_write_buffer_size()

    def _check(self) -> None:
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size()
        # Only where nothing is written can the size of the buffer show that nothing is read.
        is_quiet = self.flow.write_paused or self.transport.is_closing()
        if not is_quiet or not unread or unread < self._unread or not self._unread:
            self._unread, self._unread_since = (unread if is_quiet else 0), now
        is_late = self._is_free() and now - self._free_since >= self.limits.head_s
        if is_late or now - self._unread_since >= self.limits.stalled_s:
            self.transport.abort()
            return
        self._watch = self.loop.call_later(self._period_s, self._check)

    def _make_room(self) -> None:
        old = self.loop.time() - _YOUNG_S
        others = (each for each in self.connections if isinstance(each, Connection))
        free = [each for each in others if each._free_since <= old and each._is_free()]
        free.sort(key=lambda each: each._free_since)
        for each in free[: len(self.connections) - self.limits.connections]:
            each.transport.abort()


def limited(limits: Limits) -> type[Connection]:
    """Return the class of connections with these limits; uvicorn makes its objects."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


class Bounded:
    """Refuses requests while there are more connections than the limit."""

    def __init__(self, app: ASGIApp, count: Callable[[], int], limits: Limits) -> None:
        self._app = app
        self._count = count
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "http" and self._count() > self._limits.connections:
            text = f"there are more than {self._limits.connections:,} connections"
            await refused_for_now(text)(scope, receive, secured(send))
            return
        await self._app(scope, receive, send)


def refused_for_now(text: str) -> PlainTextResponse:
    """Return the refusal of a request that can be repeated; its connection is closed, and takes no room."""
    headers = {"Retry-After": "10", "Connection": "close"}
    return PlainTextResponse(f"{text}; hint: close pages of the dashboard, and try again\n", 503, headers)


def count_of(server: Any) -> int:
    """Return how many connections a uvicorn server has."""
    return len(server.server_state.connections)
