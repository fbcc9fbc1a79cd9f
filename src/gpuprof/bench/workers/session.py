# SPDX-License-Identifier: Apache-2.0
"""A benchmark of one system over its batch sizes: its process runs, and what each of them measured.

What was measured is kept, whatever comes later: a failure or an interrupt ends the session, not its results.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import Failure, FailureCode, failure_of, reason_of
from gpuprof.bench.frameworks.protocol import System, SystemDescription
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measurement import Measurement, StoppedBy
from gpuprof.bench.measure.memory import name_budget
from gpuprof.bench.measure.startup import Startup, startup_of
from gpuprof.bench.results.result import Launch, Result
from gpuprof.bench.serialization import from_plain
from gpuprof.bench.workers.events import Described, Event, Found, MeasurementDone, Samples, State
from gpuprof.bench.workers.job import FactorySpec, Job, JobSettings, MeasureJob
from gpuprof.bench.workers.samples import SamplesSoFar
from gpuprof.bench.workers.schedule import INTERRUPTED, TIME_LIMIT_S, Schedule, Watcher, ignore, without_ends
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.stats.distributions import require_scipy
from gpuprof.text.units import format_duration


@dataclass(slots=True, repr=False)
class BatchResult:
    """What was measured of one batch size, in all process runs."""

    batch_size: int
    description: SystemDescription
    settings: JobSettings
    environment: dict[str, Any]
    launches: list[Launch] = field(default_factory=list)
    in_process: bool = False

    def __repr__(self) -> str:
        """Return it on one line: the samples alone fill pages."""
        result = self.result
        median = result.quantile(0.5)
        time = "insufficient" if median is None else format_duration(median * 1e9)
        counts = f"{len(self.launches)} launches, {len(result.samples):,} samples"
        return f"<BatchResult {result.name}: {counts}, median {time}>"

    @property
    def result(self) -> Result:
        """The figures, with the samples of each launch."""
        return Result(
            name=f"{self.description.model} ({self.description.framework}), batch size {self.batch_size}",
            description=dataclasses.asdict(self.description),
            settings=self.settings.measuring,
            launches=tuple(self.launches),
            environment=self.environment,
            in_process=self.in_process,
            batch_size=self.batch_size,
        )

    def tokens_per_s(self, samples_per_s: float | None) -> float | None:
        """Tokens per second of a sequence model, None for others."""
        tokens = self.description.details.get("tokens_per_sample")
        return None if tokens is None or samples_per_s is None else samples_per_s * int(tokens)

    def largest(self, group: str, name: str) -> Any:
        """Return the largest value of a figure over the launches; None where none of them tells."""
        found = [(launch.extra.get(group) or {}).get(name) for launch in self.launches]
        return max((value for value in found if value is not None), default=None)

    @property
    def host_peak(self) -> tuple[int | None, bool]:
        """The host's peak, and whether a larger batch came before it in the same process.

        That one may hold on to memory, so launches in which none came before go first.
        """
        read = [(launch.extra.get("memory") or {}).get("host_resident_bytes") for launch in self.launches]
        tainted = [bool(launch.extra.get("after_larger")) for launch in self.launches]
        clean = [each for each, is_so in zip(read, tainted, strict=True) if each is not None and not is_so]
        if clean:
            return max(clean), False
        return min((each for each in read if each is not None), default=None), True

    @property
    def enqueue_s(self) -> float | None:
        """The median time until a call had returned; None where that is all of it."""
        return _median(each.enqueue_s for each in self.result.measurements)

    @property
    def device_s(self) -> float | None:
        """The median time that the device itself worked for a call; None where it does not tell."""
        told = (launch.extra.get("device_time_s") for launch in self.launches)
        return _median(statistics.median(each) for each in told if each)

    def middle(self, *path: str) -> float | None:
        """Return the median over the launches of what each told once; None where none did."""
        return _median(_at(launch.extra, path) for launch in self.launches)


def _median(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return statistics.median(told) if told else None


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = None if values is None else values.get(name)
    return values


@dataclass(slots=True)
class SessionResult:
    """The batch sizes that were measured, the start-up of each launch, and what ended the session early."""

    spec: SystemSpec
    settings: JobSettings
    batches: list[BatchResult] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    failure: GpuprofError | None = None
    profile: str | None = None

    def batch(self, batch_size: int) -> BatchResult | None:
        """Return what was measured of a batch size."""
        return next((each for each in self.batches if each.batch_size == batch_size), None)


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
        self._so_far = SamplesSoFar()

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
            measure_system(make(), spec.model, settings, lambda event: self.take(1, event))
            failure = None
        except GpuprofError as error:
            failure = failure_of(error)
        except Exception as error:
            # What the caller's own iterable and model raise: others that are to be measured go on.
            failure = Failure(FailureCode.FAILED, f"{spec.model}: {reason_of(error)}")
        finally:
            self.end(1, failure)
        return self.result

    # --- a subject of a schedule ---

    def job(self, number: int) -> Job | None:
        """Return what a process run measures: back and forth over the batch sizes that have not failed."""
        # What fails before its first batch says nothing of the last one of the process run before.
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
            self._so_far.take(event)
        elif isinstance(event, MeasurementDone):
            self._so_far = SamplesSoFar()
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
            self._failures[number] = failure_of(error)
            self._failed.add(self._batch_size)
        stopped_by: StoppedBy = "interrupted" if is_interrupt else "failure"
        measurement = self._so_far.measurement(self.result.settings.measuring, str(error), stopped_by)
        self._so_far = SamplesSoFar()
        if measurement is not None:
            self._file(number, self._batch_size, measurement, {})

    def _good_sizes(self) -> tuple[int, ...]:
        return tuple(size for each in self.result.batches if (size := each.batch_size) not in self._failed)

    def _refuse_another_machine(self, described: SystemDescription) -> None:
        """Raise BenchmarkError for a process run on another device, as where `auto` finds the GPU gone."""
        first = self.result.batches[0].description if self.result.batches else described
        for what in ("device", "dtype", "framework"):
            now, before = getattr(described, what), getattr(first, what)
            if now != before:
                self._batch_size = 0  # which says nothing against it
                raise BenchmarkError(
                    f"{self.result.spec.model}: this process run had {what} {now}, and those before "
                    f"{before}: name the {what}, or measure all of it again"
                )

    def _file(self, number: int, batch_size: int, measurement: Measurement, extra: Mapping[str, Any]) -> None:
        if not len(measurement.wall_ns):
            return
        assert self._description is not None
        found = self.result.batch(batch_size)
        if found is None:
            settings = self.result.settings
            found = BatchResult(
                batch_size, self._description, settings, self._environment, in_process=self._in_process
            )
            self.result.batches.append(found)
        found.launches.append(Launch(number, measurement, measurement.failure, extra))

    # --- what a journal keeps ---

    def failure(self, number: int) -> Failure | None:
        """Return why a process run failed; None where it did not."""
        return self._failures.get(number)

    def record(self, number: int) -> dict[str, Any]:
        """Return what a process run left, as plain data that `restore` takes."""
        startup, failure = self._startups.get(number), self._failures.get(number)
        return {
            "launch": number,
            "failure": None if failure is None else str(failure),
            "startup": None if startup is None else startup.to_dict(),
            "batches": [
                {
                    "batch_size": batch.batch_size,
                    "description": dataclasses.asdict(batch.description),
                    "environment": batch.environment,
                    "launch": found.to_dict(),
                }
                for batch in self.result.batches
                for found in batch.launches
                if found.position == number
            ],
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """File what `record` returned of a process run. Raises BenchmarkError for what lacks something."""
        if record["startup"] is not None:
            startup = from_plain(record["startup"], Startup)
            self._startups[record["launch"]] = startup
            self.result.startups.append(startup)
        for each in record["batches"]:
            self._description = from_plain(each["description"], SystemDescription)
            self._environment = each["environment"]
            launch = Launch.from_dict(each["launch"])
            assert launch.measurement is not None
            self._file(record["launch"], each["batch_size"], launch.measurement, launch.extra)
