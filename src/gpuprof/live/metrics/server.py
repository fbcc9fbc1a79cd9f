# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics over HTTP: `GET /metrics` and nothing else.

Without a token it listens on this machine only. `Host` must then be a name of this machine, so that a page of
a foreign site, whose name was pointed to this address, reads nothing.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hmac
import ipaddress
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.live.metrics.exposition import TextFormat, chosen_format

PATH = "/metrics"
MOST_CLIENTS = 32
LONGEST_REQUEST_S = 10.0
LONGEST_CONNECTION_S = 60.0  # a scraper opens another one
LONGEST_REFUSED_S = 1.0
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PLAIN = "text/plain; charset=utf-8"
_BUSY_TEXT = f"{MOST_CLIENTS} connections are open; hint: try again later\n"
_BUSY = "\r\n".join(
    [
        "HTTP/1.1 503 Service Unavailable",
        *(f"{name}: {value}" for name, value in _HEADERS.items()),
        f"Retry-After: {LONGEST_REQUEST_S:.0f}",
        "Connection: close",
        f"Content-Type: {_PLAIN}",
        f"Content-Length: {len(_BUSY_TEXT)}",
        "",
        _BUSY_TEXT,
    ]
).encode()


class MetricsServer(ThreadingHTTPServer):
    """Listens on `host` and `port`; port 0 takes a free one.

    Raises GpuprofError for a port in use, an unknown host, and another address than this machine's own
    without a token.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2 * MOST_CLIENTS

    def __init__(
        self, host: str, port: int, text: Callable[[TextFormat], bytes], *, token: str | None = None
    ) -> None:
        self._text = text
        self.host = host
        self.token = token
        self._free = threading.Semaphore(MOST_CLIENTS)
        self._refused: deque[tuple[float, socket.socket]] = deque()  # when each is closed
        address = _resolved(host, port)
        self.is_local = ipaddress.ip_address(address[1]).is_loopback
        if not self.is_local and token is None:
            raise GpuprofError(
                "token_required",
                f"--host {host}: other machines could read the metrics without a token",
                hint="add --token-file FILE, or set GPUPROF_TOKEN",
            )
        self.address_family = address[0]
        try:
            super().__init__((address[1], port), _Handler)
        except OSError as error:
            raise _not_bound(host, port, error) from error

    def server_bind(self) -> None:
        """Bind, without asking a name server for this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}{PATH}"

    def body(self, text_format: TextFormat) -> bytes:
        """Return the metrics."""
        return self._text(text_format)

    def accepts_host(self, host: str) -> bool:
        """Whether a header `Host` names this server. With a token any does: a foreign page has none."""
        if self.token is not None:
            return True
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, ""
        names = {"localhost", "127.0.0.1", "[::1]", self.host.lower(), f"[{self.host.lower()}]"}
        return name.lower() in names and port in ("", str(self.server_port))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Respond in a thread of its own; beyond MOST_CLIENTS with 503."""
        if not self._free.acquire(blocking=False):
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()  # its thread could not be started
            raise

    def _refuse(self, request: socket.socket) -> None:
        """Respond without reading the request, which could take long, and close the connection later.

        Closed at once, with a request that was not read, the client could get a reset before the response.
        """
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.sendall(_BUSY)
            request.shutdown(socket.SHUT_WR)
        self._refused.append((time.monotonic() + LONGEST_REFUSED_S, request))
        self._close_refused(MOST_CLIENTS)

    def _close_refused(self, most: int) -> None:
        """Close the connections that were refused and are due, and the oldest beyond `most`."""
        now_s = time.monotonic()
        while self._refused and (len(self._refused) > most or self._refused[0][0] <= now_s):
            self._refused.popleft()[1].close()

    def service_actions(self) -> None:
        """Close what was refused; the loop of the server calls this."""
        self._close_refused(MOST_CLIENTS)

    def server_close(self) -> None:
        """Close all connections that are not served."""
        super().server_close()
        self._close_refused(0)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Respond to one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    protocol_version = "HTTP/1.1"
    timeout = LONGEST_REQUEST_S

    def setup(self) -> None:
        super().setup()
        # `timeout` is for each read: a client that sends a byte now and then would keep its place.
        self._limit = threading.Timer(LONGEST_CONNECTION_S, self._shut_down)
        self._limit.daemon = True
        self._limit.start()

    def finish(self) -> None:
        self._limit.cancel()
        super().finish()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        status = self._status()
        if status is not HTTPStatus.OK:
            self._respond(status, f"{self._refusal(status)}\n".encode(), _PLAIN)
            return
        text_format = chosen_format(self.headers.get("Accept", ""))
        body = self.server.body(text_format)
        more = {"Vary": "Accept, Accept-Encoding"}
        if "gzip" in self.headers.get("Accept-Encoding", "").replace(" ", "").split(","):
            body = gzip.compress(body, compresslevel=1)
            more["Content-Encoding"] = "gzip"
        self._respond(status, body, text_format.value, more)

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Respond to another method than GET and HEAD, or to what is no request, as text."""
        status, more = HTTPStatus(code), {"Connection": "close"}
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status, more["Allow"] = HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD"
        self._respond(status, f"{status.phrase}\n".encode(), _PLAIN, more)

    def _status(self) -> HTTPStatus:
        hosts = self.headers.get_all("Host") or [""]
        if len(hosts) != 1 or not self.server.accepts_host(hosts[0].strip()):
            return HTTPStatus.MISDIRECTED_REQUEST
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{hosts[0].strip()}":
            return HTTPStatus.FORBIDDEN
        if self.server.token is not None and not self._has_token(self.server.token):
            return HTTPStatus.UNAUTHORIZED
        return HTTPStatus.OK if self.path.partition("?")[0] == PATH else HTTPStatus.NOT_FOUND

    def _refusal(self, status: HTTPStatus) -> str:
        if status is not HTTPStatus.MISDIRECTED_REQUEST:
            return status.phrase
        return (
            "the header Host names another address than this server's; "
            f"hint: read {self.server.url}, or serve with --token-file"
        )

    def _has_token(self, token: str) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        is_same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
        return is_same and scheme.lower() == "bearer"

    def _respond(
        self, status: HTTPStatus, body: bytes, content_type: str, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "gpuprof"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing: a scrape comes every few seconds."""


def _not_bound(host: str, port: int, error: OSError) -> GpuprofError:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return GpuprofError(
            "cannot_listen",
            f"cannot listen on port {port} of {host}: {error.strerror}",
            hint="choose another port with --port; 0 takes a free one",
        )
    return GpuprofError(
        "not_own_address",
        f"cannot listen on --host {host}: {error.strerror}",
        hint="give an IP address of this machine, such as 127.0.0.1",
    )


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise GpuprofError(
            "unknown_host",
            f"--host {host} cannot be resolved: {error.strerror or error}",
            hint="give an IP address of this machine, such as 127.0.0.1",
        ) from error
    family, *_, address = found[0]
    return family, str(address[0])
