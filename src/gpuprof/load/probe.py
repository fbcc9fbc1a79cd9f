# SPDX-License-Identifier: Apache-2.0
"""The generator's own ceiling: how many requests it sends to a target that does nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.load.driver import DriveSettings, drive
from gpuprof.load.requests import RequestStatus, lateness_ns
from gpuprof.load.schedules import RateSchedule
from gpuprof.load.targets.base import RequestSink, Target
from gpuprof.load.targets.in_process import CallableTarget

# Beyond this fraction of the ceiling a result is called generator-bound.
GENERATOR_BOUND = 0.5
_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class Probe:
    """What the generator reaches in this process; the lateness is at 1,000 requests per second."""

    ceiling_per_s: float
    lateness_p50_s: float | None = None
    lateness_p99_s: float | None = None


def probe_ceiling(
    concurrency: int | None = None, requests: int = _REQUESTS, *, in_loop: bool = False
) -> Probe:
    """Return the highest rate of requests to a target that does nothing, which takes a fraction of a second.

    `in_loop` sends from an event loop, as for coroutines and servers.
    """
    target: Target = _NullLoopTarget() if in_loop else CallableTarget(_nothing)
    load = drive(target, np.zeros(requests, np.int64), DriveSettings(concurrency=concurrency))
    elapsed_s = max(load.end_ns - int(load.rows["sent_ns"].min()), 1) / 1e9
    return Probe(requests / elapsed_s)


def probe_machine(duration_s: float = 2.0) -> Probe:
    """Return the ceiling and the lateness at 1,000 requests per second on this machine, as it is now."""
    arrivals = RateSchedule(1000.0, duration_s).arrivals_ns(np.random.default_rng(0))
    late_s = lateness_ns(drive(CallableTarget(_nothing), arrivals).rows) / 1e9
    p50, p99 = (float(each) for each in np.quantile(late_s, (0.5, 0.99)))
    return Probe(probe_ceiling().ceiling_per_s, p50, p99)


class _NullLoopTarget:
    """Ends each request when it is sent."""

    _sink: RequestSink

    async def open(self, sink: RequestSink, concurrency: int | None) -> None:
        del concurrency
        self._sink = sink

    def send(self, index: int) -> None:
        self._sink.end(index, RequestStatus.OK, 1)

    async def close(self) -> None:
        pass


def _nothing() -> None:
    return None
