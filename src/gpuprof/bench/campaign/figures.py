# SPDX-License-Identifier: Apache-2.0
"""The figures of a variant as plain data: those of its samples, and those that follow from them."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.campaign.compared import Compared, medians_s, speedup_of
from gpuprof.bench.campaign.plan import CampaignPlan
from gpuprof.bench.campaign.runner import VariantResult
from gpuprof.bench.flags import flags_of
from gpuprof.bench.result import Result
from gpuprof.bench.session import BatchResult
from gpuprof.bench.statistics import Estimate

Plain = dict[str, Any]
OF_THE_MACHINE = ("other load", "interrupted", "stolen time")
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
    from gpuprof.bench.recipes import parse_recipe

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
        "flags": [flag.to_dict() for flag in result.flags],
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
        any(flag.name in OF_THE_MACHINE for flag in flags_of(measurement, device))
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
