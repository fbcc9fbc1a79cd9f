# SPDX-License-Identifier: Apache-2.0
"""The server of the dashboard: one page, one stream, and responses to GET requests by id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.catalog import Catalog
from gpuprof.live.dashboard.connections import refused_for_now
from gpuprof.live.dashboard.exports import (
    ENTRY_COLUMNS,
    HISTORY_COLUMNS,
    entry_rows,
    history_page,
    history_rows,
)
from gpuprof.live.dashboard.folder import MOST_ENTRIES
from gpuprof.live.dashboard.history import METRICS, Trends, models_of
from gpuprof.live.dashboard.items import Item, ItemState, Plain, Problem, item_id, visible_values
from gpuprof.live.dashboard.live_runs import LiveRuns
from gpuprof.live.dashboard.page import REFUSAL_POLICY, dashboard_page, refusal_page
from gpuprof.live.dashboard.rendered import RenderedPages, no_such_item, policy_of_page
from gpuprof.live.dashboard.rendering import PAGES
from gpuprof.live.dashboard.security import Access, Guard, refused
from gpuprof.live.dashboard.stream import MOST_STREAMS, Broadcast, EventStream
from gpuprof.live.dashboard.workers import Worker
from gpuprof.stats.ratio_test import geometric_mean
from gpuprof.text.sanitize import visible_text

if TYPE_CHECKING:
    from gpuprof.live.alerts.webhook import Webhook

INTERVAL_S = 1.0
_IDLE_INTERVALS = 5  # without a page open, each fifth interval is enough


class Dashboard:
    """The state of the server: what is in the folder, what is being recorded, and who listens."""

    def __init__(
        self,
        root: Path,
        *,
        live: LiveRuns | None = None,
        webhook: Webhook | None = None,
        interval_s: float = INTERVAL_S,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        self.root = root
        self.reader = Worker()
        self.catalog = Catalog(root, self.reader, most_entries=most_entries)
        self.history = Trends(self.reader)
        self.pages = RenderedPages(self.catalog)
        self.live = live or LiveRuns(root)
        self.broadcast = Broadcast()
        self._webhook = webhook
        self._interval_s = interval_s
        self._problems: dict[str, Problem] = {}

    async def run(self) -> None:
        """Follow the folder and the runs until the task ends."""
        await asyncio.gather(self._follow_runs(), self._follow_folder())

    async def _follow_runs(self) -> None:
        while True:
            point: Plain | None = None
            with self._reporting("runs"):
                recording = {each.item_id: each.path for each in self.catalog.recording()}
                point = await asyncio.to_thread(self.live.poll, recording)
            if point:
                self.broadcast.publish("tick", {**point, **self._state()})
            else:
                self.broadcast.publish("problem", self._state())
            await self._pause()

    async def _follow_folder(self) -> None:
        while True:
            with self._reporting("folder"):
                await self.catalog.refresh()
            await self._pause()

    @contextlib.contextmanager
    def _reporting(self, follower: str) -> Iterator[None]:
        """Show on the page what a follower failed by; it tries again after the pause."""
        try:
            yield
        except GpuprofError as error:
            self._problems[follower] = Problem(error.code, error.message, error.hint)
        except Exception as error:
            # One failure must not end all updates while the page looks alive.
            self._problems[follower] = Problem("not_updated", f"{type(error).__name__}: {error}")
        else:
            self._problems.pop(follower, None)

    async def _pause(self) -> None:
        for _ in range(_IDLE_INTERVALS):
            await asyncio.sleep(self._interval_s)
            if self.broadcast.streams:
                return

    def _state(self) -> Plain:
        problem = next((str(each) for each in self._problems.values()), None)
        lost = 0 if self._webhook is None else self._webhook.failed + self._webhook.dropped
        return {"version": self.catalog.version, "problem": problem, "lost_alerts": lost}

    def first(self) -> Plain:
        """Return what a page needs to know when its stream begins."""
        return {"history": self.live.history(), **self._state()}

    def detail(self, wanted: str) -> Plain:
        """Return what is known of an entry: its figures, its pages, and the run or results next to it."""
        item = self.catalog.item(wanted)
        if item is None:
            raise no_such_item()
        digest = item.digest or {}
        pages = list(PAGES.get(item.kind, ())) if item.state is ItemState.READY else []
        if not (digest.get("summary") or {}).get("has_work") and "roofline" in pages:
            pages.remove("roofline")
        run = digest.get("run")
        refusal = None if item.state is ItemState.READY else item.refusal()
        return {
            **item.to_plain(),
            # In the list, the state of a run that is not closed is enough.
            "problem": None if refusal is None else _problem_of(item, refusal).to_plain(),
            "pages": pages,
            "figures": [
                {**{name: each[name] for name in _FIGURE_NAMES}, "values": _shown_values(each)}
                for each in digest.get("figures", ())
            ],
            "facts": {**digest.get("machine", {}), **digest.get("versions", {})},
            "run": item_id(run) if run and self.catalog.item(item_id(run)) else None,
            "results": [
                {"id": each.item_id, "path": visible_text(each.path)}
                for each in self.catalog
                if (each.digest or {}).get("run") == item.path
            ],
        }

    async def close(self) -> None:
        """End the workers and the streams."""
        self.broadcast.close()
        await self.reader.close()
        await self.pages.close()
        self.live.close()


def _problem_of(item: Item, refusal: GpuprofError) -> Problem:
    return item.problem or Problem(refusal.code, refusal.message, refusal.hint)


_FIGURE_NAMES = ("model", "technique", "batch_size", "input_shape", "device_type", "dtype", "p50_s")


def _shown_values(figures: Plain) -> Plain:
    """Return the values that the history has, too: means of the process runs, and the p50 of all calls."""
    values = {name: geometric_mean(each) for name, each in figures["values"].items()}
    return values if figures["p50_s"] is None else {**values, "p50": figures["p50_s"][1]}


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
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={GpuprofError: _refuse, 404: _refuse_path},
    )


async def _refuse_path(request: Request, _error: Exception) -> Response:
    return refused(404, "there is no such page; hint: open the first page, /", request.headers)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, GpuprofError)
    status = 404 if error.code in ("no_such_item", "no_such_page") else 422
    is_page = request.url.path.startswith(("/view/", "/difference"))
    if is_page and "text/html" in request.headers.get("accept", ""):
        policy = {"Content-Security-Policy": REFUSAL_POLICY}
        return HTMLResponse(refusal_page(error.message, error.hint, error.code), status, policy)
    return _json({"code": error.code, "message": error.message, "hint": error.hint}, status)


class Routes:
    """What can be asked for: the page, its stream, and entries by id."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def all(self) -> list[Route]:
        """Return the routes."""
        found = {
            "/": self.page,
            "/events": self.events,
            "/api/catalog": self.catalog,
            "/api/models": self.models,
            "/api/history": self.history,
            "/api/items/{item}": self.item,
            "/api/compare": self.compare,
            "/view/{item}/{page}": self.view,
            "/difference": self.difference,
            "/export/history.{form}": self.export_history,
            "/export/entries.{form}": self.export_entries,
            "/export/items/{item}.json": self.export_item,
        }
        return [Route(path, handler, methods=["GET"]) for path, handler in found.items()]

    async def page(self, _request: Request) -> Response:
        """Return the page; its script and style carry the nonce of this response."""
        nonce = secrets.token_urlsafe(16)
        html, policy = dashboard_page(self._dashboard.root, nonce)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    async def events(self, _request: Request) -> ASGIApp:
        """Begin the stream of a page."""
        if self._dashboard.broadcast.streams >= MOST_STREAMS:
            return refused_for_now(f"too many pages are open ({MOST_STREAMS})")
        return EventStream(self._dashboard.broadcast, self._dashboard.first)

    async def catalog(self, request: Request) -> Response:
        """Return the entries that have changed since a version."""
        since = request.query_params.get("since", "0")
        version = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
        return _json(self._dashboard.catalog.since(version))

    async def models(self, _request: Request) -> Response:
        """Return the models that have a history."""
        return _json(models_of(self._dashboard.catalog))

    async def history(self, request: Request) -> Response:
        """Return the history of a model."""
        return _json(await self._history(request))

    async def _history(self, request: Request) -> Plain:
        model, metric = (request.query_params.get(each, "") for each in ("model", "metric"))
        if metric not in METRICS:
            raise GpuprofError("no_such_metric", "there is no such metric", hint=f"use {', '.join(METRICS)}")
        return await self._dashboard.history.of(self._dashboard.catalog, model, metric)

    async def item(self, request: Request) -> Response:
        """Return what is known of an entry, with the pages that it has."""
        found = self._dashboard.detail(request.path_params["item"])
        return _json(found)

    async def compare(self, request: Request) -> Response:
        """Return the comparison of two entries."""
        old, new = (request.query_params.get(each, "") for each in ("old", "new"))
        return _json(await self._dashboard.pages.compare(old, new))

    async def view(self, request: Request) -> Response:
        """Return a page of an entry; it is rendered when it is asked for."""
        names = request.path_params
        return _page_response(await self._dashboard.pages.page(names["item"], names["page"]))

    async def difference(self, request: Request) -> Response:
        """Return the flame graph of the difference of two runs, or the report of two load tests."""
        old, new = (request.query_params.get(each, "") for each in ("old", "new"))
        return _page_response(await self._dashboard.pages.difference(old, new))

    async def export_history(self, request: Request) -> Response:
        """Return the history of a model as CSV, JSON or HTML."""
        form = request.path_params["form"]
        found = await self._history(request)
        paths = {each.item_id: visible_text(each.path) for each in self._dashboard.catalog}
        if form == "html":
            page = await asyncio.to_thread(history_page, found, paths)
            return _file(page, "text/html", "history.html")
        return await self._export(form, found, history_rows(found, paths), HISTORY_COLUMNS, "history")

    async def export_entries(self, request: Request) -> Response:
        """Return the list of entries as CSV or JSON."""
        rows = entry_rows(each for each in self._dashboard.catalog if not each.is_foreign)
        return await self._export(request.path_params["form"], rows, rows, ENTRY_COLUMNS, "entries")

    async def _export(
        self, form: str, plain: object, rows: list[Plain], columns: list[str], name: str
    ) -> Response:
        if form == "json":
            return _file(json.dumps(plain, indent=1), "application/json", f"{name}.json")
        if form == "csv":
            text = await self._dashboard.reader.call("table", columns=columns, rows=rows)
            return _file(text, "text/csv", f"{name}.csv")
        formats = "csv, json or html" if name == "history" else "csv or json"
        raise GpuprofError("no_such_page", f"{name} has no such format", hint=f"use {formats}")

    async def export_item(self, request: Request) -> Response:
        """Return the JSON file of a result, or the meta data of a run."""
        item = self._dashboard.pages.ready(request.path_params["item"])
        call = {"root": str(self._dashboard.root), "path": item.path, "kind": item.kind.value}
        path = await self._dashboard.reader.call("source", **call)
        try:
            content = await asyncio.to_thread(Path(path).read_bytes)
        except OSError:
            raise no_such_item() from None  # it was removed after the last listing of the folder
        return _file(content, "application/json", f"{item.item_id}.json")


def _page_response(path: Path) -> Response:
    return FileResponse(
        path, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy_of_page(path)}
    )


def _file(content: str | bytes, media: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    plain = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    return Response(plain, media_type=f"{media}; charset=utf-8", headers=headers)


def _json(value: Any, status: int = 200) -> JSONResponse:
    """Return a response of JSON: visible texts, and null for a number that JSON does not have."""
    return JSONResponse(_finite(visible_values(value)), status)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
