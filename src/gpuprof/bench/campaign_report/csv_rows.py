# SPDX-License-Identifier: Apache-2.0
"""A comparison as rows: one for each variant and batch size, one for a variant without any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprof.bench.campaign_report.reading import Batch, Interval, Report, Variant
from gpuprof.render.page import readable

# Names that `gpuprof bench` has in its files too stand for the same here.
COLUMNS = (
    "variant", "is_baseline", "is_choice", "status", "technique", "framework", "model", "device",
    "device_type", "dtype", "batch_size", "latency_p50_ms", "latency_p50_low_ms", "latency_p50_high_ms",
    "latency_p90_ms", "latency_p95_ms", "latency_p99_ms", "latency_mean_ms", "latency_std_ms",
    "latency_min_ms", "latency_max_ms", "spread", "throughput_ips", "speedup", "speedup_low",
    "speedup_high", "verdict", "variant_speedup", "variant_speedup_low", "variant_speedup_high",
    "variant_verdict", "host_peak_bytes", "device_peak_bytes", "energy_per_sample_j", "model_bytes",
    "parameters", "startup_s", "compile_s", "cost_per_million", "currency", "accuracy",
    "accuracy_change", "accuracy_change_low", "accuracy_change_high", "accuracy_verdict",
    "agreement_top1", "agreement_top5", "cosine", "relative_error", "max_absolute_error", "launches",
    "samples", "flags", "failure", "accuracy_unavailable", "run", "timestamp", "git_commit",
)  # fmt: skip
_MILLISECONDS = 1e3


def csv_rows(report: Report) -> Iterator[dict[str, Any]]:
    """Yield the rows; None, an empty cell, is what is unavailable or insufficient."""
    for variant in report.variants:
        for batch in variant.batches or (None,):
            row = _variant(variant, report) | ({} if batch is None else _batch(batch))
            # As on the page: no character that hides or turns text, none that ends a file early.
            yield {
                name: readable(value) if isinstance(value, str) else value
                for name, value in ((name, row.get(name)) for name in COLUMNS)
            }


def _variant(variant: Variant, report: Report) -> dict[str, Any]:
    accuracy = variant.accuracy
    own = (
        "status", "technique", "framework", "model", "device", "device_type", "dtype", "model_bytes",
        "parameters", "startup_s", "compile_s", "failure", "accuracy_unavailable", "run",
    )  # fmt: skip
    row = {name: getattr(variant, name) for name in own}
    row |= {
        "variant": variant.name,
        "is_baseline": variant.name == report.baseline,
        "is_choice": variant.name == report.choice,
        "variant_verdict": variant.verdict,
        "currency": report.currency,
        "timestamp": report.timestamp,
        "git_commit": report.git_commit,
    }
    row |= _interval("variant_speedup", variant.speedup)
    if accuracy is not None:
        row |= accuracy.figures | _interval("accuracy_change", accuracy.change)
        row["accuracy_verdict"] = accuracy.verdict
    return row


def _batch(batch: Batch) -> dict[str, Any]:
    same = (
        "batch_size", "spread", "host_peak_bytes", "device_peak_bytes", "energy_per_sample_j",
        "cost_per_million", "launches", "samples", "verdict",
    )  # fmt: skip
    row = {name: getattr(batch, name) for name in same}
    row |= {
        f"latency_{name}_ms": _ms(None if found is None else found.value)
        for name, found in batch.quantiles.items()
    }
    row |= {f"latency_{name}_ms": _ms(getattr(batch, f"{name}_s")) for name in ("mean", "std", "min", "max")}
    if batch.median is not None:
        row["latency_p50_low_ms"], row["latency_p50_high_ms"] = _ms(batch.median.low), _ms(batch.median.high)
    row["throughput_ips"] = None if batch.throughput is None else batch.throughput.value
    row["flags"] = "; ".join(dict.fromkeys(name for name, _ in batch.flags)) or None
    return row | _interval("speedup", batch.speedup)


def _interval(name: str, found: Interval | None) -> dict[str, float | None]:
    if found is None:
        return {}
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * _MILLISECONDS
