# SPDX-License-Identifier: Apache-2.0
"""The comparison document from process runs: the figures of each variant, compared with the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from gpuprof.bench.compare.advice import advise
from gpuprof.bench.compare.document import (
    QUANTILE_FIELDS,
    AccuracyFigures,
    BatchFigures,
    ComparisonDocument,
    ComparisonMethod,
    ComparisonSummary,
    LayerFigures,
    ParetoPoint,
    QualityAxis,
    TimeSeries,
    TrafficFigures,
    VariantFigures,
)
from gpuprof.bench.compare.plan import ComparisonPlan
from gpuprof.bench.compare.runner import ComparisonResult, VariantResult
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import Diagnostic, error, note, warning
from gpuprof.bench.failures import Failure, failure_of
from gpuprof.bench.measure.diagnostics import MACHINE_WARNINGS, warnings_of
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.measure.resources import ResourceSeries
from gpuprof.bench.models.recipes import parse_recipe
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.loading import loading_row
from gpuprof.bench.results.result import Result
from gpuprof.bench.results.session import SessionResult
from gpuprof.bench.results.target import QUANTILES
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.verdicts import QualityMeasure, SpeedVerdict, VariantStatus
from gpuprof.stats.quantiles import CONFIDENCE, WIDEST_FACTOR, Estimate
from gpuprof.stats.ratio_test import Comparison, compare_many

OVERALL = 0  # instead of a batch size
Medians = dict[int, dict[int, float]]


def speedup_of(comparison: Comparison | None) -> Estimate | None:
    """Return old time over new time with its interval: above 1 is faster."""
    if comparison is None:
        return None
    low, high = comparison.low, comparison.high
    # Two process runs that differ give ends from nothing to millions, which support no statement.
    if low is None or high is None or high > low * WIDEST_FACTOR**2:
        return Estimate(None, 1 / comparison.ratio, None)
    return Estimate(1 / high, 1 / comparison.ratio, 1 / low)


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """All comparisons with the baseline, by variant and batch size, OVERALL for all of them.

    There is none of the baseline itself, nor where one side has no samples.
    """

    comparisons: dict[tuple[str, int], Comparison]

    def verdict(self, variant: str) -> SpeedVerdict | None:
        """Return the verdict over all batch sizes; mixed where one is faster and another is slower."""
        found = {size: each.verdict for (name, size), each in self.comparisons.items() if name == variant}
        overall = found.pop(OVERALL, None)
        if {"faster", "slower"} <= set(found.values()):
            return SpeedVerdict.MIXED
        return None if overall is None else SpeedVerdict(overall)


def compare_variants(result: ComparisonResult) -> ComparisonTable:
    """Compare all variants with the baseline at once; of the differences found at most 5% are false."""
    medians = {each.variant.name: medians_s(each) for each in result.variants}
    of_baseline = medians.pop(result.plan.baseline.name)
    metrics: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for name, of_variant in medians.items():
        both = of_baseline, of_variant
        old, new = (_of_shared_rounds(*both), _of_shared_rounds(*both[::-1])) if result.is_paired else both
        sizes = [size for size in old if old[size] and new.get(size)]
        metrics |= {(name, size): (list(old[size].values()), list(new[size].values())) for size in sizes}
        overall = _overall_s(old, sizes), _overall_s(new, sizes)
        if all(overall):
            metrics[name, OVERALL] = overall
    return ComparisonTable(compare_many(metrics, margin=result.plan.margin))


def _of_shared_rounds(medians: Medians, others: Medians) -> Medians:
    """Return the medians of the rounds that the others have too."""
    return {
        size: {number: found for number, found in runs.items() if number in others.get(size, {})}
        for size, runs in medians.items()
    }


def medians_s(each: VariantResult) -> Medians:
    """Return the median seconds of a call by batch size and process run, of those that completed."""
    return {
        batch.batch_size: {
            run.position: float(np.median(measured.samples))
            for run in batch.launches
            if (measured := run.measurement) is not None and measured.is_complete
        }
        for batch in each.session.batches
    }


def _overall_s(medians: Medians, sizes: Sequence[int]) -> list[float]:
    """Return for each process run that measured all sizes the geometric mean of its medians."""
    if not sizes:
        return []
    runs = [run for run in medians[sizes[0]] if all(run in medians[size] for size in sizes)]
    return [math.exp(float(np.mean([math.log(medians[size][run]) for size in sizes]))) for run in runs]


def variant_figures(
    each: VariantResult, plan: ComparisonPlan, compared: ComparisonTable, extra: MoreFigures
) -> VariantFigures:
    """Return everything that was measured of a variant."""
    session, name, medians = each.session, each.variant.name, medians_s(each)
    overall = compared.comparisons.get((name, OVERALL))
    startups = sorted(startup.total_s for startup in session.startups)
    accuracy = extra.accuracy.get(name, _why_no_accuracy(each, plan))
    status = _status(each, plan, medians)
    return VariantFigures(
        name=name,
        status=status,
        failure=_failure(each, status),
        model=each.variant.spec.model,
        recipe=each.variant.spec.recipe,
        technique=technique_of(each),
        **_described(session),
        startup_s=startups[len(startups) // 2] if startups else None,
        compile_s=session.batches[0].middle("compile_s") if session.batches else None,
        speedup=speedup_of(overall),
        comparison=overall,
        verdict=SpeedVerdict.BASELINE if name == plan.baseline.name else compared.verdict(name),
        batches=tuple(
            _batch_figures(
                batch,
                plan,
                compared.comparisons.get((name, batch.batch_size)),
                tuple(medians[batch.batch_size].values()),
            )
            for batch in session.batches
        ),
        accuracy=accuracy if isinstance(accuracy, AccuracyFigures) else None,
        accuracy_unavailable=accuracy if isinstance(accuracy, Diagnostic) else None,
        layers=extra.layers.get(name),
        run=None if each.run is None else str(each.run),
        run_unavailable=None if each.run_unavailable is None else _no_run(each.run_unavailable),
    )


def _described(session: SessionResult) -> dict[str, Any]:
    if not session.batches:
        return {}
    described = session.batches[0].description
    names = ("framework", "dtype", "device", "device_type", "model_bytes", "parameters")
    return {name: getattr(described, name) for name in names} | {"details": dict(described.details)}


def _no_run(failure: Failure) -> Diagnostic:
    return note("no_run", failure=failure.code.value, reason=str(failure))


def _failure(each: VariantResult, status: VariantStatus) -> Diagnostic | None:
    if each.session.failure is not None:
        found = failure_of(each.session.failure)
        values = {"failure": found.code.value, "message": found.message, "hint": found.hint}
        return error("failed", **values, failed_runs=each.session.failed_runs)
    return None if status == VariantStatus.MEASURED else error("not_measured")


def _why_no_accuracy(each: VariantResult, plan: ComparisonPlan) -> Diagnostic:
    if not each.session.batches:
        return note("variant_failed")
    return note("accuracy_not_requested") if plan.accuracy is None else note("comparison_aborted")


def _status(each: VariantResult, plan: ComparisonPlan, medians: Medians) -> VariantStatus:
    if not medians:
        return VariantStatus.FAILED
    whole = {size for size, runs in medians.items() if runs}
    is_whole = whole == set(plan.job_of(each.variant).batch_sizes) and each.session.failure is None
    return VariantStatus.MEASURED if is_whole else VariantStatus.PARTLY


def technique_of(each: VariantResult) -> str:
    """Return what distinguishes the variant: its recipe, or its type and framework."""
    spec = each.variant.spec
    alone = _technique_of_one(each, spec)
    return alone if spec.replicas == 1 else f"{spec.replicas} replicas, {alone}"


def _technique_of_one(each: VariantResult, spec: SystemSpec) -> str:
    if spec.combination is not None:
        return spec.combination.technique
    if spec.recipe is not None:
        return parse_recipe(spec.recipe).technique
    if each.session.batches:
        described = each.session.batches[0].description
        return f"{described.dtype} in {described.framework}"
    return f"{spec.dtype or 'default dtype'} in {spec.framework}"


def _batch_figures(
    batch: BatchResult, plan: ComparisonPlan, comparison: Comparison | None, medians: tuple[float, ...]
) -> BatchFigures:
    result, summary = batch.result, batch.result.summary
    names = {"mean_s": "mean", "std_s": "std", "min_s": "minimum", "max_s": "maximum"}
    names |= {"spread": "relative_iqr"}
    figures: dict[str, Any] = {key: getattr(summary, name, None) for key, name in names.items()}
    figures |= {key: batch.estimate(QUANTILES[name]) for name, key in QUANTILE_FIELDS.items()}
    rate = batch.items_per_s
    return BatchFigures(
        batch_size=batch.batch_size,
        launches=len(result.measurements),
        samples=len(result.samples),
        **figures,
        throughput_per_s=_throughput(result, rate),
        host_peak_bytes=batch.host_peak[0],
        host_own_bytes=batch.host_own[0],
        host_baseline_bytes=batch.largest("memory", "host_baseline_bytes"),
        device_peak_bytes=batch.largest("memory", "allocator_peak_bytes"),
        energy_per_sample_j=batch.middle("energy", "energy_per_sample_j"),
        launch_medians_s=medians,
        warnings=batch.warnings,
        disturbed_launches=_disturbed(result),
        target=None if plan.target is None else plan.target.verdict(result),
        speedup=speedup_of(comparison),
        comparison=comparison,
        **_loading(result.measurements),
        series=time_series(batch),
        # Of one call after the other.
        cost_per_million=plan.price_per_hour / 3600 / rate * 1e6 if plan.price_per_hour and rate else None,
        tokens_per_s=_tokens(batch, _throughput(result, rate)),
        device_utilization=_fraction(batch.middle("energy", "utilization_mean_percent")),
        forwarded=batch.description.forwarded,
    )


def _loading(measurements: Sequence[Measurement]) -> dict[str, Any]:
    row = loading_row(measurements)
    p50_ms = row["data_loading_p50_ms"]
    return {
        "data_loading_s": None if p50_ms is None else p50_ms / 1e3,
        "data_loading_share": row["data_loading_share"],
        "io_wait_share": row["io_wait_share"],
    }


_MOST_INTERVALS = 200


def time_series(batch: BatchResult) -> TimeSeries | None:
    """Return the first process run over time; None where it has no starts of samples and no resources."""
    run = next((each for each in batch.launches if each.measurement is not None), None)
    if run is None or run.measurement is None:
        return None
    plain = run.extra.get("series")
    resources = None if plain is None else from_plain(plain, ResourceSeries)
    starts, samples = run.measurement.started_s, run.measurement.samples
    if starts is None or not len(samples):
        return None if resources is None else TimeSeries(resources=resources)
    parts = np.array_split(np.arange(len(samples)), min(len(samples), _MOST_INTERVALS))
    return TimeSeries(
        latency_time_s=tuple(round(float(starts[part].mean()), 3) for part in parts),
        latency_s=tuple(float(np.median(samples[part])) for part in parts),
        resources=resources,
    )


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _tokens(batch: BatchResult, rate: Estimate | None) -> Estimate | None:
    """Return tokens per second of a model whose samples are sequences of tokens."""
    if rate is None or batch.tokens_per_s(rate.value) is None:
        return None
    low, value, high = map(batch.tokens_per_s, (rate.low, rate.value, rate.high))
    return None if value is None else Estimate(low, value, high)


def _disturbed(result: Result) -> int:
    """Return in how many process runs the machine did something else too."""
    device = str((result.description or {}).get("device_type", "cpu"))
    return sum(
        any(each.code in MACHINE_WARNINGS for each in warnings_of(measurement, device))
        for measurement in result.measurements
    )


def _throughput(result: Result, rate: float | None) -> Estimate | None:
    """Return samples per second with the interval of the mean call, from which it is derived."""
    mean, size = result.mean_estimate, result.batch_size
    if rate is None or size is None:
        return None
    own = result.items_per_s
    # One of several replicas was timed. The interval of all has the same relative width.
    replicas = 1.0 if own is None or own == rate else rate / own
    low = None if mean is None or mean.high is None else replicas * size / mean.high
    high = None if mean is None or not mean.low else replicas * size / mean.low
    return Estimate(low, rate, high)


# --- the whole document --------------------------------------------------------------------------

_LARGEST_DISAGREEMENT = 1.2


@dataclass(frozen=True, slots=True)
class MoreFigures:
    """What is known of variants in addition to their times, by name; accuracy, or why there is none.

    `interrupted` is whether more was planned.
    """

    accuracy: Mapping[str, AccuracyFigures | Diagnostic] = field(default_factory=dict)
    layers: Mapping[str, tuple[LayerFigures, ...]] = field(default_factory=dict)
    traffic: TrafficFigures | None = None
    notes: tuple[Diagnostic, ...] = ()
    interrupted: bool = False


def document_of(
    result: ComparisonResult, at: datetime, extra: MoreFigures | None = None
) -> ComparisonDocument:
    """Return the document of a comparison."""
    plan, compared, extra = result.plan, compare_variants(result), extra or MoreFigures()
    environment = _environment(result)
    variants = tuple(variant_figures(each, plan, compared, extra) for each in result.variants)
    quality = quality_axis(variants)
    document = ComparisonDocument(
        name=plan.name,
        timestamp=at.isoformat(timespec="seconds"),
        git_commit=environment.get("revision"),
        environment=environment,
        method=_method(result),
        baseline=plan.baseline.name,
        variants=variants,
        traffic=extra.traffic,
        notes=(
            *([_interrupted(result)] if extra.interrupted else []),
            *extra.notes,
            *_notes(result),
            *_disagreements(variants, plan.baseline.name),
        ),
        quality=quality,
        pareto=pareto(variants, quality.measure),
        summary=ComparisonSummary(note("nothing_measured")),
    )
    found = advise(document)
    return replace(document, summary=found.summary, recommendations=tuple(found.recommendations))


def _disagreements(variants: Sequence[VariantFigures], baseline: str) -> Iterator[Diagnostic]:
    """Yield where the medians of all samples give another speed-up: process runs differ much there."""
    medians = {batch.batch_size: batch.median_s for each in variants if each.name == baseline
               for batch in each.batches}  # fmt: skip
    for variant in variants:
        for batch in variant.batches:
            old, new = medians.get(batch.batch_size), batch.median_s
            if batch.speedup is None or old is None or new is None:
                continue
            pooled, by_run = old.value / new.value, batch.speedup.value
            if max(pooled, by_run) > _LARGEST_DISAGREEMENT * min(pooled, by_run):
                where = {"variant": variant.name, "batch_size": batch.batch_size}
                yield warning("runs_differ", **where, pooled=pooled, by_run=by_run)


def _environment(result: ComparisonResult) -> dict[str, Any]:
    batches = [batch for each in result.variants for batch in each.session.batches]
    found = dict(batches[0].environment) if batches else describe_environment()
    if found.get("threads") is None and batches:
        # This process has not imported the framework: the process runs have.
        threads = batches[0].description.details.get("threads")
        found["threads"] = None if threads is None else int(threads)
    return found


def _method(result: ComparisonResult) -> ComparisonMethod:
    plan, accuracy = result.plan, result.plan.accuracy
    spec = plan.baseline.spec
    return ComparisonMethod(
        launches=plan.launches,
        launches_done=result.runs_done,
        launches_kept=result.kept.total(),
        order="counterbalanced",
        confidence=CONFIDENCE,
        margin=plan.margin,
        accuracy_margin=None if accuracy is None else accuracy.margin,
        seed=plan.seed,
        batch_sizes=tuple(plan.batch_sizes),
        settings=to_plain(plan.measuring),
        data=spec.data,
        dataset=None if accuracy is None else accuracy.data_text,
        device=spec.device,
        target=None if plan.target is None else plan.target.text,
        measured_s=result.measured_s,
        price_per_hour=plan.price_per_hour,
        currency=plan.currency,
    )


def _interrupted(result: ComparisonResult) -> Diagnostic:
    planned = result.plan.launches * len(result.variants)
    return warning("interrupted", runs=result.runs_done, planned=planned, left_out=result.left_out)


def _notes(result: ComparisonResult) -> Iterator[Diagnostic]:
    kept = result.kept.total()
    if kept:
        yield note("restored_runs", restored=kept, runs=result.runs_done)
    if result.is_paired:
        yield from _not_paired(result)
    yield from _not_interleaved(result)
    yield from _not_alike(result)


def _not_paired(result: ComparisonResult) -> Iterator[Diagnostic]:
    """Yield the variants that are compared without some of their process runs, or those of the baseline."""
    old = _rounds(result.baseline)
    for each in result.variants:
        new = _rounds(each)
        if old and new and old != new:
            names = {"baseline": result.baseline.variant.name, "variant": each.variant.name}
            yield warning("not_paired", **names, of_baseline=len(old), runs=len(new), pairs=len(old & new))


def _rounds(each: VariantResult) -> set[int]:
    """Return the numbers of the process runs that have figures."""
    return {number for runs in medians_s(each).values() for number in runs}


def _not_interleaved(result: ComparisonResult) -> Iterator[Diagnostic]:
    """Yield the variants of which other process runs are of an earlier time than of the baseline.

    A comparison that was cut off had made as many of each, or one more.
    """
    baseline = result.baseline
    restored_of_baseline = result.kept[baseline.variant.name]
    for each in result.variants:
        restored = result.kept[each.variant.name]
        if each is not baseline and each.session.batches and abs(restored - restored_of_baseline) > 1:
            names = {"baseline": baseline.variant.name, "variant": each.variant.name}
            counts = {"restored_of_baseline": restored_of_baseline, "restored": restored}
            yield warning("not_interleaved", **names, **counts)


def _not_alike(result: ComparisonResult) -> Iterator[Diagnostic]:
    """Yield what the variants do not have in common besides what is compared."""
    measured = [each for each in result.variants if each.session.batches]
    described = [each.session.batches[0].description for each in measured]
    found: dict[str, list[Any]] = {
        "threads": [each.details.get("threads") for each in described],
        "tf32": [each.details.get("tf32") for each in described],
        "input_shape": [each.input_shape and "x".join(map(str, each.input_shape)) for each in described],
        "device": [each.device for each in described],
        "data": [each.variant.spec.data for each in measured],
        "seed": [each.variant.spec.seed for each in measured],
    }
    for setting, given in found.items():
        different = sorted({str(each) for each in given if each is not None})
        if len(different) > 1:
            yield warning("different_settings", setting=setting, different=different)


def quality_axis(variants: Sequence[VariantFigures]) -> QualityAxis:
    """Return the figure by which the outputs of all measured variants can be ranked."""
    known = [each.accuracy for each in variants if each.accuracy is not None]
    for measure in QualityMeasure:
        if known and all(each.quality(measure) is not None for each in known):
            return QualityAxis(measure, known[0].samples)
    return QualityAxis(None)


def pareto(variants: Sequence[VariantFigures], measure: QualityMeasure | None) -> tuple[ParetoPoint, ...]:
    """Return speed-up and quality of each variant; on the front are those that none beats in both.

    The baseline has a speed-up of 1. A variant without either figure is left out.
    """
    points = []
    for each in variants:
        measured = None if each.speedup is None else each.speedup.value
        speedup = 1.0 if each.verdict == SpeedVerdict.BASELINE else measured
        quality = None if measure is None or each.accuracy is None else each.accuracy.quality(measure)
        if speedup is not None and quality is not None:
            points.append(ParetoPoint(each.name, speedup, quality))
    return tuple(replace(each, on_front=not any(_beats(other, each) for other in points)) for each in points)


def _beats(other: ParetoPoint, point: ParetoPoint) -> bool:
    at_least = other.speedup >= point.speedup and other.quality >= point.quality
    return at_least and (other.speedup > point.speedup or other.quality > point.quality)
