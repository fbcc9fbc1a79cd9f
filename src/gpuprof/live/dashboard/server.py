# SPDX-License-Identifier: Apache-2.0
"""The server of the dashboard: one page, one stream, and answers to GET requests by id."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.catalogue import Catalogue
from gpuprof.live.dashboard.items import Plain, Problem
from gpuprof.live.dashboard.live_runs import LiveRuns
from gpuprof.live.dashboard.page import dashboard_page
from gpuprof.live.dashboard.security import Access, Guard
from gpuprof.live.dashboard.stream import MOST_STREAMS, Broadcast, EventStream
from gpuprof.live.dashboard.workers import Worker

INTERVAL_S = 1.0
_IDLE_INTERVALS = 5  # without a page open, each fifth interval is enough


class Dashboard:
    """The state of the server: what is in the folder, what is being recorded, and who listens."""

    def __init__(self, root: Path, *, live: LiveRuns | None = None, interval_s: float = INTERVAL_S) -> None:
        self.root = root
        self.reader = Worker()
        self.catalogue = Catalogue(root, self.reader)
        self.live = live or LiveRuns(root)
        self.broadcast = Broadcast()
        self._interval_s = interval_s
        self._problem: Problem | None = None

    async def run(self) -> None:
        """Follow the folder and the runs until this is cancelled."""
        await asyncio.gather(self._follow_runs(), self._follow_folder())

    async def _follow_runs(self) -> None:
        while True:
            recording = {each.item_id: each.path for each in self.catalogue.recording()}
            point = await asyncio.to_thread(self.live.poll, recording)
            self.broadcast.publish("tick", {**point, **self._state()})
            await self._pause()

    async def _follow_folder(self) -> None:
        while True:
            try:
                await self.catalogue.refresh()
                self._problem = None
            except GpuprofError as error:
                self._problem = Problem(error.code, error.message)
            await self._pause()

    async def _pause(self) -> None:
        for _ in range(_IDLE_INTERVALS):
            await asyncio.sleep(self._interval_s)
            if self.broadcast.streams:
                return

    def _state(self) -> Plain:
        problem = None if self._problem is None else self._problem.message
        return {"version": self.catalogue.version, "problem": problem}

    def first(self) -> Plain:
        """Return what a page needs to know when its stream begins."""
        return {"history": self.live.history(), **self._state()}

    async def close(self) -> None:
        """End the workers and the streams."""
        self.broadcast.close()
        await self.reader.close()


def application(dashboard: Dashboard, access: Access) -> ASGIApp:
    """Return the application for a server. The state is started and closed with it."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(dashboard.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await dashboard.close()

    routes = Routes(dashboard)
    return Starlette(
        routes=routes.all(),
        lifespan=lifespan,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=access.hosts, www_redirect=False),
            Middleware(Guard, access=access),
        ],
        exception_handlers={GpuprofError: _refuse},
    )


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, GpuprofError)
    status = 404 if error.code in ("no_such_item", "no_such_page") else 422
    return JSONResponse({"code": error.code, "message": error.message, "hint": error.hint}, status)


class Routes:
    """What can be asked for."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def all(self) -> list[Route]:
        """Return the routes."""
        found = {
            "/": self.page,
            "/events": self.events,
            "/api/catalogue": self.catalogue,
        }
        return [Route(path, handler, methods=["GET"]) for path, handler in found.items()]

    async def page(self, _request: Request) -> Response:
        """Return the page; its script and style carry the nonce of this answer."""
        nonce = secrets.token_urlsafe(16)
        html, policy = dashboard_page(self._dashboard.root, nonce)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    async def events(self, _request: Request) -> Response | EventStream:
        """Begin the stream of a page."""
        if self._dashboard.broadcast.streams >= MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503, {"Retry-After": "10"})
        return EventStream(self._dashboard.broadcast, self._dashboard.first)

    async def catalogue(self, request: Request) -> Response:
        """Return the entries that have changed since a version."""
        since = request.query_params.get("since", "0")
        version = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
        return JSONResponse(self._dashboard.catalogue.since(version))
