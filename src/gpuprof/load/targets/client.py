# SPDX-License-Identifier: Apache-2.0
"""What a client of a server is to the event loop that starts its requests, and the packages it needs."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.load.requests import RequestStatus


class ResponseLog(Protocol):
    """Where a client marks the moments of a request; `gpuprof._native.RequestLog` reads the clock itself."""

    def begin(self, index: int) -> None:
        """Mark that request `index` is sent."""

    def send(self, index: int, socket: int, request: bytes) -> int:
        """Mark it, and send bytes on a socket without waiting; returns how many were sent, 0 of an error."""

    def first(self, index: int) -> None:
        """Mark the first output of a stream."""

    def end(self, index: int, status: int, units: int) -> object:
        """Mark the end of a request: a `RequestStatus`, and how much it returned."""


OnEnd = Callable[[int, RequestStatus], None]


class Client(Protocol):
    """Sends requests by index. Every request that is started ends in the log exactly once."""

    async def open(self) -> None:
        """Connect to the server, or raise a BenchmarkError before anything is sent."""

    def start(self, index: int) -> None:
        """Send request `index` now, or queue it while `concurrency` requests are under way."""

    def abandon(self) -> None:
        """End what is under way as timed out and what is queued as not sent."""

    async def close(self) -> None:
        """Close all connections."""


def end_of_process(code: int) -> str:
    """Return how a process ended that returned `code`: the name of a signal, or an exit code."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def client_failed(code: int) -> BenchmarkError:
    """Return the error of a client whose process returned `code` before the load was over."""
    is_killed = code == -signal.SIGKILL
    return BenchmarkError(
        "client_failed",
        f"the client's process ended before the load did ({end_of_process(code)})",
        hint="check whether the machine ran out of memory" if is_killed else "see its output above",
    )


def load_package(name: str) -> Any:
    """Return a module of the extra `load`."""
    try:
        module: ModuleType = importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            "not_installed",
            f"this target needs {name.partition('.')[0]}, which is not installed",
            hint="pip install 'gpuprof-native[load]'",
        ) from error
    return module
