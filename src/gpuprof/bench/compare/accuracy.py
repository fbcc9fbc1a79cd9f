# SPDX-License-Identifier: Apache-2.0
"""The accuracy of all variants: each predicts a data set and is compared with the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.bench.accuracy.metrics import Metric, evaluate_metrics, load_metric
from gpuprof.bench.accuracy.outputs_report import OutputComparison
from gpuprof.bench.compare.document import (
    AccuracyFigures,
    ClassScores,
    DegradedClass,
    MetricFigures,
    ScoreFigures,
)
from gpuprof.bench.compare.layer_job import can_be_compared, diverging_layers
from gpuprof.bench.compare.plan import AccuracyPlan, ComparisonPlan, Variant
from gpuprof.bench.compare.stored_outputs import (
    BATCH_SIZE,
    StoredOutputs,
    compare_stored_outputs,
    record_outputs,
    reference_spec,
)
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.models.data import Dataset, open_dataset
from gpuprof.bench.verdicts import AccuracyVerdict, ToleranceVerdict
from gpuprof.bench.workers.events import Event, State
from gpuprof.errors import GpuprofError
from gpuprof.stats.quantiles import Estimate

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.classes import ClassFigures, Classification, ClassificationFigures
    from gpuprof.bench.accuracy.metrics import MetricValue
    from gpuprof.bench.accuracy.numerics import Numerics


OnVariantEvent = Callable[[str, Event], None]
REFERENCE = "float64 reference"


@dataclass(frozen=True, slots=True)
class AccuracyOfAll:
    """For each variant its accuracy, or why there is none; and notes."""

    of: dict[str, AccuracyFigures | Diagnostic]
    notes: tuple[Diagnostic, ...] = ()


def open_plan_dataset(plan: ComparisonPlan) -> tuple[Dataset, tuple[Metric, ...]] | None:
    """Open what a plan compares outputs on; None where it compares none.

    Raises BenchmarkError for bad input: call it before hours of measuring.
    """
    if plan.accuracy is None:
        return None
    metrics = tuple(load_metric(each) for each in plan.accuracy.metrics)
    asked = plan.accuracy
    dataset = open_dataset(asked.dataset, samples=asked.samples, seed=plan.seed, split=asked.split)
    return dataset, metrics


def compare_accuracy(
    plan: ComparisonPlan, folder: Path, on_event: OnVariantEvent = lambda _variant, _event: None
) -> AccuracyOfAll:
    """Run each variant of a plan on its data set, and compare the outputs with the baseline's.

    The outputs stay in `folder`. A variant that fails does not affect the others; where the baseline fails
    there is nothing to compare with. Raises BenchmarkError for a data set or metric that cannot be read.
    """
    opened = open_plan_dataset(plan)
    if plan.accuracy is None or opened is None:
        not_requested = note("accuracy_not_requested")
        return AccuracyOfAll({each.name: not_requested for each in plan.variants})
    return _AccuracyRun(plan, plan.accuracy, folder, on_event, *opened).run()


class _AccuracyRun:
    def __init__(
        self,
        plan: ComparisonPlan,
        accuracy: AccuracyPlan,
        folder: Path,
        on_event: OnVariantEvent,
        dataset: Dataset,
        metrics: tuple[Metric, ...],
    ) -> None:
        self._plan, self._accuracy, self._folder = plan, accuracy, folder
        self._on_event, self._dataset, self._metrics = on_event, dataset, metrics
        self._notes: list[Diagnostic] = []

    def run(self) -> AccuracyOfAll:
        """Run the baseline first: without it the others are not needed."""
        plan = self._plan
        try:
            baseline = self._outputs(plan.baseline)
        except (GpuprofError, OSError) as error:
            own = note("no_outputs", reason=str(error))
            others = note("no_baseline_outputs", baseline=plan.baseline.name, reason=str(error))
            return AccuracyOfAll(
                {each.name: own if each is plan.baseline else others for each in plan.variants}
            )
        reference = self._reference()
        found = {each.name: self._of(each, baseline, reference) for each in plan.variants}
        return AccuracyOfAll(found, tuple(self._notes))

    def _of(
        self, variant: Variant, baseline: StoredOutputs, reference: StoredOutputs | None
    ) -> AccuracyFigures | Diagnostic:
        is_baseline = variant is self._plan.baseline
        try:
            found = baseline if is_baseline else self._outputs(variant)
            compared = compare_stored_outputs(
                baseline, found, margin=self._accuracy.margin, reference=reference
            )
        except (GpuprofError, OSError, MemoryError) as error:
            return note("no_outputs", reason=str(error) or "there is not enough memory to compare them")
        for each in compared.notes:
            self._add_note(each)
        values = evaluate_metrics(self._metrics, baseline, found)
        figures = replace(
            accuracy_figures(compared, metrics=values, is_baseline=is_baseline),
            forwarded=found.description.forwarded,
        )
        if is_baseline or not _diverges(figures):
            return figures
        return replace(figures, findings=(*figures.findings, *self._by_layer(variant)))

    def _by_layer(self, variant: Variant) -> list[Diagnostic]:
        """Return where a variant diverges, where its layers can be compared."""
        baseline = self._plan.baseline.spec
        if not can_be_compared(baseline, variant.spec):
            return []
        self._on_event(variant.name, Event(State.COMPARING_LAYERS))
        try:
            return diverging_layers(baseline, variant.spec, self._dataset, self._plan.time_limit_s)
        except GpuprofError as error:
            self._add_note(note("no_layers_compared", variant=variant.name, reason=str(error)))
            return []

    def _add_note(self, added: Diagnostic) -> None:
        if added not in self._notes:
            self._notes.append(added)

    def _reference(self) -> StoredOutputs | None:
        """Return the baseline's outputs in float64, None where it has no such form or fails in it."""
        spec = reference_spec(self._plan.baseline.spec)
        if spec is None:
            return None
        try:
            return self._recorded(REFERENCE, spec, self._folder / "reference")
        except (GpuprofError, OSError) as error:
            self._add_note(note("no_reference", reference=REFERENCE, reason=str(error)))
            return None

    def _outputs(self, variant: Variant) -> StoredOutputs:
        # By number: a name may hold what no folder is called.
        folder = self._folder / f"{self._plan.variants.index(variant):02d}"
        return self._recorded(variant.name, variant.spec, folder)

    def _recorded(self, name: str, spec: SystemSpec, folder: Path) -> StoredOutputs:
        return record_outputs(
            name,
            spec,
            self._dataset,
            folder,
            batch_size=self._accuracy.batch_size or BATCH_SIZE,
            time_limit_s=self._plan.time_limit_s,
            on_event=lambda event: self._on_event(name, event),
        )


def _diverges(figures: AccuracyFigures) -> bool:
    """Whether a variant's outputs are worse than its type explains, or newly not finite."""
    is_beyond = figures.tolerance == ToleranceVerdict.BEYOND
    return is_beyond or figures.verdict == AccuracyVerdict.LOWER or figures.has_new_not_finite


_SCORES = ("accuracy", "precision", "recall", "f1")
# These are in `degraded_classes`, with their figures.
_OF_CLASSES = ("degraded_class", "more_degraded_classes")


def accuracy_figures(
    comparison: OutputComparison, *, metrics: Sequence[MetricValue] = (), is_baseline: bool = False
) -> AccuracyFigures:
    """Return the accuracy of one variant.

    Of several outputs the figures are those of the scores of classes, else of the one with the largest
    relative error. A baseline, which is compared with itself, has no change and no verdict.
    """
    scores = comparison.classification
    main = _main_output(comparison)
    change = None if scores is None or is_baseline else scores.change
    labelled = scores is not None and scores.change is not None
    not_finite = [each.optimized_not_finite for each in comparison.numerics]
    findings = [each for each in comparison.findings if each.code not in _OF_CLASSES]
    return AccuracyFigures(
        samples=comparison.samples,
        labelled=labelled,
        baseline=ScoreFigures(**_scores(scores.baseline)) if scores is not None and labelled else None,
        **_scores(None if scores is None else scores.optimized),
        change=None if change is None else Estimate(change.low, change.value, change.high),
        verdict=None if change is None else AccuracyVerdict(change.verdict),
        agreement_top1=None if scores is None else scores.top1_agreement,
        agreement_top5=None if scores is None else scores.top5_agreement,
        cosine=_finite(main.cosine_mean),
        relative_error=_finite(main.relative_l2),
        max_absolute_error=_finite(main.max_abs_error),
        tolerance=_tolerance(comparison),
        nan=sum(each.nan for each in not_finite),
        infinity=sum(each.infinite for each in not_finite),
        new_not_finite=None if is_baseline else sum(each.new_not_finite for each in comparison.numerics),
        findings=(*findings, *(each.problem for each in metrics if each.problem is not None)),
        degraded_classes=() if scores is None else tuple(_degraded(scores, each) for each in scores.degraded),
        metrics=tuple(MetricFigures(each.name, each.value, each.baseline, each.better) for each in metrics),
        mse=_finite(main.mse),
        classes=() if scores is None else tuple(_class_scores(scores, each) for each in scores.per_class),
    )


def _class_scores(scores: Classification, each: ClassFigures) -> ClassScores:
    return ClassScores(
        name=scores.name_of(each.label),
        label=each.label,
        support=each.count,
        precision=each.precision[1],
        recall=each.accuracy[1],
        f1=each.f1[1],
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _main_output(comparison: OutputComparison) -> Numerics:
    if comparison.classification is not None:
        name = comparison.classification.output
        return next(each for each in comparison.numerics if each.name == name)
    return max(comparison.numerics, key=lambda each: -1.0 if each.relative_l2 is None else each.relative_l2)


def _scores(figures: ClassificationFigures | None) -> dict[str, float | None]:
    return {name: None if figures is None else _finite(getattr(figures, name)) for name in _SCORES}


def _tolerance(comparison: OutputComparison) -> ToleranceVerdict | None:
    """Return the worst verdict over the outputs, None where none was judged."""
    verdicts = {each.verdict for each in comparison.tolerance}
    order = (ToleranceVerdict.BEYOND, ToleranceVerdict.UNKNOWN, ToleranceVerdict.WITHIN)
    return next((each for each in order if each in verdicts), None)


def _degraded(scores: Classification, each: ClassFigures) -> DegradedClass:
    return DegradedClass(
        name=scores.name_of(each.label),
        label=each.label,
        samples=each.count,
        baseline=each.accuracy[0],
        accuracy=each.accuracy[1],
        p_value=each.p_value,
        becomes=None if each.becomes is None else scores.name_of(each.becomes[0]),
    )
