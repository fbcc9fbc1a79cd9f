# SPDX-License-Identifier: Apache-2.0
"""What one launch does, inside its process: load, then for each batch size prepare, answer, check, measure.

The events it sends, in order: `imported`, `loaded`, then for each batch size `preparing`, `prepared`,
`answered`, `progress` now and then, and `measured`. Times are of the monotonic clock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpuprof.analyze.text_table import format_bytes
from gpuprof.bench.checks import InputGuard, answer, check_outputs
from gpuprof.bench.energy import measure_energy
from gpuprof.bench.failures import DoesNotFitError
from gpuprof.bench.measure import measure
from gpuprof.bench.measurement import Measurement
from gpuprof.bench.memory import memory_failures
from gpuprof.bench.settings import Settings
from gpuprof.bench.spec import SystemSpec
from gpuprof.bench.system import MemoryReading
from gpuprof.bench.systems import make_system
from gpuprof.bench.systems.common import FrameworkSystem
from gpuprof.bench.usage import UsageMeter
from gpuprof.errors import BenchmarkError

PROGRESS_EVERY_S = 0.2


class Send(Protocol):
    """Where events go."""

    def __call__(self, event: str, **values: Any) -> None:
        """Take one event."""
        ...


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What one launch does with its system, batch size after batch size.

    `memory_budget_bytes` is the most that a batch may take, None for what the machine has. `profile` is the
    folder of a run to record instead of measuring.
    """

    batch_sizes: tuple[int, ...] = (1,)
    measuring: Settings = field(default_factory=Settings)
    memory_budget_bytes: int | None = None
    profile: str | None = None
    only_first_answer: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**dataclasses.asdict(self), "measuring": self.measuring.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JobSettings:
        """Return what `to_dict()` described."""
        sizes, measuring = tuple(values["batch_sizes"]), Settings.from_dict(values["measuring"])
        return cls(**{**values, "batch_sizes": sizes, "measuring": measuring})


def run_job(values: Mapping[str, Any], send: Send) -> None:
    """Do what a spec and settings say, in a process that is a launch; raises GpuprofError."""
    settings = JobSettings.from_dict(values["settings"])
    system = make_system(SystemSpec.from_dict(values["spec"]))
    system.import_framework()
    send("imported")
    measure_system(system, settings, send, owns_process=True)


def measure_system(
    system: FrameworkSystem, settings: JobSettings, send: Send, *, owns_process: bool = False
) -> None:
    """Load a system and measure each batch size. Only a process of its own has its memory limited."""
    try:
        begin_s = time.monotonic()
        system.load()
        load_s = time.monotonic() - begin_s
        limited = system.limit_memory(settings.memory_budget_bytes) if owns_process else None
        send("loaded", memory_limit_bytes=limited)
        for batch_size in settings.batch_sizes:
            _Batch(system, settings, send, load_s).run(batch_size)
        if settings.profile is not None:
            _profile(system, Path(settings.profile), send)
    finally:
        system.close()


class _Batch:
    """One batch size of a loaded system."""

    def __init__(self, system: FrameworkSystem, settings: JobSettings, send: Send, load_s: float) -> None:
        self._system = system
        self._settings = settings
        self._send = send
        self._load_s = load_s
        self._said_s = 0.0
        self._calls = 0

    def run(self, batch_size: int) -> None:
        """Measure it. What runs out of memory, looking at inputs and outputs too, is DoesNotFitError."""
        with memory_failures(batch_size):
            self._run(batch_size)

    def _run(self, batch_size: int) -> None:
        system, send = self._system, self._send
        send("preparing", batch_size=batch_size)
        begin_s = time.monotonic()
        system.prepare(batch_size)
        prepare_s = time.monotonic() - begin_s
        send("prepared", batch_size=batch_size)
        guard = InputGuard(system)
        system.reset_peak()
        begin_s = time.monotonic()
        outputs = answer(system)
        first_call_s = time.monotonic() - begin_s
        send("answered", batch_size=batch_size, description=dataclasses.asdict(system.describe()))
        self._check_budget(system.memory())
        check_outputs(system, outputs)
        guard.check()
        del outputs
        if self._settings.only_first_answer or self._settings.profile is not None:
            return
        measurement, extra = self._measure()
        extra |= {"load_s": self._load_s, "prepare_s": prepare_s, "first_call_s": first_call_s}
        extra["compile_s"] = system.compile_s
        send("measured", batch_size=batch_size, measurement=measurement.to_dict(), extra=extra)
        if measurement.stopped_by == "interrupted":
            raise KeyboardInterrupt
        if measurement.failure is not None:
            raise BenchmarkError(f"{system.source.text}, batch size {batch_size}: {measurement.failure}")
        guard.check()

    def _measure(self) -> tuple[Measurement, dict[str, Any]]:
        system = self._system
        system.reset_peak()  # looking at inputs and outputs took memory that the model does not
        meter = UsageMeter()
        measurement = measure(system, self._settings.measuring, progress=self._progress)
        usage, memory = meter.read(), system.memory()
        is_whole = measurement.stopped_by not in ("failure", "interrupted")
        energy = measure_energy(self._call) if system.device_type == "cuda" and is_whole else None
        return measurement, {
            "memory": dataclasses.asdict(memory),
            "usage": dataclasses.asdict(usage),
            "energy": None if energy is None else dataclasses.asdict(energy),
        }

    def _call(self) -> int:
        self._system.run()
        self._system.synchronize()
        return self._system.batch_size

    def _progress(self, wall_ns: list[int], _enqueue_ns: list[int] | None, calls: int) -> None:
        self._calls += len(wall_ns) * calls
        now = time.monotonic()
        if now - self._said_s >= PROGRESS_EVERY_S:
            self._said_s = now
            latest_ms = wall_ns[-1] / (1e6 * calls) if wall_ns else None
            batch_size = self._system.batch_size
            self._send("progress", batch_size=batch_size, calls=self._calls, latest_ms=latest_ms)

    def _check_budget(self, memory: MemoryReading) -> None:
        """Hold what the batch took against the budget, for frameworks that cannot be limited beforehand."""
        budget = self._settings.memory_budget_bytes
        on_host = self._system.device_type == "cpu"
        taken = memory.host_resident_bytes if on_host else memory.allocator_peak_bytes
        if budget is not None and taken is not None and taken > budget:
            raise DoesNotFitError(
                f"batch size {self._system.batch_size} takes {format_bytes(taken)}, more than "
                f"--memory-budget {format_bytes(budget)}: take smaller --batch-sizes"
            )


def _profile(system: FrameworkSystem, path: Path, send: Send) -> None:
    """Record some calls of the last batch size as a run, in a process that measures nothing."""
    from gpuprof.bench.profile_run import record_run

    record_run(system, path)
    send("profiled", path=str(path))
