# SPDX-License-Identifier: Apache-2.0
"""The figures of a variant, compared with the baseline's process runs by batch size and overall."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.bench.compare.plan import CampaignPlan
from gpuprof.bench.compare.runner import CampaignResult, VariantResult
from gpuprof.bench.measure.diagnostics import MACHINE_WARNINGS, warnings_of
from gpuprof.bench.measure.measurement import ENDED_EARLY
from gpuprof.bench.results.result import Launch, Result
from gpuprof.bench.workers.session import BatchResult
from gpuprof.stats.quantiles import WIDEST_FACTOR, Estimate
from gpuprof.stats.ratio_test import Comparison, compare, compare_many

OVERALL = 0  # in the place of a batch size


@dataclass(frozen=True, slots=True)
class Speedup:
    """Old time over new time: above 1 is faster. None stands for what too few launches do not tell."""

    low: float | None
    value: float
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain data for JSON."""
        return {"low": self.low, "value": self.value, "high": self.high}


def speedup_of(comparison: Comparison) -> Speedup:
    """Return the speed-up that a ratio of times is."""
    low, high = comparison.low, comparison.high
    # Two launches that differ give ends from nothing to millions: those are no figures for anybody.
    if low is None or high is None or high > low * WIDEST_FACTOR**2:
        return Speedup(None, 1 / comparison.ratio, None)
    return Speedup(1 / high, 1 / comparison.ratio, 1 / low)


@dataclass(frozen=True, slots=True)
class Compared:
    """All comparisons of a campaign with its baseline, by variant and batch size, OVERALL for all of them."""

    comparisons: dict[tuple[str, int], Comparison]

    def at(self, variant: str, batch_size: int) -> Comparison | None:
        """Return a comparison; None for the baseline itself and where one side has no samples."""
        return self.comparisons.get((variant, batch_size))

    def overall(self, variant: str) -> Comparison | None:
        """Return the comparison over all batch sizes that both sides measured."""
        return self.at(variant, OVERALL)

    def verdict(self, variant: str) -> str | None:
        """Return the verdict over all batch sizes; `mixed` where one is faster and another is slower."""
        single = {
            found.verdict
            for (name, size), found in self.comparisons.items()
            if name == variant and size != OVERALL
        }
        overall = self.overall(variant)
        if {"faster", "slower"} <= single:
            return "mixed"
        return None if overall is None else overall.verdict


def compare_variants(result: CampaignResult) -> Compared:
    """Compare all variants with the baseline at once; of the differences found at most 5% are false."""
    baseline = result.baseline
    metrics: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    keys: dict[str, tuple[str, int]] = {}
    for each in result.variants:
        if each is baseline:
            continue
        for size, pair in _pairs(baseline, each):
            keys[str(len(keys))] = (each.variant.name, size)
            metrics[str(len(metrics))] = pair
    found = compare_many(metrics, margin=result.plan.margin) if metrics else {}
    return Compared({keys[name]: comparison for name, comparison in found.items()})


def _pairs(old: VariantResult, new: VariantResult) -> Iterable[tuple[int, tuple[list[float], list[float]]]]:
    sizes = common_sizes(old, new)
    for size in sizes:
        yield size, (medians_s(old, size), medians_s(new, size))
    pair = overall_s(old, sizes), overall_s(new, sizes)
    if all(pair):
        yield OVERALL, pair


def compare_two(first: VariantResult, second: VariantResult, margin: float) -> Comparison | None:
    """Compare two variants over the batch sizes that both measured; None where there are none."""
    sizes = common_sizes(first, second)
    old, new = overall_s(first, sizes), overall_s(second, sizes)
    return compare(old, new, margin=margin) if old and new else None


def common_sizes(first: VariantResult, second: VariantResult) -> list[int]:
    """Return the batch sizes of which both have samples."""
    return [
        batch.batch_size
        for batch in first.session.batches
        if medians_s(first, batch.batch_size) and medians_s(second, batch.batch_size)
    ]


def medians_s(each: VariantResult, batch_size: int) -> list[float]:
    """Return the median seconds of a call in each launch that measured a batch size to its end."""
    batch = each.session.batch(batch_size)
    return [] if batch is None else [_median(launch) for launch in batch.launches if is_whole(launch)]


def overall_s(each: VariantResult, sizes: Sequence[int]) -> list[float]:
    """Return for each launch that measured all sizes the geometric mean of its medians."""
    by_launch: dict[int, list[float]] = {}
    for size in sizes:
        batch = each.session.batch(size)
        for launch in [] if batch is None else batch.launches:
            if is_whole(launch):
                by_launch.setdefault(launch.position, []).append(math.log(_median(launch)))
    return [
        math.exp(float(np.mean(found))) for found in by_launch.values() if found and len(found) == len(sizes)
    ]


def is_whole(launch: Launch) -> bool:
    """Whether a launch has samples and did not end early."""
    measured = launch.measurement
    return measured is not None and bool(len(measured.wall_ns)) and measured.stopped_by not in ENDED_EARLY


def _median(launch: Launch) -> float:
    assert launch.measurement is not None
    return float(np.median(launch.measurement.samples))


Plain = dict[str, Any]
NOT_MEASURED = "the comparison ended before all of it was measured"
_QUANTILES = {"median_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99}


def variant_figures(each: VariantResult, plan: CampaignPlan, compared: Compared) -> Plain:
    """Return everything that was measured of a variant."""
    session, name = each.session, each.variant.name
    described = session.batches[0].description if session.batches else None
    overall = compared.overall(name)
    startups = sorted(startup.total_s for startup in session.startups)
    is_baseline = name == plan.baseline.name
    return {
        "name": name,
        "status": status_of(each, plan),
        "failure": _failure(each, plan),
        "model": each.variant.spec.model,
        "framework": None if described is None else described.framework,
        "dtype": None if described is None else described.dtype,
        "recipe": each.variant.spec.recipe,
        "technique": technique_of(each),
        "device": None if described is None else described.device,
        "device_type": None if described is None else described.device_type,
        "details": {} if described is None else dict(described.details),
        "model_bytes": None if described is None else described.model_bytes,
        "parameters": None if described is None else described.parameters,
        "startup_s": startups[len(startups) // 2] if startups else None,
        "compile_s": session.batches[0].middle("compile_s") if session.batches else None,
        "speedup": None if overall is None else speedup_of(overall).to_dict(),
        "comparison": None if overall is None else overall.to_dict(),
        "verdict": "baseline" if is_baseline else compared.verdict(name),
        "batches": [batch_figures(each, batch, plan, compared) for batch in session.batches],
        "run": None if each.run is None else str(each.run),
        "run_unavailable": each.run_unavailable,
    }


def _failure(each: VariantResult, plan: CampaignPlan) -> str | None:
    if each.session.failure is not None:
        return str(each.session.failure)
    return None if status_of(each, plan) == "measured" else NOT_MEASURED


def status_of(each: VariantResult, plan: CampaignPlan) -> str:
    """Return measured, partly or failed."""
    if not each.session.batches:
        return "failed"
    wanted = set(plan.job_of(each.variant).batch_sizes)
    whole = {batch.batch_size for batch in each.session.batches if medians_s(each, batch.batch_size)}
    return "measured" if whole == wanted and each.session.failure is None else "partly"


def technique_of(each: VariantResult) -> str:
    """Return in words what makes the variant what it is."""
    from gpuprof.bench.models.recipes import parse_recipe

    spec = each.variant.spec
    if spec.recipe is not None:
        return parse_recipe(spec.recipe).technique
    if each.session.batches:
        described = each.session.batches[0].description
        return f"{described.dtype} in {described.framework}"
    return f"{spec.dtype or 'its own type'} in {spec.framework}"


def batch_figures(each: VariantResult, batch: BatchResult, plan: CampaignPlan, compared: Compared) -> Plain:
    """Return what was measured at one batch size."""
    result = batch.result
    summary, comparison = result.summary, compared.at(each.variant.name, batch.batch_size)
    return {
        "batch_size": batch.batch_size,
        "launches": len(result.measurements),
        "samples": len(result.samples),
        **{name: _ends(result.estimate(share)) for name, share in _QUANTILES.items()},
        "mean_s": None if summary is None else summary.mean,
        "std_s": None if summary is None else summary.std,
        "min_s": None if summary is None else summary.minimum,
        "max_s": None if summary is None else summary.maximum,
        "spread": None if summary is None else summary.spread,
        "throughput_per_s": throughput_of(result),
        "host_peak_bytes": batch.host_peak[0],
        "device_peak_bytes": batch.largest("memory", "allocator_peak_bytes"),
        "energy_per_sample_j": batch.middle("energy", "energy_per_sample_j"),
        "launch_medians_s": medians_s(each, batch.batch_size),
        "flags": [{"name": each.code, "line": str(each)} for each in result.warnings],
        "disturbed_launches": _disturbed(result),
        "target": None if plan.target is None else plan.target.verdict(result),
        "speedup": None if comparison is None else speedup_of(comparison).to_dict(),
        "comparison": None if comparison is None else comparison.to_dict(),
        "cost_per_million": cost_per_million(result, plan.price_per_hour),
    }


def _disturbed(result: Result) -> int:
    """Return in how many launches the machine did something else too."""
    device = str((result.description or {}).get("device_type", "cpu"))
    return sum(
        any(each.code in MACHINE_WARNINGS for each in warnings_of(measurement, device))
        for measurement in result.measurements
    )


def _ends(found: Estimate | None) -> Plain | None:
    return None if found is None else {"low": found.low, "value": found.value, "high": found.high}


def throughput_of(result: Result) -> Plain | None:
    """Return samples per second with the interval of the mean call, from which it is worked out."""
    mean, size = result.mean_estimate, result.batch_size
    rate = result.items_per_s
    if rate is None or size is None:
        return None
    low = None if mean is None or mean.high is None else size / mean.high
    high = None if mean is None or not mean.low else size / mean.low
    return {"low": low, "value": rate, "high": high}


def cost_per_million(result: Result, price_per_hour: float | None) -> float | None:
    """Return the price of a million samples, one call after the other; None without a price."""
    rate = result.items_per_s
    if rate is None or price_per_hour is None or rate <= 0:
        return None
    return price_per_hour / 3600 / rate * 1e6
