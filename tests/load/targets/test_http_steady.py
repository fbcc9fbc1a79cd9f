# SPDX-License-Identifier: Apache-2.0
"""The HTTP client once responses repeat: native code reads them until something else arrives."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from load_server import OK, Exchange, LoadServer, Responder, chunked, reset, respond_with, serving

from gpuprof import _native
from gpuprof.load.requests import RequestStatus, rows_of
from gpuprof.load.targets.bodies import Body, BodyMix
from gpuprof.load.targets.http import HttpClient, HttpConnection
from gpuprof.load.targets.http_requests import HttpRequests
from gpuprof.load.targets.steady_sockets import SteadySockets

pytest.importorskip("httptools")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere transports read everything")

S = RequestStatus
STEADY = 40  # as many responses are alike
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Sender:
    """Sends requests of a server's `/`, some at once; each end starts the next."""

    def __init__(
        self, server: LoadServer, count: int, at_once: int = 1, mix: BodyMix | None = None, **options: Any
    ) -> None:
        self.log = _native.RequestLog(count)
        self.count, self._at_once = count, at_once
        self._last = self.started = self._ended = 0
        self._finished = asyncio.Event()
        options = {"timeout_s": 30.0, "concurrency": at_once, **options}
        requests = HttpRequests(server.address(), mix)
        self.client = HttpClient(server.address(), requests.of, self.log, on_end=self._on_end, **options)

    def _on_end(self, _: int, __: RequestStatus) -> None:
        self._ended += 1
        if self.started < self._last:
            self.start()
        elif self._ended == self._last:
            self._finished.set()

    def start(self) -> None:
        """Start the next request."""
        self.started += 1
        self.client.start(self.started - 1)

    async def send_until(self, last: int) -> None:
        """Send all up to the number `last`."""
        self._finished = asyncio.Event()
        self._last = last
        for _ in range(min(self._at_once, last - self.started)):
            self.start()
        await asyncio.wait_for(self._finished.wait(), 60)

    async def send(self) -> None:
        """Send all, and close the client."""
        await self.client.open()
        await self.send_until(self.count)
        await self.client.close()

    @property
    def statuses(self) -> list[int]:
        """In the order of the requests."""
        assert self.log.duplicates == 0
        return list(rows_of(self.log)["status"].tolist())


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list of what transports read."""
    reads: list[bytes] = []
    read = HttpConnection.data_received

    def data_received(connection: HttpConnection, data: bytes) -> None:
        reads.append(data)
        read(connection, data)

    monkeypatch.setattr(HttpConnection, "data_received", data_received)
    return reads


def steady_until(count: int, then: Responder) -> Responder:
    """Return a handler whose first `count` responses are alike."""
    responses = 0

    def respond(exchange: Exchange) -> None:
        nonlocal responses
        responses += 1
        if responses <= count:
            exchange.transport.write(SIZED + b"ok")
        else:
            then(exchange)

    return respond


def in_parts(*parts: bytes, close: bool = True) -> Responder:
    """Return a handler that writes one part after the other, with pauses."""

    def write_next(exchange: Exchange, left: list[bytes]) -> None:
        if left:
            exchange.transport.write(left.pop(0))
            asyncio.get_running_loop().call_later(0.005, lambda: write_next(exchange, left))
        elif close:
            exchange.transport.close()

    return lambda exchange: write_next(exchange, [*parts])


@pytest.mark.parametrize("at_once", [1, 16, 100])
def test_responses_that_repeat_are_read_by_native_code(at_once: int, parsed: list[bytes]) -> None:
    with serving({"/": respond_with(OK)}) as server:
        sender = Sender(server, 3000, at_once)
        asyncio.run(sender.send())
        assert server.connections <= at_once
        assert len(server.requests) == 3000
    assert sender.statuses == [S.OK] * 3000
    assert len(parsed) < 50 + 2 * at_once
    rows = rows_of(sender.log)
    assert (rows["sent_ns"] > 0).all()
    assert (rows["end_ns"] >= rows["sent_ns"]).all()
    assert (rows["units"] == 1).all()


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (in_parts(SIZED + b"no"), S.OK),
        (in_parts(SIZED, b"no"), S.OK),
        (in_parts(SIZED + b"n", b"o"), S.OK),
        (in_parts(SIZED[:9], SIZED[9:] + b"no"), S.OK),
        (in_parts(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"), S.SERVER_ERROR),
        (in_parts(b"HTTP/1.1 503 XX\r\nContent-Length: 2\r\n\r\nno"), S.SERVER_ERROR),
        (in_parts(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno"), S.INCOMPLETE),
        (in_parts(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nn", b"oo"), S.OK),
        (in_parts(CHUNKS + chunked(b"x") + chunked(b"")), S.OK),
        (in_parts(SIZED + b"no" + SIZED), S.OK),
        (in_parts(b"SSH-2.0-OpenSSH_9.2\r\n"), S.INVALID),
        (in_parts(), S.RESET),
        (reset, S.RESET),
    ],
)
def test_what_follows_them_ends_as_if_each_were_parsed(then: Responder, expected: RequestStatus) -> None:
    with serving({"/": steady_until(STEADY, then)}) as server:
        sender = Sender(server, STEADY + 1)
        asyncio.run(sender.send())
    assert sender.statuses == [S.OK] * STEADY + [expected]


def test_after_a_failure_the_connections_are_replaced_and_steady_again(parsed: list[bytes]) -> None:
    def fail_once(exchange: Exchange) -> None:
        server.responders["/"] = respond_with(SIZED + b"ok")
        exchange.transport.abort()

    with serving({"/": steady_until(STEADY, fail_once)}) as server:
        sender = Sender(server, 1000)
        asyncio.run(sender.send())
        assert server.connections == 2
    assert sender.statuses == [S.OK] * STEADY + [S.RESET] + [S.OK] * (999 - STEADY)
    assert len(parsed) < 50


def test_a_hung_request_times_out_and_those_after_it_are_sent() -> None:
    def hang_once(exchange: Exchange) -> None:
        server.responders["/"] = respond_with(SIZED + b"ok")

    with serving({"/": steady_until(STEADY, hang_once)}) as server:
        sender = Sender(server, 100, timeout_s=0.1)
        asyncio.run(sender.send())
        assert server.connections == 2
    assert sender.statuses == [S.OK] * STEADY + [S.TIMEOUT] + [S.OK] * (99 - STEADY)
    row = rows_of(sender.log)[STEADY]
    assert row["end_ns"] - row["sent_ns"] >= 0.1e9


@pytest.mark.parametrize("steady", [0, STEADY])
def test_each_request_has_a_timeout_of_its_own_whatever_starts_when_others_end(steady: int) -> None:
    with serving({"/": steady_until(steady, lambda _: None)}) as server:
        sender = Sender(server, steady + 3, timeout_s=0.2, concurrency=2)

        async def run() -> None:
            await sender.client.open()
            if steady:
                await sender.send_until(steady)
            first = asyncio.ensure_future(sender.send_until(steady + 3))  # one at once
            await asyncio.sleep(0.1)
            sender.start()
            await first
            await sender.client.close()

        asyncio.run(run())
    assert sender.statuses == [S.OK] * steady + [S.TIMEOUT] * 3
    rows = rows_of(sender.log)[steady:]
    assert rows["end_ns"].tolist() == sorted(rows["end_ns"])
    # The third started when the first one ended: the second must not wait for the third's timeout.
    assert rows["end_ns"][2] - rows["end_ns"][1] > 0.03e9


def test_a_hung_response_that_has_begun_times_out_too() -> None:
    half = in_parts(SIZED + b"n", close=False)
    with serving({"/": steady_until(STEADY, half)}) as server:
        sender = Sender(server, STEADY + 2, timeout_s=0.1)
        asyncio.run(sender.send())
    assert sender.statuses == [S.OK] * STEADY + [S.TIMEOUT] * 2


@pytest.mark.parametrize(("every", "most_parsed"), [(1, 1000), (200, 150)])
def test_heads_that_change_are_parsed_when_they_do(every: int, most_parsed: int, parsed: list[bytes]) -> None:
    responses = 0

    def respond(exchange: Exchange) -> None:
        nonlocal responses
        number, responses = responses // every, responses + 1
        exchange.transport.write(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 2\r\n\r\nok" % number)

    with serving({"/": respond}) as server:
        sender = Sender(server, 1000, at_once=4)
        asyncio.run(sender.send())
    assert sender.statuses == [S.OK] * 1000
    assert len(parsed) <= most_parsed


def test_bodies_that_the_system_takes_in_pieces_arrive_whole(parsed: list[bytes]) -> None:
    small, large = b"s" * 10, b"l" * (6 << 20)
    mix = BodyMix([Body(small), Body(large, "application/octet-stream")], [20, 1], seed=3)
    with serving({"/": respond_with(OK)}) as server:
        sender = Sender(server, 150, at_once=2, mix=mix)
        asyncio.run(sender.send())
        bodies = [len(body) for _, body in server.requests]
    assert sender.statuses == [S.OK] * 150
    assert sorted(bodies) == sorted(len((small, large)[mix.variant(index)]) for index in range(150))
    assert bodies.count(len(large)) >= 3
    assert len(parsed) < 60


def after_an_act_on_the_idle_connection(
    act: Callable[[asyncio.Transport], None],
) -> tuple[Sender, LoadServer]:
    """Return a sender and its server after steady requests, the act of the server, and one more request."""
    exchanges: list[Exchange] = []

    def respond(exchange: Exchange) -> None:
        exchanges[:] = [exchange]
        exchange.transport.write(SIZED + b"ok")

    with serving({"/": respond}) as server:
        sender = Sender(server, STEADY + 1)

        async def run() -> None:
            await sender.client.open()
            await sender.send_until(STEADY)
            server.call(lambda: act(exchanges[0].transport))
            while sender.client.connections:  # until the client has noticed
                await asyncio.sleep(0.001)
            await sender.send_until(STEADY + 1)
            await sender.client.close()

        asyncio.run(asyncio.wait_for(run(), 60))
    assert sender.statuses == [S.OK] * (STEADY + 1)
    return sender, server


def test_a_steady_connection_that_the_server_closes_is_replaced() -> None:
    sender, server = after_an_act_on_the_idle_connection(lambda transport: transport.close())
    assert (server.connections, sender.client.unrequested) == (2, 0)


def test_a_response_without_a_request_is_counted_and_ends_the_connection() -> None:
    sender, server = after_an_act_on_the_idle_connection(lambda transport: transport.write(SIZED + b"ok"))
    assert (server.connections, sender.client.unrequested) == (2, 1)


def test_what_is_under_way_is_abandoned() -> None:
    with serving({"/": steady_until(STEADY, lambda _: None)}) as server:
        sender = Sender(server, STEADY + 4, at_once=2)

        async def run() -> None:
            await sender.client.open()
            await sender.send_until(STEADY)
            for index in range(STEADY, STEADY + 4):
                sender.client.start(index)
            sender.client.abandon()
            await sender.client.close()

        asyncio.run(run())
    assert sender.statuses == [S.OK] * STEADY + [S.TIMEOUT] * 2 + [S.NOT_SENT] * 2


class Owner:
    """A connection whose socket is `socket`."""

    def __init__(self, socket: int) -> None:
        self.socket = socket
        self.calls: list[str] = []

    def hand_over(self) -> int:
        self.calls.append("hand over")
        return self.socket

    def take_back(self, index: int | None, *, unsent: bytes = b"", received: bytes = b"") -> None:
        self.calls.append("take back")


def test_connections_are_taken_after_enough_responses_that_are_alike() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        steady = SteadySockets[Owner](_native.RequestLog(1))
        steady.expect(SIZED, len(SIZED) + 2)
        owner = Owner(ours.fileno())
        for _ in range(2):
            for _ in range(15):
                steady.count()
                assert not steady.take(owner)
            steady.restart_count()  # one that was parsed
        for _ in range(16):
            steady.count()
        steady.expect(SIZED, steady.native.largest_response + 1)
        for _ in range(16):
            steady.count()
        assert not steady.take(owner)
        assert owner.calls == []
        steady.expect(SIZED, steady.native.largest_response)
        for _ in range(16):
            steady.count()
        assert steady.take(owner)
        assert steady.native.has_idle
        assert steady.take_all() == [owner]


def test_a_socket_that_cannot_be_watched_is_returned_and_no_other_is_asked_for() -> None:
    steady = SteadySockets[Owner](_native.RequestLog(1))
    steady.expect(SIZED, len(SIZED) + 2)
    for _ in range(16):
        steady.count()
    owner = Owner(1 << 20)  # no such file
    assert not steady.take(owner)
    assert not steady.take(owner)
    assert owner.calls == ["hand over", "take back"]
    assert not steady.native.has_idle
