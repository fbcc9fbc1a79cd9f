# SPDX-License-Identifier: Apache-2.0
"""Measuring a system in its process: load, then for each batch size prepare, infer once, check, measure."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.failures import (
    SMALLER_BATCHES,
    DoesNotFitError,
    FailedRunError,
    is_out_of_memory,
    reason_of,
)
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.frameworks.protocol import MemoryReading, System
from gpuprof.bench.measure.callable import CallableSystem, callable_system
from gpuprof.bench.measure.host import read_state, usage_between
from gpuprof.bench.measure.measure import MeasuringLoop
from gpuprof.bench.measure.measurement import ENDED_EARLY, Measurement
from gpuprof.bench.measure.memory import memory_failures
from gpuprof.bench.measure.outputs import InputGuard, check_outputs
from gpuprof.bench.measure.resources import ResourceMonitor
from gpuprof.bench.models.importing import find_named
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.workers.events import Described, Event, Found, MeasurementDone, Samples, Send, State
from gpuprof.bench.workers.job import CALL, FactorySpec, MeasureJob
from gpuprof.errors import GpuprofError
from gpuprof.text.units import format_bytes

if TYPE_CHECKING:
    from gpuprof.bench.workers.replicas import Replicas

PROGRESS_EVERY_S = 0.2
SEND_EVERY_S = 1.0
_DEVICE_CALLS, _DEVICE_S = 100, 1.0


def run_measure_job(job: MeasureJob, send: Send) -> None:
    """Do a job in a process of its own. Raises GpuprofError."""
    system = make_system(job.spec) if job.factory is None else _made(job.factory)
    with contextlib.nullcontext() if job.factory is None else _raising_failures():
        measure_system(system, job.spec, job.settings, send, owns_process=True)


def make_callable(target: str, inputs: str | None, name: str | None, stream: bool = False) -> CallableSystem:
    """Return the system of a named function, whose inputs another named function makes."""
    made = None if inputs is None else find_named(inputs)
    made = made() if stream and callable(made) else made
    return callable_system(find_named(target), made, name, stream=stream)


def _made(factory: FactorySpec) -> System:
    sys.path[:] = factory.path or sys.path
    with _raising_failures():
        system: System = find_named(factory.factory)(**factory.arguments)
    return system


@contextlib.contextmanager
def _raising_failures() -> Iterator[None]:
    """Turn what the user's own system raises into one line."""
    try:
        yield
    except GpuprofError:
        raise
    except Exception as error:
        raise FailedRunError(reason_of(error), hint="call it once yourself to see why") from error


def load_system(system: System, send: Send) -> float:
    """Import the framework and load the model; returns the seconds of loading."""
    system.import_framework()
    send(Event(State.IMPORTED))
    begin_s = time.monotonic()
    system.load()
    send(Event(State.LOADED))
    return time.monotonic() - begin_s


def prepare_system(system: System, batch_size: int, send: Send) -> None:
    """Make the inputs of a batch and compile for it."""
    send(Event(State.PREPARING, batch_size=batch_size))
    system.prepare(batch_size)
    send(Event(State.PREPARED, batch_size=batch_size))


def measure_system(
    system: System, spec: SystemSpec, settings: JobSettings, send: Send, *, owns_process: bool = False
) -> None:
    """Load a system and measure each batch size. Only a process of its own has its memory limited."""
    try:
        load_s = load_system(system, send)
        if owns_process:
            system.limit_memory(settings.memory_budget_bytes)
        for position, batch_size in enumerate(settings.batch_sizes):
            # What a larger batch took may still be held when a smaller one is measured.
            after_larger = max(settings.batch_sizes[: position + 1]) > batch_size
            extra = {"process_id": os.getpid(), "load_s": load_s, "after_larger": after_larger}
            _Batch(system, spec, settings, send, extra).run(batch_size)
        if settings.profile is not None:
            record_run(system, Path(settings.profile), work=settings.profile_work)
            send(Found(value=settings.profile))
    finally:
        system.close()


class _Batch:
    """One batch size of a loaded system. A callable is called for its measurement and for nothing else."""

    def __init__(
        self, system: System, spec: SystemSpec, settings: JobSettings, send: Send, extra: dict[str, Any]
    ) -> None:
        self._system, self._spec, self._model, self._settings = system, spec, spec.model, settings
        self._framework = system if isinstance(system, FrameworkSystem) else None
        self._send = send
        self._extra = extra
        self._first_memory = MemoryReading()
        self._early_memory: MemoryReading | None = None
        self._next_report_s = 0.0
        self._calls = 0
        self._size = 0

    def run(self, batch_size: int) -> None:
        """Measure it. What runs out of memory, reading inputs and outputs too, is DoesNotFitError."""
        self._size = batch_size
        with memory_failures(batch_size):
            self._prepare()
            guard = None if self._framework is None else self._infer_once(self._framework)
            if guard is None:
                self._describe()
            if not (self._settings.only_first_answer or self._settings.profile is not None):
                self._measure()
                if guard is not None and not self._settings.measuring.stream:
                    guard.check()

    def _prepare(self) -> None:
        begin_s = time.monotonic()
        prepare_system(self._system, self._size, self._send)
        self._extra["prepare_s"] = time.monotonic() - begin_s

    def _infer_once(self, system: FrameworkSystem) -> InputGuard:
        """Make the first call and check what it returns; returns what checks the inputs later."""
        guard = InputGuard(system)
        system.reset_peak()
        begin_s = time.monotonic()
        outputs = system.first_inference()
        self._extra |= {"first_call_s": time.monotonic() - begin_s, "compile_s": system.compile_s}
        self._describe()
        self._first_memory = system.memory()
        self._check_budget(system)
        check_outputs(system, outputs)
        guard.check()
        return guard

    def _describe(self) -> None:
        torch = sys.modules.get("torch")
        threads = None if torch is None else torch.get_num_threads()
        described = self._system.describe()
        self._send(Described(batch_size=self._size, description=described, threads=threads))

    def _measure(self) -> None:
        """Measure and send it; what a call raised is raised again, after its samples."""
        system = self._system
        system.reset_peak()  # reading inputs and outputs took memory that the model does not
        sender = SampleSender(self._send, self._size)

        def progress(wall_ns: list[int], enqueue_ns: list[int] | None, calls: int) -> None:
            # Before the samples that are kept here fill memory themselves.
            self._early_memory = self._early_memory or system.memory()
            self._calls += len(wall_ns) * calls
            self._report_seldom(State.MEASURING, self._calls)
            sender.progress(wall_ns, enqueue_ns, calls)
            monitor.read_early()

        monitor = ResourceMonitor(devices=self._system.describe().device_type == "cuda")
        loop = MeasuringLoop(
            system,
            self._settings.measuring,
            progress=progress,
            warming=lambda calls: self._report_seldom(State.WARMING, calls),
        )
        with self._other_replicas() as replicas, monitor:
            before = read_state()
            measurement = loop.run()
            if replicas is not None:
                self._extra["replicas"] = to_plain(replicas.counted())
        self._extra |= {
            "usage": to_plain(usage_between(before, read_state())),
            "memory": to_plain(self._memory()),
            "series": to_plain(monitor.resources(loop.began_ns / 1e9)),
        }
        self._report(State.SAMPLED)
        if self._framework is not None:
            self._extra |= self._on_device(self._framework, measurement)
        self._send(MeasurementDone(batch_size=self._size, measurement=measurement, extra=self._extra))
        if measurement.stopped_by == "interrupted":
            raise KeyboardInterrupt
        if loop.error is not None:
            failure = measurement.failure
            assert failure is not None
            size = "" if self._framework is None else f", batch size {self._size}"
            message = f"{self._model}{size}: {failure.message}"
            if is_out_of_memory(loop.error):
                raise DoesNotFitError(message, hint=SMALLER_BATCHES) from loop.error
            raise FailedRunError(message, hint=failure.hint) from loop.error

    def _other_replicas(self) -> contextlib.AbstractContextManager[Replicas | None]:
        """Return the processes that call the model too, which are started when the block is entered."""
        if self._spec.replicas == 1:
            return contextlib.nullcontext()
        from gpuprof.bench.workers.replicas import Replicas

        return Replicas(self._spec, self._size)

    def _memory(self) -> MemoryReading:
        """Return the readings; of the host that of the first call where its peak cannot be reset."""
        memory = self._system.memory()
        early = self._early_memory or memory
        return dataclasses.replace(
            memory,
            host_resident_bytes=early.host_resident_bytes or self._first_memory.host_resident_bytes,
            host_calls_bytes=early.host_calls_bytes,
            host_own_bytes=early.host_own_bytes,
        )

    def _on_device(self, system: FrameworkSystem, measurement: Measurement) -> dict[str, Any]:
        """Return the energy of more calls, and the device's time for them; None where unavailable."""
        # The energy is that of all replicas, and alone the device is faster.
        if measurement.stopped_by in ENDED_EARLY or "replicas" in self._extra:
            return {"energy": None, "device_time_s": None}
        energy = None
        if system.device_type == "cuda":
            from gpuprof.bench.measure.energy import measure_energy

            energy = to_plain(measure_energy(self._call))
        return {"energy": energy, "device_time_s": _device_times(system)}

    def _call(self) -> int:
        self._system.run()
        self._system.synchronize()
        return self._size

    def _report(self, state: State) -> None:
        self._send(Event(state, batch_size=self._size))

    def _report_seldom(self, state: State, calls: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + PROGRESS_EVERY_S
            self._send(Event(state, batch_size=self._size, calls=calls))

    def _check_budget(self, system: FrameworkSystem) -> None:
        """Compare the model's own memory with the budget: on the host its parameters and what calls add."""
        budget = self._settings.memory_budget_bytes
        taken = _own_bytes(system, self._first_memory)
        if budget is None or taken is None or taken <= budget:
            return
        # The first call of a process allocates what the framework keeps for all models.
        system.reset_peak()
        system.first_inference()
        taken = _own_bytes(system, system.memory())
        if taken is not None and taken > budget:
            message = f"batch size {self._size} takes {format_bytes(taken)}, more than the memory budget"
            raise DoesNotFitError(message, hint=SMALLER_BATCHES)


def _own_bytes(system: FrameworkSystem, memory: MemoryReading) -> int | None:
    return memory.host_own_bytes if system.device_type == "cpu" else memory.allocator_peak_bytes


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


def _device_times(system: FrameworkSystem) -> list[float] | None:
    """Return the seconds that the device itself worked for some more calls; None where unavailable."""
    found: list[float] = []
    end_s = time.monotonic() + _DEVICE_S
    while len(found) < _DEVICE_CALLS and time.monotonic() < end_s:
        seconds = system.call_on_device_s()
        if seconds is None:
            return None
        found.append(seconds)
    return found


# --- recording -----------------------------------------------------------------------------------

# A difference is judged of eight repetitions and more; a slow model has fewer.
FEWEST_CALLS, MOST_CALLS = 5, 40
LONGEST_S = 3.0


def record_run(system: System, path: Path, *, work: bool = False) -> None:
    """Record calls of the prepared batch as the run `path`, as many as LONGEST_S holds.

    `work` counts what the first call computes, where it is a module's. Raises RecordingError and RunError.
    """
    from gpuprof.record.options import RecordingOptions
    from gpuprof.record.recording import Recording
    from gpuprof.record.recording_folder import create_folder
    from gpuprof.run.writer import close_run

    create_folder(path)
    modules = _modules(system)
    recording = Recording(path, RecordingOptions(work=work and bool(modules)), modules=modules)
    try:
        recording.start()
    except BaseException:
        import shutil

        shutil.rmtree(path, ignore_errors=True)
        raise
    try:
        begin_s, done = time.perf_counter(), 0
        while _continues(done, time.perf_counter() - begin_s):
            with _native.span(CALL):
                system.run()
                system.synchronize()
            done += 1
    finally:
        recording.stop()
    close_run(path)


def _continues(done: int, elapsed_s: float) -> bool:
    return done < FEWEST_CALLS or (done < MOST_CALLS and elapsed_s < LONGEST_S)


def _modules(system: System) -> tuple[object, ...]:
    torch, model = sys.modules.get("torch"), getattr(system, "model", None)
    return (model,) if torch is not None and isinstance(model, torch.nn.Module) else ()
