# SPDX-License-Identifier: Apache-2.0
"""A comparison from its plan to its document: process runs, outputs, recorded runs."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.analyze.call_tree import load_tree
from gpuprof.analyze.ceilings.of_run import add_ceilings
from gpuprof.analyze.roofline.build import build_roofline
from gpuprof.analyze.summary import summarize
from gpuprof.bench.compare.accuracy import AccuracyOfAll, compare_accuracy, open_plan_dataset
from gpuprof.bench.compare.document import ComparisonDocument, LayerFigures, TrafficFigures, plain_document
from gpuprof.bench.compare.figures import MoreFigures, document_of
from gpuprof.bench.compare.plan import ComparisonPlan, Variant
from gpuprof.bench.compare.runner import ComparisonResult, ComparisonRun, Journal, mark_finished
from gpuprof.bench.compare.traffic import TrafficSettings, measure_traffic
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.failures import failure_of
from gpuprof.bench.validation import check_specs
from gpuprof.bench.workers.events import Event, State
from gpuprof.bench.workers.job import CALL
from gpuprof.bench.workers.schedule import RunEvent, Watcher, ignore, without_ends
from gpuprof.errors import GpuprofError, RunError
from gpuprof.run.folder import RunFolder

REPORT_NAME = "report"
_SHOWN_LAYERS = 8


@dataclass(frozen=True, slots=True)
class Finished:
    """The document of what was measured, and whether that is all of it."""

    document: ComparisonDocument
    interrupted: bool


def carry_out(
    plan: ComparisonPlan,
    folder: Path,
    *,
    watch: Watcher = ignore,
    fresh: bool = False,
    resume: bool = False,
) -> Finished:
    """Measure a plan into a folder, compare the outputs, and return what was found.

    What was measured in the folder before and was cut off is kept, unless `fresh`; with `resume` what had
    completed is kept too, which `mark_finished` notes after the report. An interrupt ends it with what there
    is. Raises BenchmarkError where the folder cannot be used.
    """
    check_specs((each.name, each.spec) for each in plan.variants)
    plan = _with_shapes(plan)
    comparison = ComparisonRun(plan, folder, watch)
    accuracy = AccuracyOfAll({})
    traffic: TrafficFigures | None = None
    notes: list[Diagnostic] = []
    interrupted = False
    with Journal(folder, fresh=fresh, resume=resume).opened() as journal:
        try:
            comparison.run(journal)
            accuracy = _accuracy(comparison, watch)
            try:
                traffic = _traffic(plan, watch)
            except GpuprofError as error:
                notes.append(warning("no_traffic", reason=str(error)))
            interrupted = traffic is not None and traffic.interrupted
        except KeyboardInterrupt:
            interrupted = True
            comparison.leave_out_interrupted_round()
    extra = MoreFigures(
        accuracy=accuracy.of,
        layers=_layers(comparison.result),
        traffic=traffic,
        notes=(*accuracy.notes, *notes, *_script_notes(comparison.result)),
        interrupted=interrupted,
    )
    document = document_of(comparison.result, datetime.datetime.now().astimezone(), extra)
    return Finished(document, interrupted)


def _with_shapes(plan: ComparisonPlan) -> ComparisonPlan:
    """Return the plan with the shape of the data set's samples where a variant names none.

    Raises BenchmarkError: hours of measuring must not end at a data set that is not there.
    """
    opened = open_plan_dataset(plan)
    shape = None if opened is None else opened[0].sample_shape
    if shape is None:
        return plan
    variants = tuple(dataclasses.replace(each, spec=_with_shape(each.spec, shape)) for each in plan.variants)
    return dataclasses.replace(plan, variants=variants)


def _with_shape(spec: SystemSpec, shape: tuple[int, ...]) -> SystemSpec:
    """Return a spec, and its parts, with a shape of the inputs where they have none."""
    combination = spec.combination
    if combination is not None:
        parts = tuple(_with_shape(part, shape) for part in combination.parts)
        combination = dataclasses.replace(combination, parts=parts)
    return dataclasses.replace(spec, input_shape=spec.input_shape or shape, combination=combination)


def run_comparison(
    plan: ComparisonPlan | Mapping[str, object],
    output_dir: str | os.PathLike[str],
    *,
    report: Sequence[str] = ("json",),
    fresh: bool = False,
    resume: bool = False,
) -> dict[str, Any]:
    """Measure a plan into a folder, write reports there, and return the comparison document.

    `plan` may be a mapping of names to models, each as `Variant` takes it; the first one is the baseline.
    `report` are formats of `gpuprof compare --report`; for `fresh` and `resume` see `carry_out`. The failure
    of a variant is in the document. At Ctrl-C the document of what there is, is the argument of the
    KeyboardInterrupt. Raises BenchmarkError.
    """
    from gpuprof.bench.report import check_formats, write_report

    check_formats(report)
    if isinstance(plan, Mapping):
        plan = ComparisonPlan(tuple(Variant(name, model) for name, model in plan.items()))
    folder = Path(output_dir)
    finished = carry_out(plan, folder, fresh=fresh, resume=resume)
    write_report(finished.document, report, folder, REPORT_NAME)
    if finished.interrupted:
        raise KeyboardInterrupt(plain_document(finished.document))
    mark_finished(folder)
    return plain_document(finished.document)


def _accuracy(comparison: ComparisonRun, watch: Watcher) -> AccuracyOfAll:
    """Compare the outputs; what prevents that does not take hours of measuring with it."""

    def show(variant: str, event: Event) -> None:
        is_predicting = event.state is not State.COMPARING_LAYERS
        shown = dataclasses.replace(event, state=State.PREDICTING) if is_predicting else event
        watch(RunEvent(variant, 1, comparison.result.runs_done, comparison.planned, shown))

    try:
        return compare_accuracy(comparison.plan, comparison.folder / "answers", show)
    except GpuprofError as error:
        reason = note("no_outputs", reason=str(error))
        return AccuracyOfAll({each.name: reason for each in comparison.plan.variants})


def _traffic(plan: ComparisonPlan, watch: Watcher) -> TrafficFigures | None:
    """Return the figures of an A/B test in one process; None where it is not wanted."""
    if plan.traffic_split is None:
        return None
    other = next(each for each in plan.variants if each is not plan.baseline)
    settings = TrafficSettings(
        split=plan.traffic_split,
        launches=plan.launches,
        batch_size=plan.batch_sizes[0],
        seed=plan.seed,
        margin=plan.margin,
        time_limit_s=plan.time_limit_s,
    )
    return measure_traffic(plan.baseline, other, settings, watch=without_ends(watch)).to_document()


# --- layers of recorded runs ---------------------------------------------------------------------


def _layers(result: ComparisonResult) -> dict[str, tuple[LayerFigures, ...]]:
    found: dict[str, tuple[LayerFigures, ...]] = {}
    for each in result.variants:
        if each.run is None:
            continue
        try:
            found[each.variant.name] = _top_layers(RunFolder(each.run))
        except GpuprofError as error:
            each.run_unavailable = failure_of(error)
    return found


def _script_notes(result: ComparisonResult) -> list[Diagnostic]:
    """Return a note for each recorded variant whose only layer is the program itself."""
    recorded = [each for each in result.variants if each.run is not None and each.session.batches]
    return [
        note("no_layers_in_script", variant=each.variant.name)
        for each in recorded
        if each.session.batches[0].description.framework == "torchscript"
    ]


def _top_layers(run: RunFolder) -> tuple[LayerFigures, ...]:
    """Return the layers with the largest self time; times are those of a call. Raises RunError."""
    tree = load_tree(run)
    rows = summarize(tree, "layer").rows[:_SHOWN_LAYERS]
    recorded = next((row.calls for row in summarize(tree, "span").rows if row.name == CALL), 1)
    bounds = _bounds(run) if rows else {}
    return tuple(
        LayerFigures(
            name=row.name,
            calls=row.calls,
            self_s=row.own_ns / recorded / 1e9,
            total_s=row.total_ns / recorded / 1e9,
            share=row.share,
            **bounds.get(row.name, {}),
        )
        for row in rows
    )


def _bounds(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the bottleneck of each layer; nothing where it is unknown, as for a model without modules."""
    work = run.meta.get("work")
    if not work:
        return {}
    try:
        add_ceilings(run.path, work)
        found = build_roofline(RunFolder(run.path))
    except RunError:
        return {}
    return {
        row.layer: {
            "bound": row.bound.value,
            "nearest": None if row.nearest is None else row.nearest.value,
            "memory_level": row.memory_level,
            "bound_share": row.roof_share,
            "evidence": row.evidence_text,
        }
        for row in found.layers
    }
