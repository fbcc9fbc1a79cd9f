# SPDX-License-Identifier: Apache-2.0
"""The HTTP client against a real server: connections, the queue, and every way in which a request fails."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest
from load_client import CheckedLog, send_all
from load_server import OK, Exchange, LoadServer, Responder, chunked, hang, reset, respond_with, serving

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.bodies import Body, BodyMix
from gpuprof.load.targets.client import OnEnd
from gpuprof.load.targets.http import HttpClient, HttpConnection
from gpuprof.load.targets.http_requests import HttpRequests

pytest.importorskip("httptools")


def http_client(server: LoadServer, path: str = "/", mix: BodyMix | None = None, **options: Any) -> Any:
    requests = HttpRequests(server.address(path), mix)
    return lambda log, on_end: HttpClient(
        server.address(path), requests.of, log, on_end=on_end, **{"timeout_s": 30.0, **options}
    )


def code(number: int) -> Responder:
    return respond_with(b"HTTP/1.1 %d Text\r\nContent-Length: 3\r\n\r\nno\n" % number)


S = RequestStatus
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FAULTS: dict[str, tuple[Responder, RequestStatus]] = {
    "ok": (respond_with(OK), S.OK),
    "empty": (respond_with(b"HTTP/1.1 204 No Content\r\n\r\n"), S.OK),
    "chunked": (respond_with(CHUNKS + chunked(b"x") + chunked(b"")), S.OK),
    "until closed": (respond_with(b"HTTP/1.0 200 OK\r\n\r\nall", close=True), S.OK),
    "continue first": (respond_with(b"HTTP/1.1 100 Continue\r\n\r\n" + OK), S.OK),
    "429": (code(429), S.OVERLOADED),
    "500": (code(500), S.SERVER_ERROR),
    "503": (code(503), S.SERVER_ERROR),
    "404": (code(404), S.CLIENT_ERROR),
    "redirect": (code(302), S.HTTP_ERROR),
    "reset": (reset, S.RESET),
    "closed": (respond_with(b"", close=True), S.RESET),
    "half a head": (respond_with(HEAD + b"Content-", close=True), S.INCOMPLETE),
    "half a body": (respond_with(HEAD + b"Content-Length: 9\r\n\r\nhalf", close=True), S.INCOMPLETE),
    "half a chunk": (respond_with(CHUNKS + b"5\r\nab", close=True), S.INCOMPLETE),
    "no HTTP": (respond_with(b"SSH-2.0-OpenSSH_9.2\r\n"), S.INVALID),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_end_of_a_request_has_its_status(fault: str) -> None:
    responder, expected = FAULTS[fault]
    with serving({"/": responder}) as server:
        log = send_all(http_client(server), 3, one_by_one=True)
    assert log.statuses == [expected] * 3
    assert [units for _, units in log.ends.values()] == [int(expected is S.OK)] * 3


def test_a_hung_request_times_out_and_its_connection_is_replaced() -> None:
    with serving({"/": hang}) as server:
        log = send_all(http_client(server, timeout_s=0.05, concurrency=1), 3)
    assert log.statuses == [S.TIMEOUT] * 3
    assert server.connections == 3


def test_a_body_that_stops_in_the_middle_times_out() -> None:
    with serving({"/": respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")}) as server:
        log = send_all(http_client(server, timeout_s=0.05), 2)
    assert log.statuses == [S.TIMEOUT] * 2


def test_a_connection_is_kept_and_one_that_the_server_closes_is_replaced() -> None:
    with serving({"/": respond_with(OK)}) as server:
        assert send_all(http_client(server), 50, one_by_one=True).statuses == [S.OK] * 50
        assert (server.connections, len(server.requests)) == (1, 50)
    with serving(
        {"/": respond_with(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), close=True)}
    ) as server:
        assert send_all(http_client(server), 5, one_by_one=True).statuses == [S.OK] * 5
        assert server.connections == 5


def test_a_limit_of_connections_queues_in_order_and_drops_nothing() -> None:
    with serving({"/": respond_with(OK)}) as server:
        log = send_all(http_client(server, concurrency=3), 200)
        assert server.connections == 3
    assert log.statuses == [S.OK] * 200
    assert log.begun == sorted(log.begun)


def test_as_many_connections_as_requests_under_way() -> None:
    waiting: list[Exchange] = []

    def respond_to_all(exchange: Exchange) -> None:
        waiting.append(exchange)
        if len(waiting) == 20:
            for each in waiting:
                each.transport.write(OK)

    with serving({"/": respond_to_all}) as server:
        assert send_all(http_client(server, concurrency=64), 20).statuses == [S.OK] * 20
        assert server.connections == 20


def test_a_response_that_was_not_asked_for_is_counted_and_ends_the_connection() -> None:
    clients: list[HttpClient] = []

    def make(log: CheckedLog, on_end: OnEnd) -> HttpClient:
        clients.append(http_client(server)(log, on_end))
        return clients[0]

    def respond_twice(exchange: Exchange) -> None:
        exchange.transport.write(OK + OK)

    with serving({"/": respond_twice}) as server:
        log = send_all(make, 3, one_by_one=True)
    # The second is in the same read, after the request has ended.
    assert log.statuses == [S.OK] * 3
    assert clients[0].unrequested == 3
    assert server.connections == 3


SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ([SIZED + b"no"], S.OK),
        ([SIZED, b"no"], S.OK),
        ([SIZED + b"n", b"o"], S.OK),
        ([b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"], S.SERVER_ERROR),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno"], S.INCOMPLETE),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nn", b"oo"], S.OK),
        ([CHUNKS + chunked(b"x") + chunked(b"")], S.OK),
        ([SIZED + b"no" + SIZED], S.OK),
        ([], S.RESET),
    ],
)
def test_a_response_like_the_one_before_ends_as_if_it_were_parsed(
    then: list[bytes], expected: RequestStatus
) -> None:
    count = 0

    def respond(exchange: Exchange) -> None:
        nonlocal count
        count += 1
        parts = [SIZED + b"ok"] if count <= 3 else then
        write_next(exchange, [*parts], closes=count > 3)

    def write_next(exchange: Exchange, parts: list[bytes], *, closes: bool) -> None:
        if parts:
            exchange.transport.write(parts.pop(0))
            asyncio.get_running_loop().call_later(0.005, lambda: write_next(exchange, parts, closes=closes))
        elif closes:
            exchange.transport.close()

    with serving({"/": respond}) as server:
        log = send_all(http_client(server), 4, one_by_one=True)
    assert log.statuses == [S.OK] * 3 + [expected]


def test_chunked_responses_of_one_size_are_parsed() -> None:
    # As large as the one before, and without its last chunk.
    whole, cut = CHUNKS + chunked(b"xxxxx") + chunked(b""), CHUNKS + chunked(b"x" * 10)
    assert len(whole) == len(cut)
    count = 0

    def respond(exchange: Exchange) -> None:
        nonlocal count
        count += 1
        exchange.transport.write(whole if count < 4 else cut)
        if count == 4:
            exchange.transport.close()

    with serving({"/": respond}) as server:
        log = send_all(http_client(server), 4, one_by_one=True)
    assert log.statuses == [S.OK] * 3 + [S.INCOMPLETE]


def refusing_port() -> tuple[socket.socket, int]:
    """Return a bound socket that does not listen: nothing else gets its port."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


def test_no_server_is_an_error_before_anything_is_sent() -> None:
    holder, port = refusing_port()
    with holder:
        server = LoadServer({})
        server.port = port
        with pytest.raises(BenchmarkError) as caught:
            send_all(http_client(server))
    assert caught.value.code == "no_server"


def failing_connections(error: OSError) -> Any:
    class FailingClient(HttpClient):
        async def open(self) -> None:
            pass

        async def _connect(self) -> HttpConnection:
            raise error

    return FailingClient


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ECONNREFUSED, S.REFUSED),
        (errno.EMFILE, S.NO_FILE_DESCRIPTORS),
        (errno.ENFILE, S.NO_FILE_DESCRIPTORS),
        (errno.EADDRNOTAVAIL, S.NO_PORTS),
        (errno.ENETUNREACH, S.UNREACHABLE),
        (errno.ETIMEDOUT, S.TIMEOUT),
    ],
)
def test_connections_that_cannot_be_opened(number: int, expected: RequestStatus) -> None:
    kind = failing_connections(OSError(number, "planted"))
    address = LoadServer({}).address()
    requests = HttpRequests(address)
    log = send_all(lambda log, on_end: kind(address, requests.of, log, on_end=on_end, concurrency=2), 5)
    assert log.statuses == [expected] * 5
    assert log.begun == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("limit", "expected"), [(None, S.REFUSED), (3, S.NO_FILE_DESCRIPTORS)])
def test_a_refused_connection_and_one_without_a_file_descriptor(
    limit: int | None, expected: RequestStatus
) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    class UnopenedClient(HttpClient):
        async def open(self) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit or soft, hard))

        async def close(self) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await super().close()

    holder, port = refusing_port()
    with holder:
        server = LoadServer({})
        server.port = port
        requests = HttpRequests(server.address())
        log = send_all(
            lambda log, on_end: UnopenedClient(server.address(), requests.of, log, on_end=on_end), 3
        )
    assert log.statuses == [expected] * 3


def test_abandoned_requests_never_vanish() -> None:
    log = CheckedLog()

    async def run() -> None:
        client = http_client(server, concurrency=2)(log, lambda index, status: None)
        await client.open()
        for index in range(5):
            client.start(index)
        client.abandon()
        await client.close()

    with serving({"/": hang}) as server:
        asyncio.run(run())
    assert log.statuses == [S.TIMEOUT] * 2 + [S.NOT_SENT] * 3


def test_bodies_are_sent_as_given_by_index_and_by_weight() -> None:
    mix = BodyMix([Body(b'{"n":{{index}}}', "application/json"), Body(b"\0" * 1000)], [3, 1], seed=7)
    with serving({"/": respond_with(OK)}) as server:
        send_all(http_client(server, mix=mix), 200, one_by_one=True)
        bodies = [body for _, body in server.requests]
    assert [body == b"\0" * 1000 for body in bodies] == [mix.variant(index) == 1 for index in range(200)]
    assert all(body == b'{"n":%d}' % index for index, body in enumerate(bodies) if body[:1] == b"{")
    assert 20 < sum(len(body) == 1000 for body in bodies) < 80


def test_bodies_that_the_system_takes_in_pieces_arrive_whole() -> None:
    bodies = [bytes([number]) * (6 << 20) for number in range(3)]
    mix = BodyMix([Body(each, "application/octet-stream") for each in bodies], [1, 1, 1], seed=7)
    with serving({"/": respond_with(OK)}) as server:
        log = send_all(http_client(server, mix=mix, concurrency=2), 6)
        arrived = sorted(body for _, body in server.requests)
    assert log.statuses == [S.OK] * 6
    assert arrived == sorted(bodies[mix.variant(index)] for index in range(6))


class HeldTransport(asyncio.Transport):
    """A transport whose writes stay in its buffer until `held` is cleared."""

    def __init__(self, ours: socket.socket) -> None:
        super().__init__({"socket": ours})
        self.held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.held += bytes(data)

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("is_new", [True, False])
def test_a_request_never_overtakes_what_the_transport_still_has_to_send(is_new: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, serving({"/": respond_with(OK)}) as server:
        ours.setblocking(False)
        connection = http_client(server)(CheckedLog(), lambda _, __: None).new_connection()
        transport = HeldTransport(ours)
        connection.connection_made(transport)
        first = b"first" * (1 if is_new else 4 << 20)  # the socket takes a part of a large one
        (connection.send_first if is_new else connection.send)(0, first)
        held = transport.held
        assert held
        assert first.endswith(held)
        connection.send(1, b"second")  # the server responded before it had read the first one
        assert transport.held == held + b"second"
        transport.held = b""
        if not is_new:
            theirs.recv(len(first) - len(held), socket.MSG_WAITALL)
        connection.send(2, b"third")
        assert (transport.held, theirs.recv(100)) == (b"", b"third")


def test_every_code_but_success_is_counted() -> None:
    clients: list[HttpClient] = []

    def make(log: CheckedLog, on_end: OnEnd) -> HttpClient:
        clients.append(http_client(server)(log, on_end))
        return clients[0]

    with serving({"/": code(503)}) as server:
        send_all(make, 4, one_by_one=True)
    assert dict(clients[0].codes) == {503: 4}
