# SPDX-License-Identifier: Apache-2.0
"""What one launch does, inside its process: load, then for each batch size prepare, answer, check, measure.

The events it sends, in order: `imported`, `loaded`, then for each batch size `preparing`, `prepared`,
`answered`, now and then `warming`, then `progress` and `samples`, at their end `sampled`, and `measured`.
Times are of the monotonic clock.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.analyze.text_table import format_bytes
from gpuprof.bench.config import Settings, SystemSpec
from gpuprof.bench.failures import DoesNotFitError, reason_of, tells_of_memory
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.frameworks.protocol import MemoryReading
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.measure.checks import InputGuard, answer, check_outputs
from gpuprof.bench.measure.energy import measure_energy
from gpuprof.bench.measure.host import UsageMeter, describe_environment
from gpuprof.bench.measure.measure import measure
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.measure.memory import bytes_as_asked, memory_failures
from gpuprof.bench.models.importing import find_named
from gpuprof.bench.workers.samples import SampleSender, Send
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording import Recording
from gpuprof.record.recording_folder import create_folder
from gpuprof.run.writer import close_run

PROGRESS_EVERY_S = 0.2
_DEVICE_CALLS, _DEVICE_S = 100, 1.0


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What one launch does with its system, batch size after batch size.

    `memory_budget_bytes` is the most that a batch may take, None for what the machine has. `profile` is the
    folder of a run to record instead of measuring, `profile_work` whether its FLOPs and bytes are counted.
    """

    batch_sizes: tuple[int, ...] = (1,)
    measuring: Settings = field(default_factory=Settings)
    memory_budget_bytes: int | None = None
    profile: str | None = None
    profile_work: bool = False
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
        for position, batch_size in enumerate(settings.batch_sizes):
            # What a larger batch took may still be held when a smaller one is measured.
            after_larger = max(settings.batch_sizes[: position + 1]) > batch_size
            extra = {"load_s": load_s, "after_larger": after_larger}
            _Batch(system, settings, send, extra).run(batch_size)
        if settings.profile is not None:
            _profile(system, settings, send)
    finally:
        system.close()


class _Batch:
    """One batch size of a loaded system."""

    def __init__(
        self, system: FrameworkSystem, settings: JobSettings, send: Send, extra: Mapping[str, Any]
    ) -> None:
        self._system = system
        self._settings = settings
        self._send = send
        self._extra = dict(extra)
        self._early_memory: MemoryReading | None = None
        self._said_s = 0.0
        self._calls = 0

    def run(self, batch_size: int) -> None:
        """Measure it. What runs out of memory, looking at inputs and outputs too, is DoesNotFitError."""
        with memory_failures(batch_size):
            guard = self._answer(batch_size)
            if not (self._settings.only_first_answer or self._settings.profile is not None):
                self._measured(batch_size)
                guard.check()

    def _answer(self, batch_size: int) -> InputGuard:
        """Prepare, make the first call and look at what it gave; returns what watches over the inputs."""
        system, send = self._system, self._send
        send("preparing", batch_size=batch_size)
        begin_s = time.monotonic()
        system.prepare(batch_size)
        self._extra["prepare_s"] = time.monotonic() - begin_s
        send("prepared", batch_size=batch_size)
        guard = InputGuard(system)
        system.reset_peak()
        begin_s = time.monotonic()
        outputs = answer(system)
        self._extra["first_call_s"] = time.monotonic() - begin_s
        self._extra["compile_s"] = system.compile_s
        send("answered", batch_size=batch_size, description=dataclasses.asdict(system.describe()))
        self._first_memory = system.memory()
        self._check_budget(self._first_memory)
        check_outputs(system, outputs)
        guard.check()
        return guard

    def _measured(self, batch_size: int) -> None:
        system = self._system
        measurement = self._measure(batch_size)
        extra = self._extra
        self._send("measured", batch_size=batch_size, measurement=measurement.to_dict(), extra=extra)
        if measurement.stopped_by == "interrupted":
            raise KeyboardInterrupt
        if measurement.failure is not None:
            kind = DoesNotFitError if tells_of_memory(measurement.failure) else BenchmarkError
            raise kind(f"{system.source.text}, batch size {batch_size}: {measurement.failure}")

    def _measure(self, batch_size: int) -> Measurement:
        system = self._system
        system.reset_peak()  # looking at inputs and outputs took memory that the model does not
        meter = UsageMeter()
        sender = SampleSender(self._send, batch_size=batch_size)

        def progress(wall_ns: list[int], enqueue_ns: list[int] | None, calls: int) -> None:
            # Before the samples that are kept here fill memory themselves.
            self._early_memory = self._early_memory or system.memory()
            self._tell_progress(wall_ns, calls)
            sender.progress(wall_ns, enqueue_ns, calls)

        measurement = measure(system, self._settings.measuring, progress=progress, warming=self._tell_warming)
        usage, memory = meter.read(), self._memory()
        is_whole = measurement.stopped_by not in ("failure", "interrupted")
        self._send("sampled", batch_size=batch_size)
        energy = measure_energy(self._call) if system.device_type == "cuda" and is_whole else None
        self._extra |= {
            "memory": dataclasses.asdict(memory),
            "usage": dataclasses.asdict(usage),
            "energy": None if energy is None else dataclasses.asdict(energy),
            "device_time_s": self._device_times() if is_whole else None,
        }
        return measurement

    def _memory(self) -> MemoryReading:
        """Return the readings; of the host that of the first call where its peak cannot begin anew."""
        memory = self._system.memory()
        host = (self._early_memory or memory).host_resident_bytes or self._first_memory.host_resident_bytes
        return dataclasses.replace(memory, host_resident_bytes=host)

    def _device_times(self) -> list[float] | None:
        """Return what the device itself needed for some calls more; None where it does not tell."""
        found: list[float] = []
        end_s = time.monotonic() + _DEVICE_S
        while len(found) < _DEVICE_CALLS and time.monotonic() < end_s:
            seconds = self._system.call_on_device_s()
            if seconds is None:
                return None
            found.append(seconds)
        return found

    def _call(self) -> int:
        self._system.run()
        self._system.synchronize()
        return self._system.batch_size

    def _tell_warming(self, calls: int) -> None:
        self._tell("warming", calls=calls)

    def _tell_progress(self, wall_ns: list[int], calls: int) -> None:
        self._calls += len(wall_ns) * calls
        self._tell("progress", calls=self._calls, latest_ms=wall_ns[-1] / (1e6 * calls) if wall_ns else None)

    def _tell(self, event: str, **values: Any) -> None:
        now = time.monotonic()
        if now - self._said_s >= PROGRESS_EVERY_S:
            self._said_s = now
            self._send(event, batch_size=self._system.batch_size, **values)

    def _check_budget(self, memory: MemoryReading) -> None:
        """Hold what the batch took against the budget, for frameworks that cannot be limited beforehand."""
        budget = self._settings.memory_budget_bytes
        on_host = self._system.device_type == "cpu"
        taken = memory.host_resident_bytes if on_host else memory.allocator_peak_bytes
        if budget is not None and taken is not None and taken > budget:
            raise DoesNotFitError(
                f"batch size {self._system.batch_size} takes {format_bytes(taken)}, more than "
                f"--memory-budget {bytes_as_asked(budget)}: take smaller --batch-sizes"
            )


def _profile(system: FrameworkSystem, settings: JobSettings, send: Send) -> None:
    """Record some calls of the last batch size as a run, in a process that measures nothing."""
    assert settings.profile is not None
    record_run(system, Path(settings.profile), work=settings.profile_work)
    send("profiled", path=settings.profile)


# A difference is judged of eight repetitions and more; a slow model has fewer.
FEWEST_CALLS, MOST_CALLS = 5, 40
LONGEST_S = 3.0
CALL = "call"  # the span around each


def record_run(system: FrameworkSystem, path: Path, calls: int | None = None, *, work: bool = False) -> None:
    """Record calls of the prepared batch as the run `path`, as many as LONGEST_S holds where not told.

    `work` counts what the first call computes, where it is a module's. Raises RecordingError and RunError.
    """
    create_folder(path)
    modules = _modules(system)
    recording = Recording(path, RecordingOptions(work=work and bool(modules)), modules=modules)
    try:
        recording.start()
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    try:
        begin_s, done = time.perf_counter(), 0
        while _goes_on(calls, done, time.perf_counter() - begin_s):
            with _native.span(CALL):
                system.run()
                system.synchronize()
            done += 1
    finally:
        recording.stop()
    close_run(path)


def _goes_on(calls: int | None, done: int, elapsed_s: float) -> bool:
    if calls is not None:
        return done < calls
    return done < FEWEST_CALLS or (done < MOST_CALLS and elapsed_s < LONGEST_S)


def _modules(system: FrameworkSystem) -> tuple[object, ...]:
    import sys

    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(system.model, torch.nn.Module)
    return (system.model,) if is_module else ()


def make_callable(target: str, inputs: str | None, name: str | None) -> CallableSystem:
    """Return the system of a named function, whose inputs another named function makes."""
    made = None if inputs is None else find_named(inputs)
    return CallableSystem(find_named(target), made, name=name)


def run_plan(plan: Mapping[str, Any], send: Send) -> None:
    """Make the system of a plan and measure it, in a process that is a launch; raises GpuprofError."""
    sys.path[:] = plan["path"]
    try:
        _measure(plan, send)
    except GpuprofError:
        raise
    except Exception as error:
        raise BenchmarkError(reason_of(error)) from error


def _measure(plan: Mapping[str, Any], send: Send) -> None:
    factory = find_named(plan["factory"])
    began = time.perf_counter()
    system = factory(**plan["arguments"])
    send("imported")
    system.load()
    loaded = time.perf_counter()
    send("loaded")
    system.prepare(plan["batch_size"] or 1)
    prepared = time.perf_counter()
    extra: dict[str, Any] = {
        "load_s": loaded - began,
        "prepare_s": prepared - loaded,
        "process_id": os.getpid(),
    }
    send("ready", extra=extra, description=asdict(system.describe()), environment=describe_environment())
    measured = measure(system, Settings.from_dict(plan["settings"]), progress=SampleSender(send).progress)
    extra["memory"] = asdict(system.memory())
    send("measured", measurement=measured.to_dict(), extra=extra)
    system.close()
