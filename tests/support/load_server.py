# SPDX-License-Identifier: Apache-2.0
"""A server on loopback whose faults are planted by path, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuprof.load.targets.address import ServerAddress, WireProtocol

Responder = Callable[["Exchange"], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(body: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def stream_of(*events: bytes, is_whole: bool = True) -> bytes:
    """Return a response of server-sent events, each in a chunk of its own."""
    return STREAM + b"".join(map(chunked, events)) + (chunked(b"") if is_whole else b"")


def respond_with(response: bytes, *, close: bool = False) -> Responder:
    """Return a handler that writes these bytes."""

    def respond(exchange: Exchange) -> None:
        exchange.transport.write(response)
        if close:
            exchange.transport.close()

    return respond


def hang(exchange: Exchange) -> None:
    """Never respond."""


def reset(exchange: Exchange) -> None:
    """Break the connection with a reset."""
    import socket
    import struct

    plain = exchange.transport.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.transport.abort()


class Exchange(asyncio.Protocol):
    """One connection of the server; `head` and `body` are those of the latest request."""

    transport: asyncio.Transport

    def __init__(self, server: LoadServer) -> None:
        self._server = server
        self._received = b""
        self.head = self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, separator, rest = self._received.partition(b"\r\n\r\n")
            if not separator:
                return
            _, _, after = head.lower().partition(b"\r\ncontent-length:")
            length = int(after.split(b"\r\n")[0] or b"0") if after else 0
            if len(rest) < length:
                return
            self.head, self.body, self._received = head, rest[:length], rest[length:]
            self._server.requests.append((head, self.body))
            self._server.responder_of(head.split()[1].decode())(self)


class LoadServer:
    """Counts connections and requests; `responders` are by path."""

    def __init__(self, responders: dict[str, Responder]) -> None:
        self.responders = responders
        self.connections = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.port = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def call(self, act: Callable[[], object]) -> None:
        """Call a function in the server's thread, soon."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(act)

    def responder_of(self, path: str) -> Responder:
        return self.responders.get(path) or respond_with(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        )

    def address(
        self, path: str = "/", protocol: WireProtocol = WireProtocol.HTTP, host: str = "127.0.0.1"
    ) -> ServerAddress:
        return ServerAddress(protocol, host, self.port, path, resolved=("127.0.0.1",))


@contextmanager
def serving(responders: dict[str, Responder], context: ssl.SSLContext | None = None) -> Iterator[LoadServer]:
    """Serve until the block ends, on a port that the system chooses; with a context over TLS."""
    server = LoadServer(responders)
    loop = server.loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(
        loop.create_server(lambda: Exchange(server), "127.0.0.1", 0, backlog=512, ssl=context)
    )
    server.port = listening.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_shut_down(loop, listening))
        loop.close()


async def _shut_down(loop: asyncio.AbstractEventLoop, listening: asyncio.Server) -> None:
    """Close all connections, those included that were accepted last."""
    # CPython 3.11 leaks a connection that was accepted just before the server was closed.
    loop.remove_reader(listening.sockets[0].fileno())
    for _ in range(6):
        await asyncio.sleep(0)
        for transport in list(getattr(loop, "_transports", {}).values()):
            transport.abort()
    listening.close()
