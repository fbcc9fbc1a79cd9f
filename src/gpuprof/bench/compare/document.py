# SPDX-License-Identifier: Apache-2.0
"""The comparison document: everything that a report shows, as typed values, and its JSON.

Times are in seconds, sizes in bytes. None is what is unavailable, or what too few samples do not support.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.document_format_1 import upgraded, with_reason_codes
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.measure.resources import ResourceSeries
from gpuprof.bench.results.stored import format_name
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.verdicts import (
    AccuracyVerdict,
    QualityMeasure,
    RolloutAction,
    SpeedVerdict,
    TargetVerdict,
    ToleranceVerdict,
    VariantStatus,
)
from gpuprof.errors import BenchmarkError
from gpuprof.stats.quantiles import Estimate
from gpuprof.stats.ratio_test import Comparison

FORMAT_VERSION = 2
KIND = "comparison"
QUANTILE_FIELDS = {"p50": "median_s", "p90": "p90_s", "p95": "p95_s", "p99": "p99_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """The first process run of a batch size over time: medians of its latency in intervals, and resources.

    `latency_time_s` are the middles of the intervals, in seconds since the warm-up ended.
    """

    latency_time_s: tuple[float, ...] = ()
    latency_s: tuple[float, ...] = ()
    resources: ResourceSeries | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """One variant at one batch size.

    `launches` are the process runs, `launch_medians_s` the medians of those that completed, and
    `disturbed_launches` counts those with a warning about the machine. `device_utilization` is a fraction of
    the time, `forwarded` the fraction of the samples that was forwarded to the large model of a cascade.
    """

    batch_size: int
    launches: int
    samples: int
    median_s: Estimate | None = None
    p90_s: Estimate | None = None
    p95_s: Estimate | None = None
    p99_s: Estimate | None = None
    mean_s: float | None = None
    std_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    spread: float | None = None
    throughput_per_s: Estimate | None = None
    host_peak_bytes: int | None = None
    host_own_bytes: int | None = None
    host_baseline_bytes: int | None = None
    device_peak_bytes: int | None = None
    energy_per_sample_j: float | None = None
    launch_medians_s: tuple[float, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    disturbed_launches: int = 0
    target: TargetVerdict | None = None
    speedup: Estimate | None = None
    comparison: Comparison | None = None
    cost_per_million: float | None = None
    data_loading_s: float | None = None
    data_loading_share: float | None = None
    io_wait_share: float | None = None
    series: TimeSeries | None = None
    tokens_per_s: Estimate | None = None
    device_utilization: float | None = None
    forwarded: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"the batch size {self.batch_size} is below 1")

    @property
    def quantiles(self) -> dict[str, Estimate | None]:
        """The quantiles of a call's time by name."""
        return {name: getattr(self, key) for name, key in QUANTILE_FIELDS.items()}

    @property
    def peak_memory(self) -> tuple[int, str] | None:
        """The peak that counts, and of which memory it is."""
        if self.device_peak_bytes is not None:
            return self.device_peak_bytes, "device"
        if self.host_own_bytes is not None:
            return self.host_own_bytes, "host, model"
        return None if self.host_peak_bytes is None else (self.host_peak_bytes, "host")

    @property
    def verdict(self) -> SpeedVerdict | None:
        """The verdict against the baseline at this batch size; None without a comparison."""
        return None if self.comparison is None else SpeedVerdict(self.comparison.verdict)


@dataclass(frozen=True, slots=True)
class MetricFigures:
    """A figure that the user defined."""

    name: str
    value: float | None
    baseline: float | None
    better: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedClass:
    """A class whose accuracy became lower; `becomes` is the wrong class that is predicted most."""

    name: str
    label: int | None = None
    samples: int | None = None
    baseline: float | None = None
    accuracy: float | None = None
    p_value: float | None = None
    becomes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScores:
    """One class of a variant's predictions; `support` counts the samples that have its label.

    `precision` is None where the class is never predicted.
    """

    name: str
    label: int
    support: int
    precision: float | None
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class ScoreFigures:
    """Accuracy, and the means over the classes of precision, recall and F1."""

    accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyFigures:
    """What a variant computes, compared with the baseline.

    A baseline, which is compared with itself, has no change and no verdict. `new_not_finite` of the NaN and
    infinite values are finite in the baseline; None where unknown. `mse` is the mean squared difference
    from the baseline's outputs; `forwarded` is the fraction that a cascade forwarded to its large model.
    """

    samples: int
    labelled: bool = False
    baseline: ScoreFigures | None = None
    accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    change: Estimate | None = None
    verdict: AccuracyVerdict | None = None
    agreement_top1: float | None = None
    agreement_top5: float | None = None
    cosine: float | None = None
    relative_error: float | None = None
    max_absolute_error: float | None = None
    tolerance: ToleranceVerdict | None = None
    nan: int = 0
    infinity: int = 0
    new_not_finite: int | None = None
    findings: tuple[Diagnostic, ...] = ()
    degraded_classes: tuple[DegradedClass, ...] = ()
    metrics: tuple[MetricFigures, ...] = ()
    mse: float | None = None
    classes: tuple[ClassScores, ...] = ()
    forwarded: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all outputs are numbers."""
        return not (self.nan or self.infinity)

    @property
    def has_new_not_finite(self) -> bool:
        """Whether outputs are NaN or infinite that are numbers in the baseline, or it is not known."""
        return not self.is_finite and self.new_not_finite != 0

    @property
    def has_baselines_not_finite(self) -> bool:
        """Whether outputs are NaN or infinite, and all of them are in the baseline too."""
        return not self.is_finite and self.new_not_finite == 0

    def quality(self, measure: QualityMeasure) -> float | None:
        """Return one of the figures by which variants are ranked."""
        figures = {
            QualityMeasure.ACCURACY: self.accuracy,
            QualityMeasure.AGREEMENT: self.agreement_top1,
            QualityMeasure.COSINE: self.cosine,
        }
        return figures[measure]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigures:
    """One of the layers in which a variant spends its time; times are those of a call.

    `nearest` is the resource with the largest utilization, `bound_share` that utilization.
    """

    name: str
    type: str | None = None
    calls: int | None = None
    self_s: float | None = None
    total_s: float | None = None
    share: float | None = None
    bound: str | None = None
    nearest: str | None = None
    memory_level: str | None = None
    bound_share: float | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """One of the compared variants; `speedup` is over all batch sizes in common with the baseline."""

    name: str
    status: VariantStatus
    failure: Diagnostic | None = None
    model: str | None = None
    framework: str | None = None
    dtype: str | None = None
    recipe: str | None = None
    technique: str = "as it is"
    device: str | None = None
    device_type: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    model_bytes: int | None = None
    parameters: int | None = None
    startup_s: float | None = None
    compile_s: float | None = None
    speedup: Estimate | None = None
    comparison: Comparison | None = None
    verdict: SpeedVerdict | None = None
    batches: tuple[BatchFigures, ...] = ()
    accuracy: AccuracyFigures | None = None
    accuracy_unavailable: Diagnostic | None = None
    layers: tuple[LayerFigures, ...] | None = None
    run: str | None = None
    run_unavailable: Diagnostic | None = None

    def batch(self, batch_size: int) -> BatchFigures | None:
        """Return what was measured of a batch size."""
        return next((each for each in self.batches if each.batch_size == batch_size), None)

    @property
    def lowest_cost(self) -> tuple[float, int] | None:
        """The cost per million at the batch size where it is lowest, and that size."""
        costs = ((each.cost_per_million, each.batch_size) for each in self.batches)
        return min(((cost, size) for cost, size in costs if cost is not None), default=None)

    def quality(self, wanted: QualityMeasure | None) -> tuple[QualityMeasure, float] | None:
        """Return the wanted figure of quality, else the first that is known."""
        for measure in QualityMeasure if wanted is None else (wanted,):
            found = None if self.accuracy is None else self.accuracy.quality(measure)
            if found is not None:
                return measure, found
        return None


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """Speed-up and quality of a variant; on the front no other variant beats it in both."""

    variant: str
    speedup: float
    quality: float
    on_front: bool = False


@dataclass(frozen=True, slots=True)
class QualityAxis:
    """The figure that ranks the outputs of all variants; None where there is none for all of them."""

    measure: QualityMeasure | None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class ComparisonSummary:
    """The result in a sentence, and the recommended variant, None where there is none.

    `by_batch_size` names the recommended variant for each batch size where it is not the same for all.
    """

    headline: Diagnostic
    choice: str | None = None
    by_batch_size: dict[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do next, and why."""

    action: Diagnostic
    reason: Diagnostic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonMethod:
    """How the variants were measured; margins are fractions."""

    launches: int | None = None
    launches_done: int | None = None
    launches_kept: int = 0
    order: str | None = None
    confidence: float | None = None
    margin: float = 0.0
    accuracy_margin: float | None = None
    seed: int | None = None
    batch_sizes: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    dataset: str | None = None
    device: str | None = None
    target: str | None = None
    measured_s: float | None = None
    price_per_hour: float | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficArm:
    """The requests of one variant of shared traffic; times are those of successful ones."""

    variant: str
    share: float | None = None
    requests: int = 0
    failed: int = 0
    failed_share: Estimate | None = None
    first_failure: str | None = None
    p50_s: Estimate | None = None
    p95_s: Estimate | None = None
    p99_s: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRatio:
    """A quantile of the second variant over that of the first; the unit is the process run."""

    figure: str
    launches: int
    margin: float
    verdict: SpeedVerdict
    ratio: Estimate | None = None
    variation_between_launches: float | None = None
    level: float | None = None
    same_p_value: float | None = None

    @property
    def may_be_slower(self) -> bool:
        """Whether the interval does not rule out a slow-down beyond the margin."""
        return self.ratio is None or self.ratio.high is None or self.ratio.high > 1 + self.margin


@dataclass(frozen=True, slots=True)
class TrafficAdvice:
    """What to do with the second variant. `more_launches` None: none are needed, or no number suffices."""

    action: RolloutAction
    text: Diagnostic
    because: tuple[Diagnostic, ...]
    more_launches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFigures:
    """What two variants did that shared requests."""

    variants: tuple[str, str]
    split: tuple[float, float]
    launches: int
    arms: tuple[TrafficArm, TrafficArm]
    figures: tuple[TrafficRatio, ...]
    advice: TrafficAdvice
    settings: dict[str, Any] = field(default_factory=dict)
    confidence: float | None = None
    failure_difference: Estimate | None = None
    launch_ratios: tuple[dict[str, float | None], ...] = ()
    failures: tuple[str, ...] = ()
    interrupted: bool = False
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonDocument:
    """A whole comparison."""

    format: int = FORMAT_VERSION
    kind: str = KIND
    name: str
    timestamp: str
    variants: tuple[VariantFigures, ...]
    baseline: str | None
    method: ComparisonMethod
    quality: QualityAxis
    summary: ComparisonSummary
    environment: dict[str, Any] = field(default_factory=dict)
    git_commit: str | None = None
    pareto: tuple[ParetoPoint, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    traffic: TrafficFigures | None = None
    notes: tuple[Diagnostic, ...] = ()

    def __post_init__(self) -> None:
        names = [each.name for each in self.variants]
        if len(set(names)) < len(names):
            raise ValueError("two variants have the same name")

    def variant(self, name: str | None) -> VariantFigures | None:
        """Return a variant by its name."""
        return next((each for each in self.variants if each.name == name), None)

    @property
    def choice(self) -> VariantFigures | None:
        """The recommended variant."""
        return self.variant(self.summary.choice)

    @property
    def measured(self) -> tuple[VariantFigures, ...]:
        """The variants with any figure."""
        return tuple(each for each in self.variants if each.batches)

    @property
    def by_speedup(self) -> tuple[VariantFigures, ...]:
        """The variants with a speed-up, the fastest first."""
        speedups = {each.name: each.speedup.value for each in self.measured if each.speedup is not None}
        known = (each for each in self.measured if each.name in speedups)
        return tuple(sorted(known, key=lambda each: -speedups[each.name]))

    @property
    def is_finite(self) -> bool:
        """Whether all outputs that are known are numbers."""
        return all(each.accuracy is None or each.accuracy.is_finite for each in self.variants)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that any variant was measured at."""
        return tuple(sorted({each.batch_size for variant in self.variants for each in variant.batches}))

    @property
    def is_priced(self) -> bool:
        """Whether an hour has a price, without which nothing has a cost."""
        return self.method.price_per_hour is not None


# --- JSON ----------------------------------------------------------------------------------------


def plain_document(document: ComparisonDocument) -> dict[str, Any]:
    """Return a document as plain data for JSON, with the text of each fact next to its code and values."""
    plain: dict[str, Any] = with_texts(to_plain(document))
    return plain


def with_texts(plain: Any) -> Any:
    """Return plain data in which each fact has its text."""
    if isinstance(plain, (list, tuple)):
        return [with_texts(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if plain.keys() == {"code", "severity", "values"}:
        return Diagnostic.from_dict(plain).to_dict()
    return {str(key): with_texts(value) for key, value in plain.items()}


def read_document(path: Path) -> ComparisonDocument:
    """Read the JSON of a comparison. Raises BenchmarkError, in one line, for any other file."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise BenchmarkError(
            "cannot_read",
            f"{path} cannot be read ({error.strerror})",
            hint="specify the .json of a comparison",
        ) from error
    except ValueError as error:
        raise BenchmarkError(
            "not_a_comparison",
            f"{path} is not a comparison: {error}",
            hint="specify the .json of gpuprof compare",
        ) from error
    except RecursionError as error:
        raise BenchmarkError(
            "not_a_comparison",
            f"{path} is not a comparison: it is nested too deep",
            hint="specify the .json of gpuprof compare",
        ) from error
    if not isinstance(plain, Mapping) or plain.get("kind") != KIND:
        raise BenchmarkError(
            "not_a_comparison", f"{path} is not a comparison", hint="specify the .json of gpuprof compare"
        )
    return document_from(plain, str(path))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a figure")


def document_from(plain: Mapping[str, Any], where: str = "the comparison") -> ComparisonDocument:
    """Return the document of plain data of this format or of format 1. Raises BenchmarkError."""
    version = plain.get("format")
    if version not in (1, FORMAT_VERSION):
        raise BenchmarkError(
            "unknown_format",
            f"{where} has {format_name(plain)}, and this version reads 1 and {FORMAT_VERSION}",
            hint="compare again, or upgrade gpuprof (pip install --upgrade gpuprof-native)",
        )
    hint = "compare again, or specify the .json of gpuprof compare"
    try:
        plain = with_reason_codes(upgraded(plain) if version == 1 else plain)
    except KeyError as error:
        raise BenchmarkError(
            "damaged", f"{where} is damaged: {error.args[0]!r} is missing", hint=hint
        ) from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BenchmarkError(
            "damaged", f"{where} is damaged: a value has another type ({error})", hint=hint
        ) from error
    return from_plain(plain, ComparisonDocument, where, hint)
