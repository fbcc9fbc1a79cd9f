# SPDX-License-Identifier: Apache-2.0
"""Two variants in one process that share its requests at random, as behind a traffic split, launch by launch.

Both variants meet the same machine in the same moments, so what disturbs one disturbs the other, and what one
leaves in the caches the other finds, as it would where both serve. Who gets few requests finds its own data
less often, though: held against itself at 90 to 10, a variant looks slower with the 10. So the one with more
is loaded twice, and a copy of it, the control, gets as large a share as the one with less: these two are
compared. Requests come one after the other: what is measured is the time of service, without a queue.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuprof.bench.compare.plan import Variant
from gpuprof.bench.compare.traffic_result import (
    ERROR_MARGIN,
    TAIL_MARGIN,
    ArmRequests,
    Traffic,
    TrafficLaunch,
)
from gpuprof.bench.workers.launcher import Event, refuse_in_launch, run_launch
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.stats.ratio_test import MARGIN

LAUNCHES = 10
REQUESTS = 1_000
TIME_LIMIT_S = 600.0
Progress = Callable[[int, Event], None]


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrafficSettings:
        """Return what `to_dict()` described."""
        return cls(**{**values, "split": tuple(values["split"])})


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


def measure_traffic(
    first: Variant, second: Variant, settings: TrafficSettings, *, progress: Progress | None = None
) -> Traffic:
    """Serve the requests of so many launches, each in a fresh process that has loaded both variants.

    `progress(launch, event)` is told of each event of a launch, from 1. A launch that fails later than the
    first is told in the result; Ctrl-C keeps what there is. Raises BenchmarkError where a variant cannot be
    loaded, where the two take other inputs, and where the first launch fails.
    """
    refuse_in_launch()
    if first.name == second.name:
        raise BenchmarkError(f"both variants of the traffic are called {first.name!r}: give them two names")
    done: list[TrafficLaunch] = []
    failures: list[str] = []
    interrupted = False
    for launch in range(1, settings.launches + 1):
        taken = _Taken(launch, progress)
        try:
            run_launch(
                _job(first, second, settings, launch),
                time_limit_s=settings.time_limit_s,
                on_event=taken.take,
            )
        except GpuprofError as error:
            if not done:
                raise
            failures.append(str(error))
        except KeyboardInterrupt:
            interrupted = True
        done += [] if taken.launch is None else [taken.launch]
        if interrupted:
            break
    if not done:
        raise KeyboardInterrupt
    return Traffic(
        names=(first.name, second.name),
        split=settings.split,
        launches=tuple(done),
        settings=settings.to_dict(),
        failures=tuple(failures),
        interrupted=interrupted,
    )


def _job(first: Variant, second: Variant, settings: TrafficSettings, launch: int) -> dict[str, Any]:
    return {
        "traffic": {
            "variants": [{"name": each.name, "spec": each.spec.to_dict()} for each in (first, second)],
            "settings": settings.to_dict(),
            "launch": launch,
        }
    }


class _Taken:
    """What one launch has told."""

    def __init__(self, launch: int, progress: Progress | None) -> None:
        self.launch: TrafficLaunch | None = None
        self._number, self._progress = launch, progress

    def take(self, event: Event) -> None:
        """Take one event."""
        if event["event"] == "measured":
            arms = tuple(ArmRequests.from_dict(each) for each in event["arms"])
            self.launch = TrafficLaunch(self._number, (arms[0], arms[1]))
        if self._progress is not None:
            self._progress(self._number, event)
