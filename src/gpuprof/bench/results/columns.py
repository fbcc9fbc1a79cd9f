# SPDX-License-Identifier: Apache-2.0
"""The columns of a batch size, by which result files, data frames and programs read its figures.

None is unavailable, or has too few samples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.bench.models.data import shape_text
from gpuprof.bench.results.target import QUANTILES

if TYPE_CHECKING:
    from gpuprof.bench.results.session import BatchResult

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
    "host_own_bytes", "host_calls_bytes", "host_baseline_bytes", "warnings",
)  # fmt: skip


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
    rate = result.items_per_s
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
        "compilation_time_ms": _ms(batch.middle("compile_s")),
        "first_call_ms": _ms(batch.middle("first_call_s")),
        "enqueue_p50_ms": _ms(batch.enqueue_s),
        "device_p50_ms": _ms(batch.device_s),
        "warnings": "; ".join(each.code for each in batch.warnings) or None,
        **asdict(stamp_of(batch) if stamp is None else stamp),
        **_memory(batch),
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
    return {f"latency_{name}_ms": _ms(value) for name, value in seconds.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


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
