# SPDX-License-Identifier: Apache-2.0
"""What was measured: process runs, the figures of one configuration, and of one system all batch sizes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.failures import Failure, FailureCode, failure_of
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.measure.diagnostics import warnings_of
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.measure.scaling import LargestBatch, saturation_point
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.record.facts import Severity
from gpuprof.stats.quantiles import Estimate, PooledSamples, SummaryFigures, quantile_of, summarize
from gpuprof.text.units import format_duration

if TYPE_CHECKING:
    import numpy.typing as npt

TABLE_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


FORMAT = 1
Interval = tuple[float | None, float, float | None]


@dataclass(frozen=True, slots=True)
class ProcessRunResult:
    """One process that measured, or one that failed.

    `position` is its place in the order of the process runs of all configurations. `extra` holds
    what else was recorded: seconds of loading and preparing (`load_s`, `prepare_s`), memory.
    """

    position: int
    measurement: Measurement | None
    failure: Failure | None
    extra: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One configuration, measured in one process run or several.

    `samples` are seconds of a call, of all process runs in their order; `quantile()` returns figures, or None
    where the samples do not suffice. `str()` is a table for people, `to_dict()` plain data for JSON.
    """

    name: str
    description: Mapping[str, Any] | None
    settings: Settings
    in_process: bool = False
    batch_size: int | None = None
    launches: tuple[ProcessRunResult, ...]
    environment: Mapping[str, Any]
    more_warnings: tuple[Diagnostic, ...] = ()

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements of the process runs that gave samples."""
        found = (launch.measurement for launch in self.launches)
        return tuple(each for each in found if each is not None and len(each.samples_ns))

    @cached_property
    def samples(self) -> npt.NDArray[np.float64]:
        """Seconds of a call, raw; in throughput mode of the mean call of each window."""
        parts = [measurement.samples for measurement in self.measurements]
        return np.concatenate(parts) if parts else np.zeros(0)

    @overload
    def quantile(self, quantile: float) -> float | None: ...
    @overload
    def quantile(self, quantile: float, *, interval: Literal[False]) -> float | None: ...
    @overload
    def quantile(self, quantile: float, *, interval: Literal[True]) -> Interval | None: ...
    def quantile(self, quantile: float, *, interval: bool = False) -> float | Interval | None:
        """Return a quantile in seconds; None where the samples do not suffice for a 95% interval.

        With `interval`, (low, value, high). Of one process run the interval is that of order statistics and
        is for this run alone; of several it shows how they differ, and an end that so few runs do not give
        is None. Raises ValueError outside 0 to 1.
        """
        found = self.estimate(quantile)
        if found is None:
            return None
        return (found.low, found.value, found.high) if interval else found.value

    def estimate(self, quantile: float) -> Estimate | None:
        """Return a quantile with its interval; None where the samples do not suffice."""
        return self._pooled.quantile(quantile)

    @property
    def mean_estimate(self) -> Estimate | None:
        """The mean with its interval; None for fewer than two samples."""
        return self._pooled.mean()

    @property
    def count(self) -> int:
        """The samples by which quantiles are judged: fewer than there are where runs differ in length."""
        return self._pooled.count

    @cached_property
    def _pooled(self) -> PooledSamples:
        """All samples; each process run has the same weight, an aborted one by its fraction."""
        measured = self.measurements
        usual = statistics.median([len(each.samples_ns) for each in measured if each.is_complete] or [0])
        shares = [
            1.0 if each.is_complete or not usual else min(1.0, len(each.samples_ns) / usual)
            for each in measured
        ]
        return PooledSamples([each.samples for each in measured], shares)

    def launch_figures(self, quantile: float = 0.5) -> tuple[float, ...]:
        """Return the quantile of each process run that has enough samples, for `gpuprof.stats.ratio_test`."""
        found = (quantile_of(each.samples, quantile) for each in self.measurements)
        return tuple(each.value for each in found if each is not None)

    @property
    def summary(self) -> SummaryFigures | None:
        """Mean, standard deviation, extremes and quartiles of all samples; None without any."""
        return summarize(self.samples) if len(self.measurements) < 2 else self._pooled.summary()

    @property
    def calls_per_s(self) -> float | None:
        """Calls over the time that they took, one after the other; None without samples."""
        summary = self.summary
        return 1 / summary.mean if summary is not None and summary.mean > 0 else None

    @property
    def items_per_s(self) -> float | None:
        """Calls per second times the batch size; None without one."""
        calls = self.calls_per_s
        return None if calls is None or self.batch_size is None else calls * self.batch_size

    @cached_property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings about the figures, each code once, with the values of the first process run."""
        device = (self.description or {}).get("device_type", "cpu")
        found: dict[str, list[Diagnostic]] = {}
        for measurement in self.measurements:
            for each in warnings_of(measurement, device):
                found.setdefault(each.code, []).append(each)
        total = len(self.launches)
        of_runs = (
            replace(each[0], values={**each[0].values, "affected_runs": len(each), "process_runs": total})
            for each in found.values()
        )
        return (*self.more_warnings, *self._run_warnings(), *of_runs)

    def _run_warnings(self) -> Iterator[Diagnostic]:
        failed = [str(launch.failure) for launch in self.launches if launch.failure is not None]
        if failed:
            values = {"failed": len(failed), "process_runs": len(self.launches), "first": failed[0]}
            yield Diagnostic("failed_process_runs", Severity.WARNING, values)
        if len(self.launches) == 1:
            yield Diagnostic("one_process_run", Severity.WARNING)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the raw samples, and the figures for readers of the file."""
        summary = self.summary
        return {
            "format": FORMAT,
            **to_plain(self),
            "more_warnings": [each.to_dict() for each in self.more_warnings],
            "figures": {
                "summary_s": None if summary is None else asdict(summary),
                "quantiles_s": {str(q): self.quantile(q, interval=True) for q in TABLE_QUANTILES},
                "calls_per_s": self.calls_per_s,
                "items_per_s": self.items_per_s,
                "warnings": [each.to_dict() for each in self.warnings],
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Return what `to_dict()` described; figures are worked out again. Raises BenchmarkError."""
        if data.get("format") != FORMAT:
            raise BenchmarkError(f"this is no result of format {FORMAT}: measure again with this version")
        more = data.get("more_warnings", data.get("more_flags", ()))
        found = from_plain({**_with_typed_failures(data), "more_warnings": ()}, cls, "a result")
        return replace(found, more_warnings=tuple(map(Diagnostic.from_dict, more)))

    def __str__(self) -> str:
        from gpuprof.bench.results.text import result_table

        return result_table(self)


def _with_typed_failures(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result whose failures are typed: earlier versions wrote them as texts."""

    def typed(plain: Any) -> Any:
        if not isinstance(plain, Mapping) or not isinstance(plain.get("failure"), str):
            return plain
        return {**plain, "failure": to_plain(Failure(FailureCode.FAILED, plain["failure"]))}

    launches = data.get("launches")
    if not isinstance(launches, list):
        return dict(data)
    found = [
        typed({**each, "measurement": typed(each.get("measurement"))}) if isinstance(each, Mapping) else each
        for each in launches
    ]
    return {**data, "launches": found}


@dataclass(slots=True, repr=False)
class BatchResult:
    """What was measured of one batch size, in all process runs."""

    batch_size: int
    description: SystemDescription
    settings: JobSettings
    environment: dict[str, Any]
    launches: list[ProcessRunResult] = field(default_factory=list)
    in_process: bool = False

    def __repr__(self) -> str:
        """Return it on one line: the samples alone fill pages."""
        result = self.result
        median = result.quantile(0.5)
        time = "unavailable" if median is None else format_duration(median * 1e9)
        counts = f"{len(self.launches)} process runs, {len(result.samples):,} samples"
        return f"<BatchResult {result.name}: {counts}, median {time}>"

    @property
    def result(self) -> Result:
        """The figures, with the samples of each process run."""
        return Result(
            name=f"{self.description.model} ({self.description.framework}), batch size {self.batch_size}",
            description=dataclasses.asdict(self.description),
            settings=self.settings.measuring,
            in_process=self.in_process,
            batch_size=self.batch_size,
            launches=tuple(self.launches),
            environment=self.environment,
        )

    def tokens_per_s(self, samples_per_s: float | None) -> float | None:
        """Tokens per second of a sequence model, None for others."""
        tokens = self.description.details.get("tokens_per_sample")
        return None if tokens is None or samples_per_s is None else samples_per_s * int(tokens)

    def values_of(self, *path: str) -> list[Any]:
        """Return a value of `extra` of those process runs that have it."""
        found: list[Any] = [launch.extra for launch in self.launches]
        for name in path:
            found = [each.get(name) for each in found if each is not None]
        return [each for each in found if each is not None]

    def largest(self, *path: str) -> Any:
        """Return the largest value over the process runs; None where none of them has it."""
        return max(self.values_of(*path), default=None)

    def middle(self, *path: str) -> float | None:
        """Return the median over the process runs of one value of each; None where none has it."""
        return _median(self.values_of(*path))

    @property
    def host_peak(self) -> tuple[int | None, bool]:
        """The host's peak, and whether a larger batch came before it in the same process.

        That one may hold on to memory, so process runs in which none came before go first.
        """
        read = [
            (host, bool(launch.extra.get("after_larger")))
            for launch in self.launches
            if (host := (launch.extra.get("memory") or {}).get("host_resident_bytes")) is not None
        ]
        clean = [host for host, is_after_larger in read if not is_after_larger]
        return (max(clean), False) if clean else (min((host for host, _ in read), default=None), True)

    @property
    def enqueue_s(self) -> float | None:
        """The median time until a call had returned; None where that is all of it."""
        return _median(each.enqueue_s for each in self.result.measurements)

    @property
    def device_s(self) -> float | None:
        """The median time that the device itself worked for a call; None where it is unknown."""
        return _median(statistics.median(each) for each in self.values_of("device_time_s") if each)


def _median(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return statistics.median(told) if told else None


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds from the start of a process to its first inference; the parts add up to `total_s`.

    `interpreter_s` until Python runs our code, `import_s` the framework, `load_s` the model onto the device,
    `compile_s` making the inputs and compiling for them, `first_run_s` the first call.
    """

    interpreter_s: float
    import_s: float
    load_s: float
    compile_s: float
    first_run_s: float

    @property
    def total_s(self) -> float:
        """From the start to the first inference."""
        return float(sum(asdict(self).values()))

    def to_dict(self) -> dict[str, float]:
        """Return the parts and the total."""
        return {**asdict(self), "total_s": self.total_s}


@dataclass(slots=True)
class SessionResult:
    """The batch sizes that were measured, the start-up of each process run, and what ended the session."""

    spec: SystemSpec
    settings: JobSettings
    batches: list[BatchResult] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    failure: GpuprofError | None = None
    profile: str | None = None

    def batch(self, batch_size: int) -> BatchResult | None:
        """Return what was measured of a batch size."""
        return next((each for each in self.batches if each.batch_size == batch_size), None)

    @property
    def throughputs(self) -> dict[int, float]:
        """Samples per second by batch size."""
        rates = {batch.batch_size: batch.result.items_per_s for batch in self.batches}
        return {size: rate for size, rate in rates.items() if rate is not None}


@dataclass(slots=True)
class Finding:
    """What a benchmark found besides the figures of each batch size."""

    session: SessionResult
    verdicts: dict[int, TargetVerdict] = field(default_factory=dict)
    largest: LargestBatch | None = None
    startup: dict[str, Startup | None] = field(default_factory=dict)
    memory_ended: str | None = None

    def more(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        session = self.session
        return {
            "asked": {"spec": to_plain(session.spec), "settings": to_plain(session.settings)},
            "error": None if session.failure is None else to_plain(failure_of(session.failure)),
            "startups": [each.to_dict() for each in session.startups],
            "startup": {
                name: None if each is None else each.to_dict() for name, each in self.startup.items()
            },
            "scaling": {"knee": saturation_point(session.throughputs), "memory_ended": self.memory_ended},
            "verdicts": self.verdicts,
            "largest_batch": to_plain(self.largest),
            "profile": session.profile,
        }
