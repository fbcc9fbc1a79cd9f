# SPDX-License-Identifier: Apache-2.0
"""ReportTables of the outputs: accuracy, metrics, layers, and the variants that failed."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.bench.compare.document import (
    AccuracyFigures,
    ComparisonDocument,
    LayerFigures,
    VariantFigures,
)
from gpuprof.bench.facts import note
from gpuprof.bench.messages import message
from gpuprof.bench.report import formatting
from gpuprof.bench.report.tables import (
    BASELINE,
    MISSING,
    Cell,
    Row,
    Table,
    between,
    figure,
    judged,
    named,
    without_empty_columns,
)
from gpuprof.bench.verdicts import AccuracyVerdict, VariantStatus

_SHARES = {
    "accuracy": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1",
    "agreement_top1": "Top-1 agreement",
    "agreement_top5": "Top-5 agreement",
}
_NUMBERS = {"cosine": "Cosine", "relative_error": "Relative error", "max_absolute_error": "Largest error"}


def quality_table(document: ComparisonDocument) -> Table:
    """Return the quality of each variant's outputs."""
    heads = (
        "Variant",
        *_SHARES.values(),
        "Change",
        "Verdict",
        *_NUMBERS.values(),
        "Tolerance",
        "NaN",
        "Infinite",
    )
    rows = [
        Row(
            (named(each), *_quality_cells(each.accuracy, each.name == document.baseline)),
            each.name,
            each.name == document.summary.choice,
        )
        for each in document.variants
        if each.status != VariantStatus.FAILED or each.accuracy is not None
    ]
    caption = "Quality of the outputs. The change is against the baseline, in percentage points (pp)."
    table = Table(caption, heads, tuple(rows))
    # Columns of zeros take the room of what matters; a line says so instead.
    finite = all(each.accuracy.is_finite for each in document.variants if each.accuracy is not None)
    return without_empty_columns(_without_last(table, 2) if finite else table)


def _without_last(table: Table, columns: int) -> Table:
    rows = tuple(Row(row.cells[:-columns], row.variant, row.is_choice) for row in table.rows)
    return Table(table.caption, table.heads[:-columns], rows, table.word_columns)


def _quality_cells(accuracy: AccuracyFigures | None, is_baseline: bool) -> Iterator[Cell]:
    if accuracy is None:
        yield from [MISSING] * (len(_SHARES) + len(_NUMBERS) + 5)
        return
    yield from (figure(getattr(accuracy, name), formatting.share) for name in _SHARES)
    if is_baseline and accuracy.change is None:
        yield from (BASELINE, BASELINE)
    else:
        yield between(accuracy.change, formatting.points)
        is_same = accuracy.verdict == AccuracyVerdict.SAME
        yield Cell("same") if is_same else judged(accuracy.verdict)
    yield from (figure(getattr(accuracy, name), formatting.number) for name in _NUMBERS)
    yield judged(accuracy.tolerance)
    for count in (accuracy.nan, accuracy.infinity):
        yield Cell(f"{count:,}", value=count, tone="bad" if count else "")


def metric_table(document: ComparisonDocument) -> Table | None:
    """Return the figures that the user defined; None where there are none."""
    rows = []
    for variant in document.variants:
        for metric in variant.accuracy.metrics if variant.accuracy is not None else ():
            cells = [
                Cell(metric.name),
                figure(metric.value, formatting.number),
                figure(metric.baseline, formatting.number),
            ]
            cells.append(Cell(metric.better))
            rows.append(Row((named(variant), *cells), variant.name))
    heads = ("Variant", "Metric", "Value", "Baseline", "Better")
    return Table("Your metrics.", heads, tuple(rows), word_columns=2) if rows else None


def quality_lines(document: ComparisonDocument) -> list[str]:
    """Return the findings about outputs, and why there are no figures where there are none."""
    lines = []
    for variant in document.variants:
        accuracy = variant.accuracy
        if accuracy is None:
            if variant.status != VariantStatus.FAILED:
                lines.append(f"{variant.name}: {formatting.UNAVAILABLE} ({why_no_accuracy(variant)})")
            continue
        name = f"{variant.name} (failed)" if variant.status == VariantStatus.FAILED else variant.name
        lines += [f"{name}: {line}" for line in map(message, accuracy.findings)]
        if accuracy.degraded_classes:
            classes = "; ".join(map(formatting.degraded_class, accuracy.degraded_classes))
            lines.append(f"{name}: classes with lower accuracy: {classes}")
    known = [each.accuracy for each in document.variants if each.accuracy is not None]
    if known and all(each.is_finite for each in known):
        lines.append("the outputs of all variants are finite")
    return lines


def why_no_accuracy(variant: VariantFigures) -> str:
    """Return why the outputs of a variant were not compared."""
    return message(variant.accuracy_unavailable or note("no_dataset"))


def layer_table(document: ComparisonDocument) -> Table | None:
    """Return the top layers of each variant with their bottleneck."""
    rows = [
        Row(
            (
                Cell(variant.name), Cell(layer.name), Cell(layer.type) if layer.type else MISSING,
                figure(layer.share, formatting.share), figure(layer.self_s, formatting.time),
                _bound(layer),
                Cell(layer.evidence) if layer.evidence else MISSING,
            ),
            variant.name,
        )
        for variant in document.variants
        for layer in variant.layers or ()
    ]  # fmt: skip
    heads = ("Variant", "Layer", "Class", "Self time in percent", "Self time in a call", "Bound", "Evidence")
    caption = "The layers with the largest self time in a recorded call, and their bottlenecks."
    return without_empty_columns(Table(caption, heads, tuple(rows), word_columns=2)) if rows else None


def _bound(layer: LayerFigures) -> Cell:
    text = formatting.bound(layer)
    if text is None:
        return MISSING
    return Cell(
        text, "" if layer.bound_share is None else f"{formatting.share(layer.bound_share)} of the ceiling"
    )


def failure_table(document: ComparisonDocument) -> Table | None:
    """Return the variants that failed completely or in part, with the reason."""
    rows = [
        Row(
            (
                Cell(each.name),
                Cell(each.technique),
                Cell(_how_far(each)),
                Cell(formatting.reason(each.failure)),
            ),
            each.name,
        )
        for each in document.variants
        if each.status != VariantStatus.MEASURED or each.failure is not None
    ]
    caption = "Variants that could not be measured completely."
    return Table(caption, ("Variant", "Technique", "State", "Reason"), tuple(rows), 4) if rows else None


def _how_far(variant: VariantFigures) -> str:
    if not variant.batches:
        return "failed: nothing was measured"
    sizes = tuple(each.batch_size for each in variant.batches)
    return f"{variant.status}: {formatting.in_batches(sizes)} measured"
