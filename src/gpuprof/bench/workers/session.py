# SPDX-License-Identifier: Apache-2.0
"""A benchmark of one system over its batch sizes: its process runs, and what each of them measured.

What was measured is kept, whatever comes later: a failure or an interrupt ends the session, not its results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.failures import Failure, FailureCode, failure_of, reason_of
from gpuprof.bench.frameworks.protocol import System, SystemDescription
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measurement import Measurement, StoppedBy
from gpuprof.bench.measure.memory import name_budget
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.result import ProcessRunResult
from gpuprof.bench.results.session import SessionResult, Startup
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.workers.events import Described, Event, Found, MeasurementDone, Samples, State
from gpuprof.bench.workers.job import FactorySpec, Job, MeasureJob
from gpuprof.bench.workers.schedule import INTERRUPTED, TIME_LIMIT_S, Schedule, Watcher, ignore, without_ends
from gpuprof.bench.workers.startup import startup_of
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.stats.distributions import require_scipy


def measurement_so_far(
    events: Sequence[Samples], settings: Settings, failure: Failure, stopped_by: StoppedBy
) -> Measurement:
    """Return the samples that have arrived of a measurement that was cut short."""
    wall = [each for event in events for each in event.wall_ns]
    enqueue = [each for event in events for each in event.enqueue_ns or ()]
    return Measurement(
        settings=settings,
        samples_ns=np.array(wall, dtype=np.int64),
        enqueue_ns=np.array(enqueue, dtype=np.int64) if enqueue else None,
        calls_per_sample=events[-1].calls or 1 if events else 1,
        warmup=None,
        stopped_by=stopped_by,
        failure=failure,
        timer_ns=0.0,
        elapsed_s=sum(wall) / 1e9,
        machine=None,
    )


@dataclass(frozen=True, slots=True)
class _BatchRecord:
    """What a process run measured of one batch size."""

    batch_size: int
    description: SystemDescription
    environment: dict[str, Any]
    launch: ProcessRunResult


@dataclass(frozen=True, slots=True)
class _RunRecord:
    """What a process run left, as a journal keeps it."""

    launch: int
    failure: Failure | None
    startup: Startup | None
    batches: tuple[_BatchRecord, ...]


class Session:
    """Collects what process runs of one system measure; a subject of a schedule.

    `name` is what watchers and schedules call it. A process run after the first leaves out the batch sizes
    that have failed, unless they are to be tried again. With a `factory`, the system is what that makes.
    """

    def __init__(
        self,
        spec: SystemSpec,
        settings: JobSettings,
        watch: Watcher = ignore,
        *,
        name: str | None = None,
        factory: FactorySpec | None = None,
        tries_again: bool = False,
        in_process: bool = False,
    ) -> None:
        require_scipy()  # before anything is measured that could not be evaluated
        self.name = spec.model if name is None else name
        self.result = SessionResult(spec, settings)
        self._watch = watch
        self._factory = factory
        self._tries_again = tries_again
        self._in_process = in_process
        self._description: SystemDescription | None = None
        self._environment = describe_environment()
        self._batch_size = 0
        self._profile: JobSettings | None = None
        self._failed: set[int] = set()
        self._failures: dict[int, Failure] = {}
        self._startups: dict[int, Startup] = {}
        self._states: dict[State, int] = {}
        self._first_size = settings.batch_sizes[0] if settings.batch_sizes else 0
        self._samples: list[Samples] = []

    def run(self, *, runs: int = 1, time_limit_s: float = TIME_LIMIT_S, first: int = 1) -> SessionResult:
        """Measure in fresh processes, one after the other. A failure of one is in the result.

        Run again with a higher `first` it adds process runs. A profile has one of its own. An interrupt goes
        through, and `result` holds what was measured until then.
        """
        Schedule(runs, time_limit_s=time_limit_s, first=first, watch=self._watch).run([self])
        if self.result.settings.profile is not None:
            self.record_profile(self.result.settings.profile, first + runs, time_limit_s)
        return self.result

    def record_profile(
        self, folder: str, number: int, time_limit_s: float = TIME_LIMIT_S, *, work: bool = False
    ) -> None:
        """Record some calls of the last batch size that was measured, in a process run of its own."""
        sizes = self._good_sizes()
        if not sizes:
            return
        self._profile = dataclasses.replace(
            self.result.settings, batch_sizes=sizes[-1:], profile=folder, profile_work=work
        )
        try:
            watch = without_ends(self._watch)
            Schedule(time_limit_s=time_limit_s, first=number, watch=watch).run([self])
        finally:
            self._profile = None

    def run_here(self, make: Callable[[], System]) -> SessionResult:
        """Measure a system in this process. A failure is in the result, an interrupt goes through."""
        from gpuprof.bench.workers.measuring import measure_system

        failure: Failure | None = INTERRUPTED
        spec, settings = self.result.spec, self.result.settings
        try:
            measure_system(make(), spec, settings, lambda event: self.take(1, event))
            failure = None
        except GpuprofError as error:
            failure = failure_of(error)
        except Exception as error:
            # What the caller's own iterable and model raise: the others are still measured.
            failure = Failure(FailureCode.FAILED, f"{spec.model}: {reason_of(error)}")
        finally:
            self.end(1, failure)
        return self.result

    # --- a subject of a schedule ---

    def job(self, number: int) -> Job | None:
        """Return what a process run measures: back and forth over the batch sizes that have not failed."""
        # A failure before the first batch does not concern the last batch of the process run before.
        self._batch_size, self._states = 0, {}
        settings = self._profile or dataclasses.replace(self.result.settings, profile=None)
        if self._profile is None and number > 1 and not self._tries_again:
            # So that a drift of the machine affects all batch sizes alike.
            sizes = self._good_sizes()[:: -1 if number % 2 == 0 else 1]
            settings = dataclasses.replace(settings, batch_sizes=sizes)
        if not settings.batch_sizes:
            return None
        self._first_size = settings.batch_sizes[0]
        return MeasureJob(self.result.spec, settings, self._factory)

    def take(self, number: int, event: Event) -> None:
        """File one event."""
        self._states.setdefault(event.state, event.t_ns)
        if event.state is State.PREPARING:
            self._batch_size = event.batch_size or 0
        elif isinstance(event, Described):
            self._refuse_another_machine(event.description)
            self._description = event.description
            self._environment = {**self._environment, "threads": event.threads}
        elif isinstance(event, Samples):
            self._samples.append(event)
        elif isinstance(event, MeasurementDone):
            self._samples = []
            self._file(number, event.batch_size or 0, event.measurement, event.extra)
        elif isinstance(event, Found):
            self.result.profile = event.value

    def end(self, number: int, failure: Failure | None) -> None:
        """File the start-up, and of what failed or was interrupted the samples so far."""
        startup = startup_of(self._states)
        # Only those with the same batch size first are alike.
        is_alike = self._first_size == self.result.settings.batch_sizes[0]
        if startup is not None and self._profile is None and is_alike:
            self._startups[number] = startup
            self.result.startups.append(startup)
        if failure is None:
            return
        is_interrupt = failure.code is FailureCode.INTERRUPTED
        error = name_budget(failure.error(), self.result.settings.memory_budget_bytes)
        if not is_interrupt:
            self.result.failure = self.result.failure or error
            self.result.failed_runs += 1
            self._failures[number] = failure_of(error)
            self._failed.add(self._batch_size)
        stopped_by: StoppedBy = "interrupted" if is_interrupt else "failure"
        samples, self._samples = self._samples, []
        why = failure if is_interrupt else failure_of(error)
        measurement = measurement_so_far(samples, self.result.settings.measuring, why, stopped_by)
        self._file(number, self._batch_size, measurement, {})

    def _good_sizes(self) -> tuple[int, ...]:
        return tuple(size for each in self.result.batches if (size := each.batch_size) not in self._failed)

    def _refuse_another_machine(self, described: SystemDescription) -> None:
        """Raise BenchmarkError for a process run on another device, as where `auto` finds the GPU gone."""
        first = self.result.batches[0].description if self.result.batches else described
        for what in ("device", "dtype", "framework"):
            now, before = getattr(described, what), getattr(first, what)
            if now != before:
                self._batch_size = 0  # which is no evidence against it
                raise BenchmarkError(
                    "runs_differ",
                    f"{self.result.spec.model}: this process run had {what} {now}, and those before {before}",
                    hint=f"specify the {what}, or measure all of it again",
                )

    def _file(self, number: int, batch_size: int, measurement: Measurement, extra: Mapping[str, Any]) -> None:
        if not len(measurement.samples_ns):
            return
        assert self._description is not None
        found = self.result.batch(batch_size)
        if found is None:
            settings = self.result.settings
            found = BatchResult(
                batch_size, self._description, settings, self._environment, in_process=self._in_process
            )
            self.result.batches.append(found)
        found.launches.append(ProcessRunResult(number, measurement, measurement.failure, extra))

    # --- what a journal keeps ---

    def failure(self, number: int) -> Failure | None:
        """Return why a process run failed; None where it did not."""
        return self._failures.get(number)

    def record(self, number: int) -> dict[str, Any]:
        """Return what a process run left, as plain data that `restore` takes."""
        failure, startup = self._failures.get(number), self._startups.get(number)
        left = _RunRecord(number, failure, startup, tuple(self._records(number)))
        found: dict[str, Any] = to_plain(left)
        return found

    def _records(self, number: int) -> Iterator[_BatchRecord]:
        for batch in self.result.batches:
            for run in batch.launches:
                if run.position == number:
                    yield _BatchRecord(batch.batch_size, batch.description, batch.environment, run)

    def restore(self, record: Mapping[str, Any]) -> None:
        """File what `record` returned of a process run. Raises BenchmarkError for what lacks something."""
        left = from_plain(record, _RunRecord)
        if left.startup is not None:
            self._startups[left.launch] = left.startup
            self.result.startups.append(left.startup)
        for each in left.batches:
            self._description, self._environment = each.description, each.environment
            assert each.launch.measurement is not None
            self._file(left.launch, each.batch_size, each.launch.measurement, each.launch.extra)
