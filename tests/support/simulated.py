# SPDX-License-Identifier: Apache-2.0
"""Systems whose calls take exactly known times, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from gpuprof.bench.config import Settings
from gpuprof.bench.frameworks.protocol import MemoryReading, SystemDescription
from gpuprof.bench.measure.diagnostics import MACHINE_WARNINGS, warnings_of
from gpuprof.bench.measure.measure import measure
from gpuprof.bench.measure.measurement import Measurement

MS = 1_000_000


class FakeClock:
    """Nanoseconds that pass only when a test lets them pass."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class SimulatedSystem:
    """Call i takes `duration_ns(i)`: `enqueue_share` of it until run() returns, the rest to wait for."""

    def __init__(
        self,
        clock: FakeClock,
        duration_ns: Callable[[int], float],
        *,
        enqueue_share: float = 0.25,
        device_type: str = "cpu",
    ) -> None:
        self.clock = clock
        self.calls = 0
        self.synchronized = 0
        self._numbers = count()
        self._duration_ns = duration_ns
        self._share = enqueue_share
        self._device_type = device_type
        self._waiting_ns = 0

    def describe(self) -> SystemDescription:
        return SystemDescription("simulated", "spin", "none", self._device_type, "float32")

    def load(self) -> None: ...

    def prepare(self, batch_size: int) -> None: ...

    def run(self) -> object:
        duration = round(self._duration_ns(next(self._numbers)))
        enqueue = round(duration * self._share)
        self.clock.now_ns += enqueue
        self._waiting_ns += duration - enqueue
        self.calls += 1
        return 1.0

    def synchronize(self) -> None:
        self.clock.now_ns += self._waiting_ns
        self._waiting_ns = 0
        self.synchronized += 1

    def memory(self) -> MemoryReading:
        return MemoryReading()

    def close(self) -> None: ...


def measured(duration_ns: Callable[[int], float], **settings: Any) -> tuple[Measurement, SimulatedSystem]:
    clock = FakeClock()
    system = SimulatedSystem(clock, duration_ns)
    return measure(system, Settings(**settings), clock=clock), system


def flag_names(measurement: Measurement, device_type: str = "cpu") -> set[str]:
    """Return the warnings of the measurement alone, without those of the machine that runs the test."""
    machine = {*MACHINE_WARNINGS, "cpu_frequency", "timer"}
    return {each.code for each in warnings_of(measurement, device_type)} - machine
