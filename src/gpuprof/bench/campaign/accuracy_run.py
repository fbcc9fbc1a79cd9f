# SPDX-License-Identifier: Apache-2.0
"""The accuracy of all variants of a comparison: each answers a data set and is held against the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.accuracy.outputs_comparison import OutputComparison
from gpuprof.bench.campaign.accuracy_document import accuracy_document
from gpuprof.bench.campaign.answers import (
    BATCH_SIZE,
    FailedAnswers,
    compare_answers,
    record_answers,
    reference_spec,
)
from gpuprof.bench.campaign.dataset import Dataset, open_dataset
from gpuprof.bench.campaign.layer_check import can_be_compared, layers_that_depart
from gpuprof.bench.campaign.plan import CampaignPlan, Variant
from gpuprof.bench.campaign.quality import NOT_ASKED
from gpuprof.bench.campaign.stored_answers import StoredAnswers
from gpuprof.bench.metrics import Metric, evaluate_metrics, load_metric
from gpuprof.bench.process import Event
from gpuprof.bench.spec import SystemSpec
from gpuprof.errors import GpuprofError

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
        self._on_event(variant.name, {"event": "comparing layers"})
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
