# SPDX-License-Identifier: Apache-2.0
"""A benchmark from the outside: launches of one system over its batch sizes, and what each of them found.

What was measured stays, whatever comes later: a failure or an interrupt ends the session and not its results.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuprof.analyze.text_table import format_duration
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import reason_of
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measurement import Measurement, StoppedBy
from gpuprof.bench.measure.memory import name_budget
from gpuprof.bench.measure.startup import Startup, startup_of
from gpuprof.bench.results.result import Launch, Result
from gpuprof.bench.workers.job import JobSettings, measure_system
from gpuprof.bench.workers.launcher import Event, run_launch
from gpuprof.bench.workers.samples import INTERRUPTED, SamplesSoFar
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.stats.distributions import require_scipy

TIME_LIMIT_S = 600.0
# Enough to hold the first answer of a launch: what comes later is no start-up.
_FIRST_EVENTS = 16


@dataclass(slots=True, repr=False)
class BatchResult:
    """What was measured of one batch size, in all launches."""

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


def _description(plain: Mapping[str, Any]) -> SystemDescription:
    shape = plain.get("input_shape")
    return SystemDescription(**{**plain, "input_shape": shape and tuple(shape)})


class Watcher(Protocol):
    """Who is told how far a session is."""

    def __call__(self, launch: int, event: Event) -> None:
        """Take one event of a launch, from 1."""
        ...


def _ignore(launch: int, event: Event) -> None:  # noqa: ARG001 - the protocol's names
    return None


class Session:
    """Takes the events of launches and files what they found."""

    def __init__(
        self, spec: SystemSpec, settings: JobSettings, watch: Watcher = _ignore, *, in_process: bool = False
    ) -> None:
        require_scipy()  # before anything is measured that could not be evaluated
        self.result = SessionResult(spec, settings)
        self._watch = watch
        self._in_process = in_process
        self._description: SystemDescription | None = None
        self._environment = describe_environment()
        self._batch_size = 0
        self._failed: set[int] = set()
        self._failures: dict[int, GpuprofError] = {}
        self._startups: dict[int, Startup] = {}
        self._so_far = SamplesSoFar()

    def run(self, *, launches: int = 1, time_limit_s: float = TIME_LIMIT_S, first: int = 1) -> SessionResult:
        """Measure in fresh processes, one after the other. A failure of a launch is in the result.

        Run again with a higher `first` it adds launches. A launch after the first leaves out the batch sizes
        that have failed. A profile has a launch of its own. An interrupt goes through, and `result` holds
        what was measured until then.
        """
        wanted = dataclasses.replace(self.result.settings, profile=None)
        for launch in range(first, first + launches):
            if launch > 1:
                # Forth and back, so that a drift of the machine meets all batch sizes alike.
                sizes = self._good_sizes()[:: -1 if launch % 2 == 0 else 1]
                wanted = dataclasses.replace(wanted, batch_sizes=sizes)
            if wanted.batch_sizes:
                self._try(launch, wanted, time_limit_s)
        if self.result.settings.profile is not None:
            self.record_profile(self.result.settings.profile, first + launches, time_limit_s)
        return self.result

    def record_profile(
        self, folder: str, launch: int, time_limit_s: float = TIME_LIMIT_S, *, work: bool = False
    ) -> None:
        """Record some calls of the last batch size that was measured, in a launch of its own."""
        sizes = self._good_sizes()
        if sizes:
            wanted = dataclasses.replace(
                self.result.settings, batch_sizes=sizes[-1:], profile=folder, profile_work=work
            )
            self._try(launch, wanted, time_limit_s)

    def _good_sizes(self) -> tuple[int, ...]:
        return tuple(size for each in self.result.batches if (size := each.batch_size) not in self._failed)

    def run_here(self, make: Callable[[], FrameworkSystem]) -> SessionResult:
        """Measure a system in this process. A failure is in the result, an interrupt goes through."""

        def measure() -> None:
            try:
                measure_system(make(), self.result.settings, self.sender())
            except GpuprofError:
                raise
            except Exception as error:
                # What the caller's own iterable and model raise: others that are to be measured go on.
                raise BenchmarkError(f"{self.result.spec.model}: {reason_of(error)}") from error

        self._keeping(1, measure)
        return self.result

    def _try(self, launch: int, settings: JobSettings, time_limit_s: float) -> None:
        self._keeping(launch, lambda: self._launch(launch, settings, time_limit_s))

    def _keeping(self, launch: int, measure: Callable[[], None]) -> None:
        """Measure; of what fails or is interrupted, keep what it had measured of its last batch size."""
        try:
            measure()
        except GpuprofError as raised:
            error = name_budget(raised, self.result.settings.memory_budget_bytes)
            self.result.failure = self.result.failure or error
            self._failures[launch] = error
            self._failed.add(self._batch_size)
            self._file_so_far(launch, str(error), "failure")
        except KeyboardInterrupt:
            self._file_so_far(launch, INTERRUPTED, "interrupted")
            raise

    def _file_so_far(self, launch: int, reason: str, stopped_by: StoppedBy) -> None:
        measurement = self._so_far.measurement(self.result.settings.measuring, reason, stopped_by)
        self._so_far = SamplesSoFar()
        if measurement is not None:
            self._file(launch, self._batch_size, measurement, {})

    def _launch(self, launch: int, settings: JobSettings, time_limit_s: float) -> None:
        job = {"spec": self.result.spec.to_dict(), "settings": settings.to_dict()}
        events: list[Event] = []
        # What fails before its first batch says nothing of the last one of the launch before.
        self._batch_size = 0

        def take(event: Event) -> None:
            if len(events) < _FIRST_EVENTS:
                events.append({key: event[key] for key in ("event", "t_ns", "up_ns") if key in event})
            self.take(launch, event)

        try:
            run_launch(job, time_limit_s=time_limit_s, on_event=take)
        finally:
            startup = startup_of(events)
            # Only those with the same batch size are alike.
            is_alike = settings.batch_sizes[:1] == self.result.settings.batch_sizes[:1]
            if startup is not None and is_alike and settings.profile is None:
                self._startups[launch] = startup
                self.result.startups.append(startup)

    def noted(self, launch: int) -> dict[str, Any]:
        """Return what a launch left, as plain data that `restore` takes; `failure` is why it ended early."""
        startup, failure = self._startups.get(launch), self._failures.get(launch)
        return {
            "launch": launch,
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
                if found.position == launch
            ],
        }

    def restore(self, noted: Mapping[str, Any]) -> None:
        """File what an earlier session noted of a launch that ended as it should."""
        if noted["startup"] is not None:
            startup = Startup.from_dict(noted["startup"])
            self._startups[noted["launch"]] = startup
            self.result.startups.append(startup)
        for each in noted["batches"]:
            self._description, self._environment = _description(each["description"]), each["environment"]
            launch = Launch.from_dict(each["launch"])
            assert launch.measurement is not None
            self._file(noted["launch"], each["batch_size"], launch.measurement, launch.extra)

    def take(self, launch: int, event: Event) -> None:
        """File one event."""
        if event["event"] == "preparing":
            self._batch_size = event["batch_size"]
        elif event["event"] == "answered":
            described = _description(event["description"])
            self._refuse_another_machine(described)
            self._description = described
        elif event["event"] == "samples":
            self._so_far.take(event)
        elif event["event"] == "measured":
            self._so_far = SamplesSoFar()
            measurement = Measurement.from_dict(event["measurement"])
            self._file(launch, event["batch_size"], measurement, event["extra"])
        elif event["event"] == "profiled":
            self.result.profile = event["path"]
        self._watch(launch, event)

    def _refuse_another_machine(self, described: SystemDescription) -> None:
        """Raise BenchmarkError for a launch on another device, as where `auto` finds the GPU gone."""
        first = self.result.batches[0].description if self.result.batches else described
        for what in ("device", "dtype", "framework"):
            now, before = getattr(described, what), getattr(first, what)
            if now != before:
                self._batch_size = 0  # which says nothing against it
                raise BenchmarkError(
                    f"{self.result.spec.model}: this launch ran with {what} {now}, and those before with "
                    f"{before}: name the {what}, or measure all of it again"
                )

    def _file(self, launch: int, batch_size: int, measurement: Measurement, extra: Mapping[str, Any]) -> None:
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
        found.launches.append(Launch(launch, measurement, measurement.failure, extra))

    def sender(self, launch: int = 1) -> Callable[..., None]:
        """Return where a job that runs in this process sends its events."""

        def send(event: str, **values: Any) -> None:
            self.take(launch, {"event": event, "t_ns": 0, **values})

        return send
