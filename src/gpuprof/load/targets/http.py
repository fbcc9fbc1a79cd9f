# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 client with keep-alive connections for an event loop: no task and no future per request.

A request takes an idle connection, or opens one, or waits in a queue in the order of the plan: the limit of
connections delays requests and never drops one. Each connection has one request at a time. A request that
fails is not sent again: its failure is what is measured.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.address import ServerAddress
from gpuprof.load.targets.client import OnEnd, ResponseLog, load_package
from gpuprof.load.targets.statuses import status_of_code, status_of_error
from gpuprof.load.targets.tls import client_context

CONCURRENCY = 256
TIMEOUT_S = 30.0
_CONTINUE_CODES = range(100, 200)
_SUCCESS, _HEAD_END = b"HTTP/1.1 2", b"\r\n\r\n"
_OK = RequestStatus.OK  # an attribute of an enum takes as long as a call


class HttpConnection(asyncio.Protocol):
    """One connection, and the response that arrives on it. httptools calls `on_...`."""

    # Whether `finish_response` needs what was in the body.
    reads_body = False

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._parser: Any = client.new_parser(self)
        self._transport: Any = None
        self.is_closing: Callable[[], bool] = _is_closing  # of the transport once there is one
        self._log_begin, self._log_send = client.log_begin, client.log_send
        self._socket = -1  # of a connection without encryption
        self._is_behind = False  # whether the transport may have something to send
        self.index: int | None = None
        self._status = RequestStatus.OK
        self._has_answer = self._has_headers = self._has_length = self._is_chunked = False
        self._is_complete = self._is_doubled = self._is_kept = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport
        self.is_closing = transport.is_closing
        if not self._client.is_encrypted:
            self._socket = transport.get_extra_info("socket").fileno()

    def send(self, index: int, request: bytes) -> None:
        """Send the request of a connection that is idle, and mark it as sent."""
        self.index = index
        self._has_answer = False
        # uvloop's transport sends once it has handled all that arrived: until then the server would be idle.
        if self._is_behind:
            self._is_behind = self._transport.get_write_buffer_size() > 0
        if self._socket >= 0 and not self._is_behind:
            send = self._log_send
            sent = send(index, self._socket, request)  # 0 of an error, which the transport reports as well
            if sent == len(request):
                return
            request = request[sent:]
        else:
            self._log_begin(index)
        self._write(request)

    def send_first(self, index: int, request: bytes) -> None:
        """Send the request that the connection was opened for, which is marked as sent since."""
        self.index = index
        self._write(request)

    def _write(self, request: bytes) -> None:
        self._is_behind = True
        self._transport.write(request)

    def _begin_response(self) -> None:
        self._has_answer = True
        self._has_headers = self._has_length = self._is_chunked = False
        self._is_complete = self._is_doubled = False
        self._status = RequestStatus.OK

    def finish_response(self) -> tuple[RequestStatus, int]:
        """Return how a complete response with a code of success ended, and how many units it returned."""
        return RequestStatus.OK, 1

    def lost_response(self) -> RequestStatus:
        """Return how a response ended whose connection was closed in the middle."""
        return RequestStatus.INCOMPLETE if self._has_answer else RequestStatus.RESET

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; ends the request when its response is complete."""
        client = self._client
        if self.index is None:
            client.count_unrequested(self)
            return
        is_first = not self._has_answer
        if is_first:
            if len(data) == client.known_size and data.startswith(client.known_head):
                index, self.index = self.index, None
                client.ended_as_before(self, index)
                return
            self._begin_response()
        try:
            self._parser.feed_data(data)
        except client.parser_errors:
            self._end(RequestStatus.INVALID, keep=False)
            return
        if self._is_complete:
            client.unrequested += self._is_doubled
            is_kept = self._is_kept and not self._is_doubled
            if is_first and is_kept:
                self._learn(data)
            self._complete(keep=is_kept)

    def _learn(self, data: bytes) -> None:
        """Remember a response in one read: another of this head and size is complete without being parsed."""
        has_size = self._has_length and not self._is_chunked and data.startswith(_SUCCESS)
        if has_size and self._status is RequestStatus.OK and not self.reads_body:
            self._client.known_head = data[: data.index(_HEAD_END) + len(_HEAD_END)]
            self._client.known_size = len(data)

    def on_message_begin(self) -> None:
        """Note a second response to one request."""
        self._is_doubled = self._is_complete

    def on_header(self, name: bytes, _: bytes) -> None:
        """Note whether the headers define where the response ends."""
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
            self._is_chunked = self._is_chunked or name == b"transfer-encoding"

    def on_headers_complete(self) -> None:
        """Take the status code."""
        code = self._parser.get_status_code()
        if code not in _CONTINUE_CODES:
            self._has_headers = True
            self._status = status_of_code(code)
            if self._status is not RequestStatus.OK:
                self._client.codes[code] += 1

    def on_message_complete(self) -> None:
        """Note the end; the request ends when all that arrived with it is parsed."""
        self._is_complete = self._parser.get_status_code() not in _CONTINUE_CODES
        self._is_kept = self._parser.should_keep_alive()

    def _complete(self, *, keep: bool) -> None:
        status, units = self._status, 0
        if status is RequestStatus.OK:
            status, units = self.finish_response()
        self._end(status, units, keep=keep)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that was under way, if there is one."""
        index, self._transport = self.index, None
        if index is None:
            self._client.forget(self)
        elif exc is not None:
            self._end(status_of_error(exc), keep=False)
        elif self._has_answer and self._has_headers and not self._has_length:
            self._complete(keep=False)  # it ends with the connection
        else:
            self._end(self.lost_response(), keep=False)

    def _end(self, status: RequestStatus, units: int = 0, *, keep: bool) -> None:
        index, self.index = self.index, None
        if index is None:
            return
        if not keep or self._transport is None:
            self.abort()
        self._client.ended(self, index, status, units)

    @property
    def is_connected(self) -> bool:
        """Whether it was connected, and was not closed by this side since."""
        return self._transport is not None

    def abort(self) -> None:
        """Close the connection without waiting."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


Attempt = HttpConnection | asyncio.Task[None]


class HttpClient:
    """A pool of connections to one server.

    log: where requests are marked, by index. request_of: returns the bytes of a request. concurrency: most
    connections. timeout_s: from the send to the end of the response. on_end: called after each request.
    """

    def __init__(
        self,
        address: ServerAddress,
        request_of: Callable[[int], bytes],
        log: ResponseLog,
        *,
        concurrency: int = CONCURRENCY,
        timeout_s: float = TIMEOUT_S,
        on_end: OnEnd | None = None,
    ) -> None:
        tools = load_package("httptools")
        self.parser_errors = (tools.HttpParserError, tools.HttpParserUpgrade)
        self.new_parser = tools.HttpResponseParser
        # The head of the latest success with a `Content-Length`, and the size of that response.
        self.known_head, self.known_size = b"", -1
        self.codes: Counter[int] = Counter()
        self.unrequested = 0
        self._address, self._request_of = address, request_of
        self.log_begin, self.log_send, self._log_end = log.begin, log.send, log.end
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._on_end = on_end or _ignore
        self._tls = client_context(address)
        self.is_encrypted = self._tls is not None
        self._server = address.resolved[0]
        self._waiting: deque[int] = deque()
        self._idle: list[HttpConnection] = []
        self._open = 0
        # In the order of their deadlines.
        self._active: dict[int, tuple[float, Attempt]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._now_s: Callable[[], float] = time.monotonic  # that of the event loop once it is open

    def new_connection(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    async def open(self) -> None:
        """Open a first connection, to the first of the addresses that accepts one."""
        self._now_s = asyncio.get_running_loop().time
        error: Exception | None = None
        for server in self._address.resolved:
            self._server = server
            try:
                connection = await asyncio.wait_for(self._connect(), self._timeout_s)
            except (OSError, asyncio.TimeoutError) as raised:
                error = raised
            else:
                self._open += 1
                self._idle.append(connection)
                return
        raise unreachable(self._address, error) from error

    async def _connect(self) -> HttpConnection:
        name = self._address.host if self._tls else None
        _, connection = await asyncio.get_running_loop().create_connection(
            self.new_connection, self._server, self._address.port, ssl=self._tls, server_hostname=name
        )
        return connection

    def start(self, index: int) -> None:
        """Send request `index`, or queue it."""
        if self._idle and not self._waiting:
            connection = self._idle.pop()
            is_closing = connection.is_closing
            if not is_closing():
                self._send(index, connection)
                return
            self._open -= 1
        self._waiting.append(index)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting:
            if self._idle:
                connection = self._idle.pop()
                if connection.is_closing():
                    self._open -= 1
                else:
                    self._send(self._waiting.popleft(), connection)
            elif self._open < self._concurrency:
                self._open += 1
                index = self._waiting.popleft()
                self.log_begin(index)
                opening = asyncio.get_running_loop().create_task(self._open_and_send(index))
                self._active[index] = (self._now_s() + self._timeout_s, opening)
                if self._timer is None:
                    self._watch()
            else:
                return

    def _send(self, index: int, connection: HttpConnection) -> None:
        request_of, now_s = self._request_of, self._now_s
        request = request_of(index)
        self._active[index] = (now_s() + self._timeout_s, connection)
        if self._timer is None:
            self._watch()
        connection.send(index, request)

    async def _open_and_send(self, index: int) -> None:
        try:
            connection = await self._connect()
        except (OSError, ssl.CertificateError) as error:
            self._open -= 1
            if index in self._active:
                self._finish(index, status_of_error(error), 0)
            return
        if index not in self._active:
            connection.abort()
            self._open -= 1
            return
        self._active[index] = (self._active[index][0], connection)
        connection.send_first(index, self._request_of(index))

    def ended(self, connection: HttpConnection, index: int, status: RequestStatus, units: int) -> None:
        """Mark the end of a request of a connection, and use or replace the connection."""
        if connection.is_connected:
            self._idle.append(connection)
        else:
            self._open -= 1
        self._finish(index, status, units)

    def ended_as_before(self, connection: HttpConnection, index: int) -> None:
        """Mark the end of a request whose response is one that is known; its connection is kept."""
        log_end, on_end = self._log_end, self._on_end
        self._idle.append(connection)
        log_end(index, _OK, 1)
        self._active.pop(index, None)
        on_end(index, _OK)
        if self._waiting:
            self._send_waiting()

    def _finish(self, index: int, status: RequestStatus, units: int) -> None:
        self._log_end(index, status, units)
        self._active.pop(index, None)
        self._on_end(index, status)
        if self._waiting:
            self._send_waiting()

    def forget(self, connection: HttpConnection) -> None:
        """Drop an idle connection that the server closed."""
        if connection in self._idle:
            self._idle.remove(connection)
            self._open -= 1

    def count_unrequested(self, connection: HttpConnection) -> None:
        """Drop a connection on which the server sent what no request asked for."""
        self.unrequested += 1
        self.forget(connection)
        connection.abort()

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._end_late)

    def _end_late(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._active:
            index, (deadline, attempt) = next(iter(self._active.items()))
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._end_late)
                return
            self._give_up(index, attempt)

    def _give_up(self, index: int, attempt: Attempt) -> None:
        if isinstance(attempt, HttpConnection):
            attempt.index = None
            attempt.abort()
        else:
            attempt.cancel()
        self._open -= 1
        self._finish(index, RequestStatus.TIMEOUT, 0)

    def abandon(self) -> None:
        """End what is queued as not sent and what is under way as timed out."""
        waiting, self._waiting = self._waiting, deque()
        for index in waiting:
            self._log_end(index, RequestStatus.NOT_SENT, 0)
            self._on_end(index, RequestStatus.NOT_SENT)
        for index, (_, attempt) in list(self._active.items()):
            self._give_up(index, attempt)

    async def close(self) -> None:
        """Close all connections."""
        self.abandon()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes what was aborted


def unreachable(address: ServerAddress, error: Exception | None) -> BenchmarkError:
    """Return the error of a server that accepts no connection."""
    reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    return BenchmarkError(
        "no_server",
        f"no server responds at {address.authority}: {reason}",
        hint="start it, or check the port",
    )


def _ignore(index: int, status: RequestStatus) -> None:
    pass


def _is_closing() -> bool:
    return True
