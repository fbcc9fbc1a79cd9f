# SPDX-License-Identifier: Apache-2.0
"""What a launch with a traffic split does, inside its process: load both variants, then serve requests."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuprof.bench.compare.traffic import CONTROL, TrafficSettings, copied, request_order
from gpuprof.bench.compare.traffic_result import ArmRequests
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import place_of, reason_of
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.checks import InputGuard, answer, check_outputs
from gpuprof.bench.measure.timer import CallTimer
from gpuprof.bench.models.data import shape_text
from gpuprof.bench.workers.samples import Send
from gpuprof.errors import BenchmarkError, GpuprofError

_SAY_EVERY_S = 0.2


def run_traffic(values: Mapping[str, Any], send: Send) -> None:
    """Do what a job says, in a process that is a launch. Raises GpuprofError.

    An interrupt goes through, after what was measured until then has been handed over.
    """
    settings = TrafficSettings.from_dict(values["settings"])
    arms = _loaded(values["variants"], settings, values["launch"], send)
    _check_alike(arms)
    arms[0].system.limit_memory(None)
    send("ready")
    try:
        _serve(arms, settings, values["launch"], send)
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
        told = self.requests
        try:
            self._timer.take(1)
        except Exception as error:
            first = told.first_failure or f"{reason_of(error)} at {place_of(error)}"
            self.requests = dataclasses.replace(told, failed=told.failed + 1, first_failure=first)
        else:
            told.wall_ns.append(self._timer.wall_ns[0])

    def forget(self) -> None:
        """Begin anew, after the warm-up."""
        self.requests = ArmRequests()


def _loaded(
    variants: Sequence[Mapping[str, Any]], settings: TrafficSettings, launch: int, send: Send
) -> list[Arm]:
    """Load both variants, and the larger one's copy as the last.

    Which of those that are compared is loaded first changes from launch to launch: it may get the better
    place in memory.
    """
    larger = copied(settings.split)
    wanted = [variants[0], variants[1], *([] if larger is None else [variants[larger]])]
    order = list(range(len(wanted)))
    found = {number: _arm(wanted[number], settings, send) for number in order[:: 1 if launch % 2 else -1]}
    return [found[number] for number in order]


def _arm(variant: Mapping[str, Any], settings: TrafficSettings, send: Send) -> Arm:
    try:
        return Arm(variant["name"], _answering(SystemSpec.from_dict(variant["spec"]), settings, send))
    except GpuprofError as error:
        # The same kind: where the memory ended, say, all together may be too large.
        raise type(error)(f"variant {variant['name']}: {error}") from error


def _answering(spec: SystemSpec, settings: TrafficSettings, send: Send) -> FrameworkSystem:
    """Return a system that has answered once, with numbers and without changing its inputs."""
    system = make_system(spec)
    system.import_framework()
    send("imported")
    system.load()
    send("loaded")
    send("preparing", batch_size=settings.batch_size)
    system.prepare(settings.batch_size)
    send("prepared", batch_size=settings.batch_size)
    guard = InputGuard(system)
    check_outputs(system, answer(system))
    guard.check()
    send("answered", batch_size=settings.batch_size)
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
    # For the life of this process, which ends with its launch.
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
        send("measured", arms=[each.to_dict() for each in _by_variant(arms, copied(settings.split))])


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
            send("progress", calls=served)
            say_s = now_s + _SAY_EVERY_S
