# SPDX-License-Identifier: Apache-2.0
"""What was measured of one batch size, and its columns, by which files, data frames and programs read it.

A column with None is unavailable, or has too few samples.
"""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Iterator, KeysView
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuprof.bench.config import JobSettings
from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.models.data import shape_text
from gpuprof.bench.results.loading import LOADING_COLUMNS, loading_row, median_of_known, milliseconds
from gpuprof.bench.results.result import ProcessRunResult, Result
from gpuprof.bench.results.target import QUANTILES
from gpuprof.stats.quantiles import Estimate, samples_needed
from gpuprof.text.units import counted, format_duration

# The contract's columns, in its order; others come after them.
COLUMNS = (
    "framework", "model", "device", "device_type", "batch_size", "input_shape", "dtype",
    "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_mean_ms", "latency_std_ms",
    "latency_min_ms", "latency_max_ms", "throughput_ips", "memory_mb", "compilation_time_ms",
    "timestamp", "git_commit",
)  # fmt: skip
MORE_COLUMNS = (
    "latency_p90_ms", "latency_p50_low_ms", "latency_p50_high_ms", "samples", "launches", "tokens_per_s",
    "memory_kind", "allocator_peak_bytes", "device_used_bytes", "host_peak_bytes", "model_bytes",
    "parameters", "energy_per_sample_j", "power_mean_w", "utilization_mean_percent", "cpu_share",
    "read_bytes", "written_bytes", "first_call_ms", "enqueue_p50_ms", "device_p50_ms", "recipe",
    "host_own_bytes", "host_calls_bytes", "host_baseline_bytes", *LOADING_COLUMNS, "warnings",
)  # fmt: skip


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
        counts = f"{counted(len(self.launches), 'process run')}, {counted(len(result.samples), 'sample')}"
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

    def estimate(self, quantile: float) -> Estimate | None:
        """Return `latency_s` with its interval, whose ends are None where the samples do not define it."""
        found = self.result.estimate(quantile)
        value = self.latency_s(quantile) if found is None else None
        return found if value is None else Estimate(None, value, None)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings about the figures; `unreliable_quantiles` about those without an interval."""
        result, needed = self.result, {}
        if self.settings.measuring.iterations is not None and result.count:
            short = {name: q for name, q in QUANTILES.items() if result.estimate(q) is None}
            needed = {name: samples_needed(q) for name, q in short.items()}
        found = (warning("unreliable_quantiles", samples=result.count, needed=needed),) if needed else ()
        return (*found, *self._replica_warnings(), *result.warnings)

    def _replica_warnings(self) -> Iterator[Diagnostic]:
        """Yield what is wrong with the other replicas, with the values of the first process run."""
        found = [each for each in self.values_of("replicas") if each.get("exit_codes") or each.get("idle")]
        if found:
            first = {"exit_codes": found[0]["exit_codes"], "idle": found[0]["idle"]}
            yield warning(
                "replicas_not_counted", **first, affected_runs=len(found), process_runs=len(self.launches)
            )

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
        return median_of_known(self.values_of(*path))

    @property
    def items_per_s(self) -> float | None:
        """Samples per second of all replicas; None without samples, or where a replica has ended."""
        own = self.result.items_per_s
        if not any("replicas" in run.extra for run in self.launches):
            return own
        others = self.middle("replicas", "others_items_per_s")
        return None if own is None or others is None else own + others

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
        return median_of_known(each.enqueue_s for each in self.result.measurements)

    @property
    def device_s(self) -> float | None:
        """The median time that the device itself worked for a call; None where it is unknown."""
        return median_of_known(statistics.median(each) for each in self.values_of("device_time_s") if each)


@dataclass(frozen=True, slots=True)
class Stamp:
    """When something was measured, and of which revision of the user's code; None outside a repository."""

    timestamp: str
    git_commit: str | None


def stamp_of(batch: BatchResult) -> Stamp:
    """Return when a batch size was measured first, and the revision."""
    return Stamp(batch.timestamp, batch.environment.get("revision"))


def row_of(batch: BatchResult, stamp: Stamp | None = None) -> dict[str, Any]:
    """Return the columns of one batch size, None where a figure is missing; `stamp` None is its own."""
    result, system = batch.result, batch.description
    rate = batch.items_per_s
    row: dict[str, Any] = {
        "framework": system.framework,
        "model": system.model,
        "device": system.device,
        "device_type": system.device_type,
        "batch_size": batch.batch_size,
        "input_shape": None if system.input_shape is None else shape_text(system.input_shape),
        "dtype": system.dtype,
        "throughput_ips": rate,
        "tokens_per_s": batch.tokens_per_s(rate),
        "samples": len(result.samples),
        "launches": len(result.measurements),
        "recipe": system.details.get("recipe"),
        "model_bytes": system.model_bytes,
        "parameters": system.parameters,
        "compilation_time_ms": milliseconds(batch.middle("compile_s")),
        "first_call_ms": milliseconds(batch.middle("first_call_s")),
        "enqueue_p50_ms": milliseconds(batch.enqueue_s),
        "device_p50_ms": milliseconds(batch.device_s),
        "warnings": "; ".join(each.code for each in batch.warnings) or None,
        **asdict(stamp_of(batch) if stamp is None else stamp),
        **_memory(batch),
        **loading_row(batch.result.measurements),
        **_latency(batch),
        **{name: batch.middle("usage", name) for name in ("cpu_share", "read_bytes", "written_bytes")},
        **{name: batch.middle("energy", name) for name in _ENERGY},
    }
    return {name: row[name] for name in (*COLUMNS, *MORE_COLUMNS)}


_ENERGY = ("energy_per_sample_j", "power_mean_w", "utilization_mean_percent")


def _latency(batch: BatchResult) -> dict[str, float | None]:
    summary, median = batch.result.summary, batch.result.estimate(0.5)
    plain = {"mean": "mean", "std": "std", "min": "minimum", "max": "maximum"}
    seconds = {name: batch.latency_s(q) for name, q in QUANTILES.items()}
    seconds |= {name: getattr(summary, field, None) for name, field in plain.items()}
    seconds |= {f"p50_{end}": getattr(median, end, None) for end in ("low", "high")}
    return {f"latency_{name}_ms": milliseconds(value) for name, value in seconds.items()}


def _memory(batch: BatchResult) -> dict[str, Any]:
    """Return the figures of memory, and the one of the model with its kind."""
    peak, (host, is_after_larger) = batch.largest("memory", "allocator_peak_bytes"), batch.host_peak
    own, is_own_after = batch.host_own
    kinds = (
        (peak, "allocator peak", False),
        (own, "model and calls", is_own_after),
        (host, "host peak", is_after_larger),
    )
    shown, name, is_after = next((each for each in kinds if each[0] is not None), kinds[-1])
    kind = f"{name}, after larger batches" if is_after else name
    return {
        "memory_mb": None if shown is None else shown / 1e6,
        "memory_kind": None if shown is None else kind,
        "allocator_peak_bytes": peak,
        "device_used_bytes": batch.largest("memory", "device_used_bytes"),
        "host_peak_bytes": host,
        "host_own_bytes": own,
        "host_calls_bytes": batch.largest("memory", "host_calls_bytes"),
        "host_baseline_bytes": batch.largest("memory", "host_baseline_bytes"),
    }
