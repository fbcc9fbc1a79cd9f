# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 client with keep-alive connections for an event loop: no task and no future per request.

A request takes an idle connection, or opens one, or waits in a queue in the order of the plan: the limit of
connections delays requests and never drops one. Each connection has one request at a time. A request that
fails is not sent again: its failure is what is measured.

Once the responses of a server repeat, connections are handed over to native code (`SteadySockets`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from gpuprof import _native
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.address import ServerAddress
from gpuprof.load.targets.client import OnEnd, ResponseLog, load_package
from gpuprof.load.targets.connection_errors import unreachable
from gpuprof.load.targets.statuses import status_of_code, status_of_error
from gpuprof.load.targets.steady_sockets import SteadySockets
from gpuprof.load.targets.tls import client_context

CONCURRENCY = 256
TIMEOUT_S = 30.0
_CONTINUE_CODES = range(100, 200)
_SUCCESS, _HEAD_END = b"HTTP/1.1 2", b"\r\n\r\n"
_OK = RequestStatus.OK  # an attribute of an enum takes as long as a call
_NO_LIMIT_NS = 1 << 62
_CLOCK_STEP_S = 0.001  # of uvloop's clock


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

    def hand_over(self) -> int:
        """Read no more; returns the socket for its next reader, -1 if the transport has to keep it."""
        if self._is_behind:
            self._is_behind = self._transport.get_write_buffer_size() > 0
        if self._socket < 0 or self._is_behind or self.is_closing():
            return -1
        self._transport.pause_reading()
        return self._socket

    def take_back(self, index: int | None, *, unsent: bytes = b"", received: bytes = b"") -> None:
        """Continue with request `index`, None if there is none, after the socket had another reader."""
        self.index = index
        self._has_answer = False
        self._transport.resume_reading()
        if unsent:
            self._write(unsent)
        if received:
            self.data_received(received)

    def _write(self, request: bytes) -> None:
        self._is_behind = True
        self._transport.write(request)

    def _begin_response(self) -> None:
        self._client.begin_response()
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
            self._client.learn(data[: data.index(_HEAD_END) + len(_HEAD_END)], len(data))

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
        # Deadlines; those of requests on steady connections are known from when they were sent.
        self._active: dict[int, tuple[float, Attempt]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._now_s: Callable[[], float] = time.monotonic  # that of the event loop once it is open
        self._log = log
        self._steady: SteadySockets[HttpConnection] | None = None

    @property
    def connections(self) -> int:
        """How many connections are open or being opened."""
        return self._open

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
                self._open_steady()
                return
        raise unreachable(self._address, error, self._timeout_s) from error

    def _open_steady(self) -> None:
        if self.is_encrypted or not isinstance(self._log, _native.RequestLog):
            return
        # Not on this system, or no more files: transports read everything then.
        with contextlib.suppress(OSError):
            steady = SteadySockets[HttpConnection](self._log)
            asyncio.get_running_loop().add_reader(steady.native.fileno(), self._receive)
            self._steady = steady

    async def _connect(self) -> HttpConnection:
        name = self._address.host if self._tls else None
        _, connection = await asyncio.get_running_loop().create_connection(
            self.new_connection, self._server, self._address.port, ssl=self._tls, server_hostname=name
        )
        return connection

    def start(self, index: int) -> None:
        """Send request `index`, or queue it."""
        steady = self._steady
        if steady is not None and steady.native.has_idle and not self._waiting:
            self._send_steady(index, steady)
            return
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
            if self._steady is not None and self._steady.native.has_idle:
                self._send_steady(self._waiting.popleft(), self._steady)
            elif self._idle:
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

    def _send_steady(self, index: int, steady: SteadySockets[HttpConnection]) -> None:
        request_of, send = self._request_of, steady.send
        rest = send(index, request_of(index))
        if self._timer is None:
            self._watch()
        if rest is not None:
            connection, unsent = rest
            self._active[index] = (self._now_s() + self._timeout_s, connection)
            connection.take_back(index, unsent=unsent)

    def _receive(self) -> None:
        assert self._steady is not None
        while returned := self._steady.receive(self._follow_end if self._waiting else self._on_end):
            for connection, index, sent_ns, received in returned:
                self._take_back(connection, index, sent_ns, received)
        if self._waiting:
            self._send_waiting()

    def _take_back(self, connection: HttpConnection, index: int, sent_ns: int, received: bytes) -> None:
        if index >= 0:
            self._active[index] = (sent_ns / 1e9 + self._timeout_s, connection)
            connection.take_back(index, received=received)
        elif received:
            self._idle.append(connection)
            connection.take_back(None, received=received)
        else:  # the server closed it
            self._open -= 1
            connection.abort()

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
        self._log_end(index, status, units)
        if connection.is_connected:
            self._keep(connection)
        else:
            self._open -= 1
        self._follow_end(index, status)

    def learn(self, head: bytes, size: int) -> None:
        """Remember the head and the size of a response."""
        self.known_head, self.known_size = head, size
        if self._steady is not None:
            self._steady.expect(head, size)

    def begin_response(self) -> None:
        """Note that a response is not like the one before."""
        if self._steady is not None:
            self._steady.restart_count()

    def _keep(self, connection: HttpConnection) -> None:
        if self._steady is None or not self._steady.take(connection):
            self._idle.append(connection)

    def ended_as_before(self, connection: HttpConnection, index: int) -> None:
        """Mark the end of a request whose response is one that is known; its connection is kept."""
        log_end, on_end = self._log_end, self._on_end
        log_end(index, _OK, 1)
        if self._steady is not None:
            self._steady.count()
        self._keep(connection)
        self._active.pop(index, None)
        on_end(index, _OK)
        if self._waiting:
            self._send_waiting()

    def _finish(self, index: int, status: RequestStatus, units: int) -> None:
        self._log_end(index, status, units)
        self._follow_end(index, status)

    def _follow_end(self, index: int, status: RequestStatus) -> None:
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
        now_s = loop.time()
        for index, (deadline, attempt) in list(self._active.items()):
            if deadline <= now_s:
                self._give_up(index, attempt)
        self._give_up_steady(int((now_s - self._timeout_s) * 1e9) + 1)
        if self._timer is not None:  # a request that started meanwhile may have set a later one
            self._timer.cancel()
            self._timer = None
        deadlines = [deadline for deadline, _ in self._active.values()]
        if self._steady is not None and self._steady.native.oldest_sent_ns:
            deadlines.append(self._steady.native.oldest_sent_ns / 1e9 + self._timeout_s)
        if deadlines:
            self._timer = loop.call_at(min(deadlines) + _CLOCK_STEP_S, self._end_late)

    def _give_up_steady(self, sent_before_ns: int) -> None:
        if self._steady is None:
            return
        late = self._steady.take_sent_before(sent_before_ns)
        self._active.update({index: (0.0, connection) for connection, index in late})
        for connection, index in late:
            self._give_up(index, connection)

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
        self._give_up_steady(_NO_LIMIT_NS)

    async def close(self) -> None:
        """Close all connections."""
        self.abandon()
        if self._timer is not None:
            self._timer.cancel()
        if self._steady is not None:
            asyncio.get_running_loop().remove_reader(self._steady.native.fileno())
            self._idle += self._steady.take_all()
            self._steady = None
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes what was aborted


def _ignore(index: int, status: RequestStatus) -> None:
    pass


def _is_closing() -> bool:
    return True
