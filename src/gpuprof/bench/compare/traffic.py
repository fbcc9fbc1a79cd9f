# SPDX-License-Identifier: Apache-2.0
"""Two variants in one process that share its requests at random, as behind a traffic split, launch by launch.

Both variants meet the same machine in the same moments, so what disturbs one disturbs the other, and what one
leaves in the caches the other finds, as it would where both serve. Who gets few requests finds its own data
less often, though: held against itself at 90 to 10, a variant looks slower with the 10. So the one with more
is loaded twice, and a copy of it, the control, gets as large a share as the one with less: these two are
compared. Requests come one after the other: what is measured is the time of service, without a queue.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import ClassVar

from gpuprof.bench.compare.plan import Variant
from gpuprof.bench.compare.traffic_result import (
    ERROR_MARGIN,
    TAIL_MARGIN,
    ArmRequests,
    TrafficLaunch,
    TrafficResult,
)
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.workers.events import Event, Found
from gpuprof.bench.workers.schedule import TIME_LIMIT_S, Schedule, Watcher, ignore
from gpuprof.errors import BenchmarkError
from gpuprof.stats.ratio_test import MARGIN

LAUNCHES = 10
REQUESTS = 1_000


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """How requests are shared and measured. Raises BenchmarkError for what cannot be.

    `split` are the shares of both variants, 1 together. A launch ends after `requests` or `duration_s`,
    whatever comes first; before that each variant gets `warmup` requests that do not count. `margin` is the
    change of the median that matters, `tail_margin` that of p95 and p99, `error_margin` that of the share of
    requests that fail.
    """

    split: tuple[float, float]
    launches: int = LAUNCHES
    requests: int = REQUESTS
    duration_s: float = 20.0
    warmup: int = 30
    batch_size: int = 1
    seed: int = 0
    margin: float = MARGIN
    tail_margin: float = TAIL_MARGIN
    error_margin: float = ERROR_MARGIN
    time_limit_s: float = TIME_LIMIT_S

    def __post_init__(self) -> None:
        whole = {
            "launches": (self.launches, 1),
            "requests": (self.requests, 1),
            "warmup": (self.warmup, 0),
            "batch_size": (self.batch_size, 1),
        }
        for name, (value, least) in whole.items():
            if value < least:
                raise BenchmarkError(f"traffic: {name} {value} cannot be measured: give {least} or more")
        for name in ("duration_s", "time_limit_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BenchmarkError(
                    f"traffic: {name} {getattr(self, name)} is no time: give seconds above 0"
                )
        if not (min(self.split) > 0 and math.isclose(sum(self.split), 1.0)):
            raise BenchmarkError(f"traffic: shares {self.split} are not 1 together: give both variants some")


CONTROL = 2


def copied(split: tuple[float, float]) -> int | None:
    """Return which variant needs a copy as a control, 0 or 1; None where both get as much."""
    return None if math.isclose(*split) else int(split[1] > split[0])


def request_order(settings: TrafficSettings, launch: int) -> list[int]:
    """Return for each request of a launch who gets it, at random: 0 or 1, or CONTROL for the copy."""
    generator = random.Random(f"{settings.seed}:{launch}")  # noqa: S311 - an order, no secret
    shares = [*settings.split, 0.0]
    larger = copied(settings.split)
    if larger is not None:
        shares[CONTROL] = shares[1 - larger]
        shares[larger] -= shares[CONTROL]
    return generator.choices(range(3), shares, k=settings.requests)


@dataclass(frozen=True, slots=True)
class TrafficJob:
    """Serve the requests of one process run with both variants."""

    entry: ClassVar[str] = "gpuprof.bench.compare.traffic_job:run_traffic_job"
    keeps_collector: ClassVar[bool] = False

    variants: tuple[Variant, Variant]
    settings: TrafficSettings
    number: int


class _TrafficRuns:
    """Two variants that share requests, as the subject of a schedule."""

    def __init__(self, first: Variant, second: Variant, settings: TrafficSettings) -> None:
        self.name = f"{first.name} and {second.name}"
        self.done: list[TrafficLaunch] = []
        self.failures: list[str] = []
        self._variants, self._settings = (first, second), settings

    def job(self, number: int) -> TrafficJob:
        """Return what a process run does."""
        return TrafficJob(self._variants, self._settings, number)

    def take(self, number: int, event: Event) -> None:
        """Take the requests of both arms, which are the last that a process run reports."""
        if isinstance(event, Found):
            self.done.append(TrafficLaunch(number, from_plain(event.value, tuple[ArmRequests, ArmRequests])))

    def end(self, number: int, failure: Failure | None) -> None:  # noqa: ARG002 - the protocol's
        """Note a failure. Raises BenchmarkError for one before any process run has succeeded."""
        if failure is None or failure.code is FailureCode.INTERRUPTED:
            return
        if not self.done:
            raise failure.error()
        self.failures.append(str(failure))


def measure_traffic(
    first: Variant, second: Variant, settings: TrafficSettings, *, watch: Watcher = ignore
) -> TrafficResult:
    """Serve the requests of so many process runs, each of which has loaded both variants.

    `watch` gets each event. A process run that fails later than the first is in the result; Ctrl-C keeps
    what there is. Raises BenchmarkError where a variant cannot be loaded, where the two take other inputs,
    and where the first process run fails.
    """
    if first.name == second.name:
        raise BenchmarkError(f"both variants of the traffic are called {first.name!r}: give them two names")
    runs = _TrafficRuns(first, second, settings)
    interrupted = False
    try:
        Schedule(settings.launches, settings.seed, settings.time_limit_s, watch=watch).run([runs])
    except KeyboardInterrupt:
        if not runs.done:
            raise
        interrupted = True
    return TrafficResult(
        names=(first.name, second.name),
        split=settings.split,
        launches=tuple(runs.done),
        settings=to_plain(settings),
        failures=tuple(runs.failures),
        interrupted=interrupted,
    )
