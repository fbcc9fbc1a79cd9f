# SPDX-License-Identifier: Apache-2.0
"""What a client of a server is to the event loop that starts its requests, and the packages it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from gpuprof.errors import UnavailableError
from gpuprof.load.requests import RequestStatus


class ResponseLog(Protocol):
    """Where a client marks the moments of a request; `gpuprof._native.RequestLog` reads the clock itself."""

    def begin(self, index: int) -> None:
        """Mark that request `index` is sent."""

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
