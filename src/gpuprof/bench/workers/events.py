# SPDX-License-Identifier: Apache-2.0
"""What a process run reports while it runs: typed events, one line of JSON each.

In the order of their making: `UP`, `IMPORTED`, `LOADED`, then for each batch size `PREPARING`, `PREPARED`,
`DESCRIBED`, now and then `WARMING`, then `MEASURING` and `SAMPLES`, at their end `SAMPLED`, and `MEASURED`;
the last one is `DONE` or `FAILED`. Jobs that measure nothing report what they found in an event `FOUND`.
Times are of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gpuprof.bench.failures import Failure
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.serialization import decode, encode, from_plain


class State(str, Enum):
    """How far a process run is."""

    STARTED = "started"
    UP = "up"
    IMPORTED = "imported"
    LOADED = "loaded"
    PREPARING = "preparing"
    PREPARED = "prepared"
    DESCRIBED = "described"
    WARMING = "warming up"
    MEASURING = "measuring"
    SAMPLES = "samples"
    SAMPLED = "sampled"
    MEASURED = "measured"
    PREDICTING = "predicting"
    SERVING = "serving requests"
    COMPARING_LAYERS = "comparing layers"
    FOUND = "found"
    FAILED = "failed"
    DONE = "done"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Event:
    """A state that was reached, at `t_ns`. `calls` is how many calls, or samples to predict, are done."""

    state: State
    t_ns: int = field(default_factory=time.monotonic_ns)
    batch_size: int | None = None
    calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described(Event):
    """What is measured: after the first inference of a batch size. `threads` are those of PyTorch."""

    state: State = State.DESCRIBED
    description: SystemDescription
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples(Event):
    """New samples of `calls` calls each, in nanoseconds."""

    state: State = State.SAMPLES
    wall_ns: list[int]
    enqueue_ns: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementDone(Event):
    """A measurement, and what else was recorded with it."""

    state: State = State.MEASURED
    measurement: Measurement
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Event):
    """What a job found that measures nothing, as plain data of its own."""

    state: State = State.FOUND
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """Why a job failed."""

    state: State = State.FAILED
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Event):
    """A process run has ended, or was skipped since nothing was left to measure. Made by the scheduler."""

    state: State = State.ENDED
    failure: Failure | None = None
    skipped: bool = False


Send = Callable[[Event], None]
_CLASSES: dict[State, type[Event]] = {
    State.DESCRIBED: Described,
    State.SAMPLES: Samples,
    State.MEASURED: MeasurementDone,
    State.FOUND: Found,
    State.FAILED: Failed,
}


def encode_event(event: Event) -> bytes:
    """Return an event as a line."""
    return encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """Read an event. Raises BenchmarkError for half a line, and for what is no event."""
    plain = decode(line, dict)
    state = from_plain(plain.get("state"), State)
    return from_plain(plain, _CLASSES.get(state, Event))
