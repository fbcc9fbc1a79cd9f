# SPDX-License-Identifier: Apache-2.0
"""What was measured of one system: its batch sizes, the start-up of each process run, and what ended it."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Iterable, KeysView
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.failures import Failure, failure_of
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.measure.scaling import LargestBatch, saturation_point
from gpuprof.bench.results.columns import row_of
from gpuprof.bench.results.result import ProcessRunResult, Result
from gpuprof.bench.results.target import QUANTILES
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import GpuprofError
from gpuprof.stats.quantiles import samples_needed
from gpuprof.text.units import format_duration


def _local_time() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(slots=True, repr=False)
class BatchResult:
    """What was measured of one batch size, in all process runs.

    `result["latency_p50_ms"]` and `dict(result)` read it by the columns of the result files; None is an
    empty cell. `timestamp` is the local time of its first process run.
    """

    batch_size: int
    description: SystemDescription
    settings: JobSettings
    environment: dict[str, Any]
    launches: list[ProcessRunResult] = field(default_factory=list)
    in_process: bool = False
    timestamp: str = field(default_factory=_local_time)

    def __getitem__(self, column: str) -> Any:
        """Return the value of a column of the result files. Raises KeyError."""
        return row_of(self)[column]

    def keys(self) -> KeysView[str]:
        """Return the columns of the result files."""
        return row_of(self).keys()

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

    def latency_s(self, quantile: float) -> float | None:
        """Return a quantile in seconds; None where the samples do not suffice for its interval.

        With a fixed number of iterations it is returned whatever their number: see `warnings`.
        """
        found = self.result.quantile(quantile)
        is_fixed = self.settings.measuring.iterations is not None
        return self.result.plain_quantile(quantile) if found is None and is_fixed else found

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings about the figures; `unreliable_quantiles` about those without an interval."""
        result, needed = self.result, {}
        if self.settings.measuring.iterations is not None and result.count:
            short = {name: q for name, q in QUANTILES.items() if result.estimate(q) is None}
            needed = {name: samples_needed(q) for name, q in short.items()}
        found = (warning("unreliable_quantiles", samples=result.count, needed=needed),) if needed else ()
        return (*found, *result.warnings)

    def tokens_per_s(self, samples_per_s: float | None) -> float | None:
        """Tokens per second of a sequence model, None for others."""
        tokens = self.description.details.get("tokens_per_sample")
        return None if tokens is None or samples_per_s is None else samples_per_s * int(tokens)

    def values_of(self, *path: str) -> list[Any]:
        """Return a value of `extra` of those process runs that have it."""
        found: list[Any] = [run.extra for run in self.launches]
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
        """The peak of the whole process, and whether a larger batch came before it in the same process."""
        return self._host("host_resident_bytes")

    @property
    def host_own(self) -> tuple[int | None, bool]:
        """The model's own memory on the host: parameters, buffers and what calls add; as `host_peak`."""
        return self._host("host_own_bytes")

    def _host(self, name: str) -> tuple[int | None, bool]:
        """Return a figure of the host, and whether a larger batch came before it in the same process.

        That one may hold on to memory, so process runs in which none came before go first.
        """
        read = [
            (host, bool(run.extra.get("after_larger")))
            for run in self.launches
            if (host := (run.extra.get("memory") or {}).get(name)) is not None
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
class BenchFinding:
    """What a benchmark found besides the figures of each batch size."""

    session: SessionResult
    verdicts: dict[int, TargetVerdict] = field(default_factory=dict)
    largest: LargestBatch | None = None
    startup: dict[str, Startup | None] = field(default_factory=dict)
    memory_ended: Failure | None = None

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
            "scaling": {
                "knee": saturation_point(session.throughputs),
                "memory_ended": to_plain(self.memory_ended),
            },
            "verdicts": self.verdicts,
            "largest_batch": to_plain(self.largest),
            "profile": session.profile,
        }
