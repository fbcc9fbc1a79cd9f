# SPDX-License-Identifier: Apache-2.0
"""Samples on their way out of a process run, so that one that hangs or dies leaves what it had measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.measure.measurement import Measurement, StoppedBy
from gpuprof.bench.workers.events import Samples, Send

SEND_EVERY_S = 1.0


class SampleSender:
    """Sends samples in the worker: the first ones at once, then about once a second, between timed parts."""

    def __init__(
        self, send: Send, batch_size: int | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._clock_s, self._batch_size = send, clock_s, batch_size
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
        self._send(Samples(wall_ns=self._wall, enqueue_ns=enqueue, calls=calls, batch_size=self._batch_size))
        self._wall, self._enqueue, self._next_s = [], [], self._clock_s() + SEND_EVERY_S


class SamplesSoFar:
    """What has arrived of a measurement that is not complete."""

    def __init__(self) -> None:
        self._wall: list[int] = []
        self._enqueue: list[int] | None = None
        self._calls = 1

    def take(self, event: Samples) -> None:
        """Take new samples."""
        self._wall += event.wall_ns
        if event.enqueue_ns is not None:
            self._enqueue = (self._enqueue or []) + event.enqueue_ns
        self._calls = event.calls or 1

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
