# SPDX-License-Identifier: Apache-2.0
"""The dashboard's server in a thread, on a free port of loopback, and a client without conveniences."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from waiting import LONGEST_S

from gpuprof.live.dashboard.connections import Limits
from gpuprof.live.dashboard.folder import MOST_ENTRIES
from gpuprof.live.dashboard.live_runs import LiveRuns
from gpuprof.live.dashboard.security import Access
from gpuprof.live.dashboard.server import Dashboard, application
from gpuprof.live.dashboard.serving import bound_socket, server_of


@dataclass
class Client:
    """Asks a server on loopback."""

    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send the path as it is: no part of it is resolved or quoted."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            sent = {
                "Host": f"127.0.0.1:{self.port}",
                **{each.replace("_", "-"): headers[each] for each in headers},
            }
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def json(self, path: str) -> Any:
        status, _, body = self.get(path)
        found = json.loads(body)
        assert status == 200, found
        return found

    def items(self) -> dict[str, dict[str, Any]]:
        return {each["path"]: each for each in self.json("/api/catalog")["items"]}

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield the events of a stream; it ends when the caller does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        with contextlib.closing(connection):
            connection.request("GET", "/events")
            response = connection.getresponse()
            assert response.status == 200
            kind = ""
            for line in response:
                text = line.decode("ascii").rstrip("\n")
                if text.startswith("event: "):
                    kind = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield kind, json.loads(text.removeprefix("data: "))

    def wait_until(self, test: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Look at the entries with each event until a test of them is true."""
        for _ in self.events():
            found = self.items()
            if test(found):
                return found
        raise AssertionError("the stream has ended")

    def read(self, count: int) -> dict[str, dict[str, Any]]:
        """Wait until there are so many entries, and all of them are read."""
        return self.wait_until(
            lambda items: len(items) == count and all(each["state"] != "pending" for each in items.values())
        )


@dataclass
class Served(Client):
    """A server in a thread of this process."""

    dashboard: Dashboard
    server: uvicorn.Server


@contextlib.contextmanager
def serving(
    root: Path,
    *,
    token: str | None = None,
    live: LiveRuns | None = None,
    interval_s: float = 0.02,
    most_entries: int = MOST_ENTRIES,
    limits: Limits | None = None,
) -> Iterator[Served]:
    with bound_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        dashboard = Dashboard(root.resolve(), live=live, interval_s=interval_s, most_entries=most_entries)
        server = server_of(application(dashboard, Access("127.0.0.1", port, token)), limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(port, dashboard, server)
        finally:
            server.should_exit = True
            thread.join(LONGEST_S)
            assert not thread.is_alive()
