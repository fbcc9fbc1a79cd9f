# SPDX-License-Identifier: Apache-2.0
"""What a target is: one that blocks a thread per request, or one that lives in an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gpuprof.bench.failures import LONGEST_REASON
from gpuprof.load.requests import RequestStatus
from gpuprof.text.sanitize import escape_text, shorten


class RequestError(Exception):
    """A request that failed in a way with a status of its own; any other exception is `FAILED`."""

    def __init__(self, status: RequestStatus, message: str = "") -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class TargetFailure:
    """An exception of a target: its type, and its message on one line of printable characters."""

    type: str
    message: str


def failure_of(error: BaseException) -> TargetFailure:
    """Return an exception as plain values."""
    line = escape_text(" ".join(str(error).split()))
    return TargetFailure(type(error).__name__, shorten(line, LONGEST_REASON))


class RequestSink(Protocol):
    """Where a target reports. Each call is stamped with the time, in native code."""

    def first(self, index: int) -> None:
        """Report the first part of a response; later calls for the request are ignored."""

    def end(self, index: int, status: int, units: int) -> None:
        """Report the end of a request. A second end of one request is counted, and changes nothing."""

    def failed(self, error: BaseException) -> None:
        """Report why a request failed, before its end; the first one is kept."""


@runtime_checkable
class ThreadTarget(Protocol):
    """Handles a request in the calling thread. Calls come from as many threads as the concurrency."""

    def prepare(self) -> None:
        """Load and warm up, before the first request. Raises GpuprofError."""

    def call(self, index: int) -> int:
        """Handle a request; returns its units. Raises RequestError, or anything for `FAILED`."""

    def close(self) -> None:
        """Release what `prepare` took."""


@runtime_checkable
class BatchTarget(Protocol):
    """Handles requests that a queue has batched."""

    max_batch: int
    max_delay_ns: int  # how long the first request of a batch waits for more

    def prepare(self) -> None:
        """Load and warm up, before the first request. Raises GpuprofError."""

    def call_batch(self, indexes: npt.NDArray[np.int64]) -> Sequence[int]:
        """Handle requests; returns the units of each."""

    def close(self) -> None:
        """Release what `prepare` took."""


@runtime_checkable
class LoopTarget(Protocol):
    """Handles requests in the driver's event loop, and never blocks it."""

    async def open(self, sink: RequestSink, concurrency: int | None) -> None:
        """Connect and warm up, before the first request. At most `concurrency` requests are open at once."""

    def send(self, index: int) -> None:
        """Begin a request, which the driver has stamped as sent. Its end is reported to the sink."""

    async def close(self) -> None:
        """Release what `open` took. Requests that are still open are not waited for."""


Target = ThreadTarget | BatchTarget | LoopTarget
