# SPDX-License-Identifier: Apache-2.0
"""Two variants in one process that get its requests at random, as in an A/B test, run by run.

Both variants meet the same machine in the same moments, so what disturbs one disturbs the other, and what one
leaves in the caches the other finds, as it would where both serve. Who gets few requests finds its own data
less often, though: compared with itself at 90 to 10, a variant looks slower with the 10. So the one with more
is loaded twice, and a copy of it, the control, gets as many as the one with less: these two are
compared. Requests come one after the other: what is measured is the time of service, without a queue.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpuprof.bench.compare.plan import Variant
from gpuprof.bench.compare.traffic_result import (
    ArmRequests,
    TrafficResult,
    TrafficRun,
    TrafficSettings,
)
from gpuprof.bench.failures import Failure, FailureCode, named, place_of, reason_of
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.outputs import InputGuard, check_outputs
from gpuprof.bench.measure.timer import CallTimer
from gpuprof.bench.models.data import shape_text
from gpuprof.bench.serialization import from_plain
from gpuprof.bench.workers.events import Event, Found, Send, State
from gpuprof.bench.workers.measuring import load_system, prepare_system
from gpuprof.bench.workers.schedule import Schedule, Watcher, ignore
from gpuprof.errors import BenchmarkError, GpuprofError

__all__ = ["TrafficSettings", "measure_traffic"]

CONTROL = 2
_REPORT_EVERY_S = 0.2


def copied(split: tuple[float, float]) -> int | None:
    """Return which variant needs a copy as a control, 0 or 1; None where both get as much."""
    return None if math.isclose(*split) else int(split[1] > split[0])


def request_order(settings: TrafficSettings, number: int) -> list[int]:
    """Return for each request of a process run who gets it, at random: 0 or 1, or CONTROL for the copy."""
    generator = random.Random(f"{settings.seed}:{number}")  # noqa: S311 - an order, no secret
    shares = [*settings.split, 0.0]
    larger = copied(settings.split)
    if larger is not None:
        shares[CONTROL] = shares[1 - larger]
        shares[larger] -= shares[CONTROL]
    return generator.choices(range(3), shares, k=settings.requests)


@dataclass(frozen=True, slots=True)
class TrafficJob:
    """Serve the requests of one process run with both variants."""

    entry: ClassVar[str] = "gpuprof.bench.compare.traffic:run_traffic_job"
    keeps_collector: ClassVar[bool] = False

    variants: tuple[Variant, Variant]
    settings: TrafficSettings
    number: int


class _TrafficRuns:
    """Two variants that divide requests, as the subject of a schedule."""

    def __init__(self, first: Variant, second: Variant, settings: TrafficSettings) -> None:
        self.name = f"{first.name} and {second.name}"
        self.done: list[TrafficRun] = []
        self.failures: list[str] = []
        self._variants, self._settings = (first, second), settings

    def job(self, number: int) -> TrafficJob:
        """Return what a process run does."""
        return TrafficJob(self._variants, self._settings, number)

    def take(self, number: int, event: Event) -> None:
        """Take the requests of both arms, which are the last that a process run reports."""
        if isinstance(event, Found):
            self.done.append(TrafficRun(number, from_plain(event.value, tuple[ArmRequests, ArmRequests])))

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
        raise BenchmarkError(
            "same_name", f"both variants of the A/B test are named {first.name!r}", hint="rename one of them"
        )
    runs = _TrafficRuns(first, second, settings)
    interrupted = False
    try:
        Schedule(settings.launches, settings.seed, settings.time_limit_s, watch=watch).run([runs])
    except KeyboardInterrupt:
        if not runs.done:
            raise
        interrupted = True
    names = first.name, second.name
    return TrafficResult(names, settings, tuple(runs.done), tuple(runs.failures), interrupted)


# --- in the worker process -----------------------------------------------------------------------


class _Arm:
    """What gets requests: the times of successful ones in nanoseconds, and what failed."""

    def __init__(self, name: str, system: FrameworkSystem) -> None:
        self.name = name
        self.system = system
        self.requests = ArmRequests()
        self._timer = CallTimer(system.run, system.waiting())

    def serve(self) -> None:
        """Serve one request. One that raises is counted, and has no time."""
        served = self.requests
        try:
            self._timer.take(1)
        except Exception as error:
            first = served.first_failure or f"{reason_of(error)} at {place_of(error)}"
            self.requests = dataclasses.replace(served, failed=served.failed + 1, first_failure=first)
        else:
            served.wall_ns.append(self._timer.wall_ns[0])


def run_traffic_job(job: TrafficJob, send: Send) -> None:
    """Load both variants, then serve requests. Raises GpuprofError.

    An interrupt goes through, after what was measured until then has been reported.
    """
    arms = _loaded(job, send)
    _check_alike(arms)
    arms[0].system.limit_memory(None)
    try:
        # For the life of this process, which ends after this.
        gc.collect()
        gc.disable()
        for _ in range(job.settings.warmup):
            for arm in arms:
                arm.serve()
        for arm in arms:
            arm.requests = ArmRequests()
        try:
            _serve(arms, request_order(job.settings, job.number), job.settings.duration_s, send)
        finally:
            # After an interrupt too: what there is counts.
            send(Found(value=_by_variant(arms, copied(job.settings.split))))
    finally:
        for arm in arms:
            arm.system.close()


def _loaded(job: TrafficJob, send: Send) -> list[_Arm]:
    """Load both variants, and the larger one's copy as the last.

    Which of those that are compared is loaded first changes from one process run to the next: it may get
    the better place in memory.
    """
    larger = copied(job.settings.split)
    wanted = [*job.variants, *([] if larger is None else [job.variants[larger]])]
    order = list(range(len(wanted)))[:: 1 if job.number % 2 else -1]
    found = {each: _arm(wanted[each], job.settings, send) for each in order}
    return [found[each] for each in sorted(found)]


def _arm(variant: Variant, settings: TrafficSettings, send: Send) -> _Arm:
    """Return a variant after its first inference, which gave numbers and did not change its inputs."""
    try:
        system = make_system(variant.spec)
        load_system(system, send)
        prepare_system(system, settings.batch_size, send)
        guard = InputGuard(system)
        check_outputs(system, system.first_inference())
        guard.check()
        return _Arm(variant.name, system)
    except GpuprofError as error:
        raise named(error, f"variant {variant.name}") from error


def _check_alike(arms: Sequence[_Arm]) -> None:
    shapes = {arm.name: arm.system.describe().input_shape for arm in arms[:2]}
    if len(set(shapes.values())) > 1:
        given = " and ".join(f"{name} takes {shape_text(shape or ())}" for name, shape in shapes.items())
        raise BenchmarkError(
            "shapes_differ",
            f"variants of an A/B test need inputs of the same shape, and {given}",
            hint="use one shape",
        )


def _by_variant(arms: Sequence[_Arm], larger: int | None) -> list[ArmRequests]:
    """Return the requests of both variants, those of the copy among those of its own."""
    found = [arm.requests for arm in arms[:2]]
    if larger is not None:
        own, copy = found[larger], arms[CONTROL].requests
        found[larger] = ArmRequests(
            own.wall_ns + copy.wall_ns,
            len(copy.wall_ns),
            own.failed + copy.failed,
            own.first_failure or copy.first_failure,
        )
    return found


def _serve(arms: Sequence[_Arm], order: Sequence[int], duration_s: float, send: Send) -> None:
    end_s = time.monotonic() + duration_s
    report_s = 0.0
    for served, number in enumerate(order, 1):
        arms[number].serve()
        now_s = time.monotonic()
        if now_s >= end_s:
            return
        if now_s >= report_s:
            send(Event(State.SERVING, calls=served))
            report_s = now_s + _REPORT_EVERY_S
