# SPDX-License-Identifier: Apache-2.0
"""The accuracy of all variants: each predicts a data set and is compared with the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.accuracy.locations import plain
from gpuprof.bench.accuracy.metrics import Metric, evaluate_metrics, load_metric
from gpuprof.bench.accuracy.outputs_comparison import OutputComparison
from gpuprof.bench.compare.advice import NOT_ASKED
from gpuprof.bench.compare.answers import (
    BATCH_SIZE,
    FailedAnswers,
    StoredAnswers,
    compare_answers,
    record_answers,
    reference_spec,
)
from gpuprof.bench.compare.layer_job import can_be_compared, layers_that_depart
from gpuprof.bench.compare.plan import CampaignPlan, Variant
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.models.dataset import Dataset, open_dataset
from gpuprof.bench.workers.events import Event, State
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.classes import ClassFigures, Classification, VariantFigures
    from gpuprof.bench.accuracy.metrics import MetricValue
    from gpuprof.bench.accuracy.numerics import Numerics
    from gpuprof.bench.accuracy.outputs_comparison import OutputComparison


OnVariantEvent = Callable[[str, Event], None]
REFERENCE = "float64 reference"


@dataclass(frozen=True, slots=True)
class AccuracyOfAll:
    """For each variant its accuracy as the comparison document has it, or why there is none; and notes."""

    of: dict[str, dict[str, Any] | str]
    notes: tuple[str, ...] = ()


def _ignore(_variant: str, _event: Event) -> None:
    return None


def open_plan_dataset(plan: CampaignPlan) -> tuple[Dataset, tuple[Metric, ...]] | None:
    """Open what a plan compares answers on; None where it compares none.

    Raises BenchmarkError for bad input: call it before hours of measuring.
    """
    if plan.accuracy is None:
        return None
    metrics = tuple(load_metric(each) for each in plan.accuracy.metrics)
    return open_dataset(plan.accuracy.dataset, samples=plan.accuracy.samples, seed=plan.seed), metrics


def compare_accuracy(plan: CampaignPlan, folder: Path, on_event: OnVariantEvent = _ignore) -> AccuracyOfAll:
    """Let each variant of a plan answer its data set, and hold the answers against the baseline's.

    The outputs stay in `folder`. A variant that fails leaves the others be; where the baseline fails there
    is nothing to compare with. Raises BenchmarkError for a data set or metric that cannot be read.
    """
    opened = open_plan_dataset(plan)
    if opened is None:
        return AccuracyOfAll({each.name: NOT_ASKED for each in plan.variants})
    return _AccuracyRun(plan, folder, on_event, *opened).run()


class _AccuracyRun:
    def __init__(
        self,
        plan: CampaignPlan,
        folder: Path,
        on_event: OnVariantEvent,
        dataset: Dataset,
        metrics: tuple[Metric, ...],
    ) -> None:
        assert plan.accuracy is not None
        self._plan, self._accuracy, self._folder = plan, plan.accuracy, folder
        self._on_event, self._dataset, self._metrics = on_event, dataset, metrics
        self._notes: dict[str, None] = {}

    def run(self) -> AccuracyOfAll:
        """Answer with the baseline first: without it the others need not be asked."""
        plan = self._plan
        baseline = self._answered(plan.baseline.name, plan.baseline.spec, self._place(plan.baseline))
        if isinstance(baseline, FailedAnswers):
            reason = f"the baseline {baseline.name} gave no answers"
            others = f"{reason}: {baseline.reason}"
            return AccuracyOfAll(
                {each.name: baseline.reason if each is plan.baseline else others for each in plan.variants}
            )
        reference = self._reference()
        found = {each.name: self._of(each, baseline, reference) for each in plan.variants}
        return AccuracyOfAll(found, tuple(self._notes))

    def _of(
        self, variant: Variant, baseline: StoredAnswers, reference: StoredAnswers | None
    ) -> dict[str, Any] | str:
        is_baseline = variant is self._plan.baseline
        found = baseline if is_baseline else self._answered(variant.name, variant.spec, self._place(variant))
        if isinstance(found, FailedAnswers):
            return found.reason
        try:
            compared = self._compared(baseline, found, reference)
        except (GpuprofError, OSError, MemoryError) as error:
            return str(error) or "there was not enough memory to compare them"
        values = evaluate_metrics(self._metrics, baseline, found)
        told = accuracy_document(compared, metrics=values, is_baseline=is_baseline)
        if told is not None and not is_baseline and _departs(told):
            told["findings"] += self._by_layer(variant)
        return told or "nothing was compared"

    def _by_layer(self, variant: Variant) -> list[str]:
        """Return where a variant departs, where its layers can be told."""
        baseline = self._plan.baseline.spec
        if not can_be_compared(baseline, variant.spec):
            return []
        self._on_event(variant.name, Event(State.COMPARING_LAYERS))
        found, why_not = layers_that_depart(
            baseline, variant.spec, self._dataset, time_limit_s=self._plan.time_limit_s
        )
        if why_not is not None:
            self._notes[f"{variant.name}: {why_not}"] = None
        return found

    def _compared(
        self, baseline: StoredAnswers, found: StoredAnswers, reference: StoredAnswers | None
    ) -> OutputComparison:
        margin = self._accuracy.margin
        compared = compare_answers(baseline, found, margin=margin, reference=reference)
        self._notes |= dict.fromkeys(compared.notes)
        return compared

    def _reference(self) -> StoredAnswers | None:
        """Return the baseline's answers in float64, None where it has no such form or fails in it."""
        spec = reference_spec(self._plan.baseline.spec)
        if spec is None:
            return None
        found = self._answered(REFERENCE, spec, self._folder / "reference")
        if isinstance(found, FailedAnswers):
            self._notes[f"tolerance is not judged: the {REFERENCE} failed: {found.reason}"] = None
            return None
        return found

    def _answered(self, name: str, spec: SystemSpec, folder: Path) -> StoredAnswers | FailedAnswers:
        return record_answers(
            name,
            spec,
            self._dataset,
            folder,
            batch_size=self._accuracy.batch_size or BATCH_SIZE,
            time_limit_s=self._plan.time_limit_s,
            on_event=lambda event: self._on_event(name, event),
        )

    def _place(self, variant: Variant) -> Path:
        # By number: a name may hold what no folder is called.
        return self._folder / f"{self._plan.variants.index(variant):02d}"


def _departs(told: Mapping[str, Any]) -> bool:
    """Whether a variant's answers are worse than its type explains, or not finite."""
    is_worse = told["tolerance"] == "beyond" or told["verdict"] == "lower"
    return is_worse or bool(told["nan"] or told["infinity"])


_FIGURES = ("accuracy", "precision", "recall", "f1")


def accuracy_document(
    comparison: OutputComparison | None,
    *,
    metrics: Sequence[MetricValue] = (),
    is_baseline: bool = False,
) -> dict[str, Any] | None:
    """Return the accuracy of one variant; None where nothing was compared.

    Of several outputs the figures are those of the scores of classes, else of the one with the largest
    relative error. A baseline, which is compared with itself, has no change and no verdict.
    """
    if comparison is None:
        return None
    scores = comparison.classification
    main = _main_output(comparison)
    change = None if scores is None or is_baseline else scores.change
    labelled = scores is not None and scores.change is not None
    not_finite = [each.optimized_not_finite for each in comparison.numerics]
    found: dict[str, Any] = {
        "samples": comparison.samples,
        "labelled": labelled,
        "baseline": _figures(scores.baseline) if scores is not None and labelled else None,
        **_figures(scores.optimized if scores is not None else None),
        "change": None if change is None else {"low": change.low, "value": change.value, "high": change.high},
        "verdict": None if change is None else change.verdict,
        "agreement_top1": None if scores is None else scores.top1_agreement,
        "agreement_top5": None if scores is None else scores.top5_agreement,
        "cosine": main.cosine_mean,
        "relative_error": main.relative_l2,
        "max_absolute_error": main.max_abs_error,
        "tolerance": _tolerance(comparison),
        "nan": sum(each.nan for each in not_finite),
        "infinity": sum(each.infinite for each in not_finite),
        "findings": [*comparison.findings, *(each.note for each in metrics if each.note)],
        "degraded_classes": [] if scores is None else [_degraded(scores, each) for each in scores.degraded],
        "metrics": [
            {"name": each.name, "value": each.value, "baseline": each.baseline, "better": each.better}
            for each in metrics
        ],
    }
    document: dict[str, Any] = plain(found)
    return document


def _main_output(comparison: OutputComparison) -> Numerics:
    if comparison.classification is not None:
        name = comparison.classification.output
        return next(each for each in comparison.numerics if each.name == name)
    return max(comparison.numerics, key=lambda each: -1.0 if each.relative_l2 is None else each.relative_l2)


def _figures(figures: VariantFigures | None) -> dict[str, float | None]:
    return {name: None if figures is None else getattr(figures, name) for name in _FIGURES}


def _tolerance(comparison: OutputComparison) -> str | None:
    """Return the worst verdict over the outputs, None where none was judged."""
    verdicts = {each.verdict for each in comparison.tolerance}
    return next((each for each in ("beyond", "unknown", "within") if each in verdicts), None)


def _degraded(scores: Classification, each: ClassFigures) -> dict[str, Any]:
    return {
        "class": scores.name_of(each.label),
        "label": each.label,
        "samples": each.count,
        "baseline": each.accuracy[0],
        "accuracy": each.accuracy[1],
        "p_value": each.p_value,
        "becomes": None if each.becomes is None else scores.name_of(each.becomes[0]),
    }
