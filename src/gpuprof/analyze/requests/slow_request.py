# SPDX-License-Identifier: Apache-2.0
"""A slow request: where its time went, and what took longer than in the requests around the median."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class TimePart(str, Enum):
    """A part of the service time. All but PARALLEL add up to it."""

    LAYERS = "layers"  # self time of layers
    OPERATORS = "operators"  # and the backward pass
    PYTHON = "python"  # functions, and spans without samples
    WAITING = "waiting"  # of the thread; of a task, also its turns that others have
    GC = "gc"
    COMPILATION = "compilation"
    OUTSIDE = "outside"  # of the request's span: the generator's own
    PARALLEL = "parallel"  # spans of the request on other threads

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Cause:
    """Where a request spent more than the requests around the median: a node of the call tree by its name.

    `typical_ns` is the mean of those requests. `inside` is the function, layer or span of the target
    around it, if any.
    """

    kind: str
    name: str
    inside: str
    own_ns: int
    typical_ns: int

    @property
    def excess_ns(self) -> int:
        """What it takes longer here."""
        return self.own_ns - self.typical_ns


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """A request, and where its time went. `batch_size` requests share the service time of a batch.

    `parts_ns` is None where the spans of the request were not recorded, `cause` where nothing took longer
    than around the median. `waited_for` is the request that was served for longest while this one waited.
    """

    index: int
    status: str
    planned_ns: int
    latency_ns: int
    queued_ns: int
    service_ns: int
    batch_size: int
    span_id: int | None
    waited_for: int | None
    parts_ns: dict[TimePart, int] | None
    cause: Cause | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in nanoseconds."""
        parts = None if self.parts_ns is None else {str(part): time for part, time in self.parts_ns.items()}
        return {**asdict(self), "parts_ns": parts}


@dataclass(frozen=True, slots=True)
class TailWait:
    """Of the latency of the requests above p99: how many there are, and the fraction before sending.

    Of few requests p99 is the maximum.
    """

    requests: int
    latency_ns: int
    queued_fraction: float
    is_maximum: bool
