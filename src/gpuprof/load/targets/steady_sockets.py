# SPDX-License-Identifier: Apache-2.0
"""Sockets of an HTTP client that native code sends on and reads while the responses of the server repeat.

A connection is handed over when it is idle and enough responses were alike. When something else arrives on
its socket it is returned, and its transport reads on from there.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from gpuprof import _native
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.client import OnEnd

# As many responses are alike before connections are handed over, which takes as long as parsing several.
_ALIKE = 16
_OK = RequestStatus.OK


class SocketOwner(Protocol):
    """A connection whose socket can have another reader."""

    def hand_over(self) -> int:
        """Read no more; returns the socket, or -1 if the transport has to keep it."""

    def take_back(self, index: int | None, *, unsent: bytes = b"", received: bytes = b"") -> None:
        """Continue with request `index`, None if there is none."""


Owner = TypeVar("Owner", bound=SocketOwner)


class SteadySockets(Generic[Owner]):
    """The connections that are handed over, by socket. Raises OSError where the system has no such thing."""

    def __init__(self, log: _native.RequestLog) -> None:
        self.native = _native.SteadyConnections(log)
        self._largest = self.native.largest_response
        self._owners: dict[int, Owner] = {}
        self._size = -1
        # Responses since the latest one that was parsed, with those that native code counts.
        self._alike = 0
        self._is_full = False

    def expect(self, head: bytes, size: int) -> None:
        """Remember the head of a response and its whole size."""
        self._size = size
        if size <= self._largest:
            self.native.expect(head, size)
        self.restart_count()

    def restart_count(self) -> None:
        """Count from now on how many responses are alike."""
        self._alike = -self.native.ended

    def count(self) -> None:
        """Count a response like the one before that a transport has read."""
        self._alike += 1

    def take(self, owner: Owner) -> bool:
        """Take an idle connection if responses repeat."""
        is_steady = self._alike + self.native.ended >= _ALIKE and self._size <= self._largest
        if not is_steady or self._is_full:
            return False
        socket = owner.hand_over()
        if socket < 0:
            return False
        try:
            self.native.add(socket)
        except OSError:  # the system watches no more files for this user
            self._is_full = True
            owner.take_back(None)
            return False
        self._owners[socket] = owner
        return True

    def send(self, index: int, request: bytes) -> tuple[Owner, bytes] | None:
        """Send on an idle connection; returns it with the rest of the request where not all was sent."""
        rest = self.native.send(index, request)
        if rest is None:
            return None
        socket, size = rest
        return self._owners.pop(socket), request[size:]

    def receive(self, on_end: OnEnd) -> list[tuple[Owner, int, int, bytes]]:
        """Read what arrived, until a connection is returned or all is read; on_end may start requests.

        Returned are connections with the request under way or -1, when that was sent, and what was received.
        """
        return [
            (self._owners.pop(socket), index, sent_ns, received)
            for socket, index, sent_ns, received in self.native.receive(on_end, _OK)
        ]

    def take_sent_before(self, time_ns: int) -> list[tuple[Owner, int]]:
        """Return connections and their requests that were sent before a time of the monotonic clock."""
        late = self.native.take_sent_before(time_ns)
        return [(self._owners.pop(socket), index) for socket, index, _, _ in late]

    def take_all(self) -> list[Owner]:
        """Return all connections, whose sockets are read no more."""
        owners = list(self._owners.values())
        self._owners.clear()
        return owners
