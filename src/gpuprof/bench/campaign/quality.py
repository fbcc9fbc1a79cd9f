# SPDX-License-Identifier: Apache-2.0
"""The answers of all variants of a comparison, held against the baseline's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.bench.campaign.accuracy_document import accuracy_document
from gpuprof.bench.campaign.answers import (
    BATCH_SIZE,
    FailedAnswers,
    compare_answers,
    record_answers,
    reference_spec,
)
from gpuprof.bench.campaign.dataset import Dataset, open_dataset
from gpuprof.bench.campaign.plan import AccuracyPlan, CampaignPlan
from gpuprof.bench.campaign.runner import CampaignResult, CampaignWatcher, file_name
from gpuprof.bench.campaign.stored_answers import StoredAnswers
from gpuprof.bench.metrics import Metric, evaluate_metrics, load_metric
from gpuprof.errors import BenchmarkError

Plain = dict[str, Any]
_REFERENCE = "its float64 copy"


class QualityCheck:
    """Has variants answer a data set. Made before anything is measured, so that bad input ends it then."""

    def __init__(self, plan: CampaignPlan, accuracy: AccuracyPlan, folder: Path) -> None:
        self._plan, self._accuracy, self._folder = plan, accuracy, folder / "answers"
        self._dataset: Dataset = open_dataset(
            accuracy.dataset, samples=accuracy.samples, seed=plan.seed, needs_labels=False
        )
        self._metrics: list[Metric] = [load_metric(text) for text in accuracy.metrics]

    def answers(self, result: CampaignResult, watch: CampaignWatcher) -> dict[str, Plain | str]:
        """Return what was found of each variant that was measured, or why there is nothing."""
        baseline = self._record(result, self._plan.baseline.name, watch)
        found: dict[str, Plain | str] = {}
        if isinstance(baseline, FailedAnswers):
            why = f"the baseline gave no answers: {baseline.reason}"
            return {each.variant.name: why for each in result.variants}
        reference = self._reference(result, watch)
        for each in result.variants:
            name = each.variant.name
            if not each.session.batches:
                found[name] = "it could not be measured"
            elif name == baseline.name:
                found[name] = self._compared(baseline, baseline, None)
            else:
                answers = self._record(result, name, watch)
                if isinstance(answers, FailedAnswers):
                    found[name] = answers.reason
                else:
                    found[name] = self._compared(baseline, answers, reference)
        return found

    def _record(
        self, result: CampaignResult, name: str, watch: CampaignWatcher
    ) -> StoredAnswers | FailedAnswers:
        done, planned = result.launches_done, self._plan.launches * len(result.variants)
        watch(name, done, planned, {"event": "answering"})
        return record_answers(
            name,
            result.of(name).variant.spec,
            self._dataset,
            self._folder / file_name(name),
            batch_size=self._accuracy.batch_size or BATCH_SIZE,
            time_limit_s=self._plan.time_limit_s,
        )

    def _reference(self, result: CampaignResult, watch: CampaignWatcher) -> StoredAnswers | None:
        """Return the answers of the baseline in float64; None where there is no such thing."""
        spec = reference_spec(self._plan.baseline.spec)
        if spec is None or len(result.variants) < 2:
            return None
        watch(_REFERENCE, result.launches_done, result.launches_done, {"event": "answering"})
        found = record_answers(
            _REFERENCE,
            spec,
            self._dataset,
            self._folder / "reference-float64",
            batch_size=self._accuracy.batch_size or BATCH_SIZE,
            time_limit_s=self._plan.time_limit_s,
        )
        return None if isinstance(found, FailedAnswers) else found

    def _compared(
        self, baseline: StoredAnswers, answers: StoredAnswers, reference: StoredAnswers | None
    ) -> Plain | str:
        try:
            comparison = compare_answers(baseline, answers, margin=self._accuracy.margin, reference=reference)
        except BenchmarkError as error:
            return str(error)
        metrics = evaluate_metrics(self._metrics, baseline, answers)
        found = accuracy_document(comparison, metrics=metrics, is_baseline=answers is baseline)
        return "there are none" if found is None else found
