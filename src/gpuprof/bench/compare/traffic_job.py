# SPDX-License-Identifier: Apache-2.0
"""A traffic split in its process: load both variants, then serve requests."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Sequence

from gpuprof.bench.compare.plan import Variant
from gpuprof.bench.compare.traffic import CONTROL, TrafficJob, TrafficSettings, copied, request_order
from gpuprof.bench.compare.traffic_result import ArmRequests
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import named, place_of, reason_of
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.outputs import InputGuard, check_outputs
from gpuprof.bench.measure.timer import CallTimer
from gpuprof.bench.models.data import shape_text
from gpuprof.bench.workers.events import Event, Found, Send, State
from gpuprof.bench.workers.measuring import load_system, prepare_system
from gpuprof.errors import BenchmarkError, GpuprofError

_SAY_EVERY_S = 0.2


def run_traffic_job(job: TrafficJob, send: Send) -> None:
    """Serve what a job says, in a process of its own. Raises GpuprofError.

    An interrupt goes through, after what was measured until then has been handed over.
    """
    arms = _loaded(job, send)
    _check_alike(arms)
    arms[0].system.limit_memory(None)
    try:
        _serve(arms, job.settings, job.number, send)
    finally:
        for arm in arms:
            arm.system.close()


class Arm:
    """What gets requests: the times of its answers in nanoseconds, and what failed."""

    def __init__(self, name: str, system: FrameworkSystem) -> None:
        self.name = name
        self.system = system
        self.requests = ArmRequests()
        self._timer = CallTimer(system.run, system.waiting())

    def serve(self) -> None:
        """Answer one request. One that raises is counted, and its time is none of an answer."""
        served = self.requests
        try:
            self._timer.take(1)
        except Exception as error:
            first = served.first_failure or f"{reason_of(error)} at {place_of(error)}"
            self.requests = dataclasses.replace(served, failed=served.failed + 1, first_failure=first)
        else:
            served.wall_ns.append(self._timer.wall_ns[0])

    def forget(self) -> None:
        """Begin anew, after the warm-up."""
        self.requests = ArmRequests()


def _loaded(job: TrafficJob, send: Send) -> list[Arm]:
    """Load both variants, and the larger one's copy as the last.

    Which of those that are compared is loaded first changes from one process run to the next: it may get
    the better place in memory.
    """
    larger = copied(job.settings.split)
    wanted = [*job.variants, *([] if larger is None else [job.variants[larger]])]
    order = list(range(len(wanted)))[:: 1 if job.number % 2 else -1]
    found = {each: _arm(wanted[each], job.settings, send) for each in order}
    return [found[each] for each in sorted(found)]


def _arm(variant: Variant, settings: TrafficSettings, send: Send) -> Arm:
    try:
        return Arm(variant.name, _responding(variant.spec, settings, send))
    except GpuprofError as error:
        raise named(error, f"variant {variant.name}") from error


def _responding(spec: SystemSpec, settings: TrafficSettings, send: Send) -> FrameworkSystem:
    """Return a system after its first inference, which gave numbers and did not change its inputs."""
    system = make_system(spec)
    load_system(system, send)
    prepare_system(system, settings.batch_size, send)
    guard = InputGuard(system)
    check_outputs(system, system.first_inference())
    guard.check()
    return system


def _check_alike(arms: Sequence[Arm]) -> None:
    shapes = [arm.system.describe().input_shape for arm in arms[:2]]
    if shapes[0] != shapes[1]:
        told = " and ".join(
            f"{arm.name} takes {shape_text(shape or ())}" for arm, shape in zip(arms[:2], shapes, strict=True)
        )
        raise BenchmarkError(
            f"variants of one traffic get the same requests, and {told}: give them one shape"
        )


def _serve(arms: Sequence[Arm], settings: TrafficSettings, launch: int, send: Send) -> None:
    # For the life of this process, which ends after this.
    gc.collect()
    gc.disable()
    for _ in range(settings.warmup):
        for arm in arms:
            arm.serve()
    for arm in arms:
        arm.forget()
    try:
        _serve_order(arms, request_order(settings, launch), settings.duration_s, send)
    finally:
        # After an interrupt too: what there is counts.
        send(Found(value=_by_variant(arms, copied(settings.split))))


def _by_variant(arms: Sequence[Arm], larger: int | None) -> list[ArmRequests]:
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


def _serve_order(arms: Sequence[Arm], order: Sequence[int], duration_s: float, send: Send) -> None:
    end_s = time.monotonic() + duration_s
    say_s = 0.0
    for served, number in enumerate(order, 1):
        arms[number].serve()
        now_s = time.monotonic()
        if now_s >= end_s:
            return
        if now_s >= say_s:
            send(Event(State.SERVING, calls=served))
            say_s = now_s + _SAY_EVERY_S
