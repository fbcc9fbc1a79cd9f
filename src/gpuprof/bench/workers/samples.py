# SPDX-License-Identifier: Apache-2.0
"""Samples on their way out of a launch, so that one that hangs or dies leaves what it had measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.measure.measurement import Measurement, StoppedBy

SEND_EVERY_S = 1.0
INTERRUPTED = "interrupted"


class Send(Protocol):
    """Where events go."""

    def __call__(self, event: str, **values: Any) -> None:
        """Take one event."""
        ...


class SampleSender:
    """Sends samples in the launch: the first ones at once, then about once a second, between timed parts."""

    def __init__(self, send: Send, clock_s: Callable[[], float] = time.monotonic, **values: Any) -> None:
        self._send, self._clock_s, self._values = send, clock_s, values
        self._wall: list[int] = []
        self._enqueue: list[int] = []
        self._next_s = clock_s()

    def progress(self, wall_ns: list[int], enqueue_ns: list[int] | None, calls: int) -> None:
        """Take new samples of so many calls each."""
        self._wall += wall_ns
        self._enqueue += enqueue_ns or []
        if self._clock_s() < self._next_s:
            return
        enqueue = None if enqueue_ns is None else self._enqueue
        self._send("samples", wall_ns=self._wall, enqueue_ns=enqueue, calls=calls, **self._values)
        self._wall, self._enqueue, self._next_s = [], [], self._clock_s() + SEND_EVERY_S


class SamplesSoFar:
    """What has arrived of a measurement that has not come to its end."""

    def __init__(self) -> None:
        self._wall: list[int] = []
        self._enqueue: list[int] | None = None
        self._calls = 1

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one `samples` event."""
        self._wall += event["wall_ns"]
        if event["enqueue_ns"] is not None:
            self._enqueue = (self._enqueue or []) + event["enqueue_ns"]
        self._calls = event["calls"]

    def measurement(self, settings: Settings, reason: str, stopped_by: StoppedBy) -> Measurement | None:
        """Return the samples as a measurement that was cut short; None where there are none."""
        if not self._wall:
            return None
        return Measurement(
            settings=settings,
            wall_ns=np.array(self._wall, dtype=np.int64),
            enqueue_ns=None if self._enqueue is None else np.array(self._enqueue, dtype=np.int64),
            calls_per_sample=self._calls,
            warmup=None,
            stopped_by=stopped_by,
            stop_reason=reason,
            failure=reason,
            timer_ns=0.0,
            elapsed_s=sum(self._wall) / 1e9,
            machine=None,
        )
