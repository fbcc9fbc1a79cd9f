# SPDX-License-Identifier: Apache-2.0
"""A comparison from its plan to its document: launches, answers, runs."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.accuracy import (
    AccuracyOfAll,
    OnVariantEvent,
    compare_accuracy,
    open_plan_dataset,
)
from gpuprof.bench.compare.document import ComparisonDocument, LayerFigures, TrafficFigures, plain_document
from gpuprof.bench.compare.figures import MoreFigures, document_of
from gpuprof.bench.compare.layers import top_layers
from gpuprof.bench.compare.plan import CampaignPlan
from gpuprof.bench.compare.runner import (
    Campaign,
    CampaignResult,
    Journal,
    file_name,
    mark_finished,
)
from gpuprof.bench.compare.traffic import TrafficSettings, measure_traffic
from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.validation import check_specs
from gpuprof.bench.workers.events import Event, State
from gpuprof.bench.workers.schedule import RunEvent, Watcher, ignore, without_ends
from gpuprof.errors import BenchmarkError, GpuprofError

__all__ = ["Finished", "carry_out", "file_name"]

Plain = dict[str, Any]
REPORT_NAME = "report"


@dataclass(frozen=True, slots=True)
class Finished:
    """The document of what was measured, and whether that is all of it."""

    document: ComparisonDocument
    result: CampaignResult
    interrupted: bool


def carry_out(
    plan: CampaignPlan,
    folder: Path,
    *,
    watch: Watcher = ignore,
    fresh: bool = False,
    resume: bool = False,
) -> Finished:
    """Measure a plan into a folder, compare the answers, and return what was found.

    What an earlier time had measured in the folder and was cut off is kept, unless `fresh`; with `resume`
    what had come to its end is kept too, which `mark_finished` says behind the report. An interrupt ends it
    with what there is. Raises BenchmarkError where the folder cannot be used.
    """
    check_specs((each.name, each.spec) for each in plan.variants)
    plan = _with_shapes(plan)
    campaign = Campaign(plan, folder, watch)
    accuracy = AccuracyOfAll({})
    interrupted = False
    traffic: TrafficFigures | None = None
    why_no_traffic: list[Diagnostic] = []
    with Journal(folder, fresh=fresh, resume=resume).opened() as journal:
        try:
            campaign.run(journal)
            accuracy = _accuracy(campaign, watch)
            traffic, why_no_traffic = _traffic(campaign, watch)
            if traffic is not None and traffic.interrupted:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            interrupted = True
    document = document_of(
        campaign.result,
        datetime.datetime.now().astimezone(),
        MoreFigures(
            accuracy=accuracy.of,
            layers=_layers(campaign.result),
            traffic=traffic,
            notes=(
                *([warning("interrupted")] if interrupted else []),
                *accuracy.notes,
                *why_no_traffic,
            ),
        ),
    )
    return Finished(document, campaign.result, interrupted)


def _with_shapes(plan: CampaignPlan) -> CampaignPlan:
    """Return the plan with the shape of the data set's samples where a variant names none.

    Raises BenchmarkError: hours of measuring must not end at a data set that is not there.
    """
    opened = open_plan_dataset(plan)
    shape = None if opened is None else opened[0].sample_shape
    if shape is None:
        return plan
    variants = tuple(
        each
        if each.spec.input_shape is not None
        else dataclasses.replace(each, spec=dataclasses.replace(each.spec, input_shape=shape))
        for each in plan.variants
    )
    return dataclasses.replace(plan, variants=variants)


def run_comparison(
    plan: CampaignPlan,
    output_dir: str | os.PathLike[str],
    *,
    report: Sequence[str] = ("json",),
    fresh: bool = False,
    resume: bool = False,
) -> Plain:
    """Measure a plan into a folder, write reports there, and return the comparison document.

    `report` are formats of `gpuprof compare --report`; for `fresh` and `resume` see `carry_out`. A variant
    that fails is told in the document. At Ctrl-C the document of what there is, is the argument of the
    KeyboardInterrupt. Raises BenchmarkError.
    """
    from gpuprof.bench.report import FORMATS, check_formats, write_report

    wrong = [each for each in report if each not in FORMATS]
    if wrong:
        raise BenchmarkError(f"{wrong[0]!r} is no format of a report: take {', '.join(FORMATS)}")
    check_formats(report)
    folder = Path(output_dir)
    finished = carry_out(plan, folder, fresh=fresh, resume=resume)
    write_report(finished.document, report, folder, REPORT_NAME)
    if finished.interrupted:
        raise KeyboardInterrupt(plain_document(finished.document))
    mark_finished(folder)
    return plain_document(finished.document)


def _accuracy(campaign: Campaign, watch: Watcher) -> AccuracyOfAll:
    """Compare the answers; what prevents that does not take hours of measuring with it."""
    try:
        return compare_accuracy(campaign.plan, campaign.folder / "answers", _watching(campaign, watch))
    except GpuprofError as error:
        reason = note("no_outputs", reason=str(error))
        return AccuracyOfAll({each.name: reason for each in campaign.plan.variants})


def _watching(campaign: Campaign, watch: Watcher) -> OnVariantEvent:
    def show(variant: str, event: Event) -> None:
        is_predicting = event.state is not State.COMPARING_LAYERS
        shown = dataclasses.replace(event, state=State.PREDICTING) if is_predicting else event
        watch(RunEvent(variant, 1, campaign.result.launches_done, campaign.planned, shown))

    return show


def _traffic(campaign: Campaign, watch: Watcher) -> tuple[TrafficFigures | None, list[Diagnostic]]:
    """Return what two variants that share requests do, and why there is nothing."""
    plan = campaign.plan
    if plan.traffic_split is None:
        return None, []
    other = next(each for each in plan.variants if each is not plan.baseline)
    settings = TrafficSettings(
        split=plan.traffic_split,
        launches=plan.launches,
        batch_size=plan.batch_sizes[0],
        seed=plan.seed,
        margin=plan.margin,
        time_limit_s=plan.time_limit_s,
    )
    try:
        found = measure_traffic(plan.baseline, other, settings, watch=without_ends(watch))
    except GpuprofError as error:
        return None, [warning("no_traffic", reason=str(error))]
    return found.to_document(), []


def _layers(result: CampaignResult) -> dict[str, tuple[LayerFigures, ...]]:
    found: dict[str, tuple[LayerFigures, ...]] = {}
    for each in result.variants:
        if each.run is None:
            continue
        try:
            found[each.variant.name] = top_layers(each.run)
        except GpuprofError as error:
            each.run_unavailable = str(error)
    return found
