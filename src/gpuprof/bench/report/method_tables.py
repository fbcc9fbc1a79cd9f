# SPDX-License-Identifier: Apache-2.0
"""ReportTables of how everything was measured: quantiles, validity, start-up, method and environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument
from gpuprof.bench.messages import title
from gpuprof.bench.report import formatting
from gpuprof.bench.report.tables import (
    MISSING,
    Cell,
    Row,
    Table,
    between,
    figure,
    judged,
    plain_table,
    without_empty_columns,
)

_MOST_ENVIRONMENT = 60
_ORDERS = {"counterbalanced": "random, and reversed in each second round"}


def quantile_table(document: ComparisonDocument) -> Table:
    """Return the quantiles of every measurement."""
    heads = ("Variant", "Batch", "p50", "p90", "p95", "p99", "Mean", f"Target {document.method.target or ''}")
    caption = "Quantiles of every measurement with their intervals."
    return _of_batches(document, caption, heads, _quantiles)


def _quantiles(batch: BatchFigures) -> Iterator[Cell]:
    for name, found in batch.quantiles.items():
        short = Cell(formatting.missing_quantile(batch, name), tone="missing")
        yield short if found is None else between(found, formatting.time)
    yield figure(batch.mean_s, formatting.time)
    yield judged(batch.target)


def validity_table(document: ComparisonDocument) -> Table:
    """Return the samples behind each figure, and the warnings about it."""
    heads = (
        "Variant", "Batch", "Process runs", "Samples", "Deviation", "Shortest", "Longest", "Relative IQR",
        "Energy a sample", "Warnings",
    )  # fmt: skip
    caption = (
        "The samples of every measurement. Relative IQR: the middle half of the samples over their median."
    )
    return _of_batches(document, caption, heads, _validity)


def _of_batches(
    document: ComparisonDocument,
    caption: str,
    heads: tuple[str, ...],
    cells_of: Callable[[BatchFigures], Iterator[Cell]],
) -> Table:
    rows = []
    for variant in document.variants:
        for batch in variant.batches:
            first = (Cell(variant.name), Cell(str(batch.batch_size), value=batch.batch_size))
            rows.append(
                Row((*first, *cells_of(batch)), variant.name, variant.name == document.summary.choice)
            )
    return without_empty_columns(Table(caption, heads, tuple(rows)))


def _validity(batch: BatchFigures) -> Iterator[Cell]:
    yield Cell(f"{batch.launches:,}", value=batch.launches)
    yield Cell(f"{batch.samples:,}", value=batch.samples)
    yield from (figure(value, formatting.time) for value in (batch.std_s, batch.min_s, batch.max_s))
    yield figure(batch.spread, formatting.relative_iqr)
    yield figure(batch.energy_per_sample_j, formatting.energy)
    yield Cell(", ".join(dict.fromkeys(title(each.code) for each in batch.warnings)) or "none")


def start_table(document: ComparisonDocument) -> Table | None:
    """Return what a variant takes until its first inference, and its size."""
    heads = ("Variant", "Start to first inference", "Compiling", "Model size", "Parameters", "Device", "Run")
    rows = [
        Row(
            (
                Cell(each.name),
                figure(each.startup_s, formatting.time), figure(each.compile_s, formatting.time),
                figure(each.model_bytes, formatting.size), figure(each.parameters, formatting.count),
                Cell(each.device) if each.device else MISSING, Cell(each.run) if each.run else MISSING,
            ),
            each.name,
        )
        for each in document.measured
    ]  # fmt: skip
    table = without_empty_columns(
        Table("What a variant takes before its first inference.", heads, tuple(rows))
    )
    return table if rows and len(table.heads) > 1 else None


def method_table(document: ComparisonDocument) -> Table:
    """Return how it was measured, and where."""
    method = document.method
    facts = {
        "process runs of each variant": method.launches,
        "process runs made": method.launches_done,
        "of these from an earlier time": method.launches_kept or None,
        "order": _ORDERS.get(method.order or "", method.order),
        "confidence of intervals": method.confidence,
        "equivalence margin of times": method.margin,
        "equivalence margin of accuracy": method.accuracy_margin,
        "batch sizes": method.batch_sizes or None,
        "inputs of the timing": method.data,
        "outputs compared on": method.dataset,
        "target": method.target,
        "device": method.device,
        "seed": method.seed,
        "measuring took": method.measured_s,
        f"price of an hour ({method.currency})": method.price_per_hour,
    }
    # What was not requested is not unavailable.
    facts = {name: value for name, value in facts.items() if value is not None}
    facts |= {
        "baseline": document.baseline,
        "measured at": document.timestamp,
        "git revision": document.git_commit,
    }
    rows = [
        (Cell(name), plain_cell(value, "_s" if name == "measuring took" else ""))
        for name, value in facts.items()
    ]
    return plain_table("How it was measured.", ("What", "Value"), rows, word_columns=2)


def environment_table(document: ComparisonDocument) -> Table | None:
    """Return the machine and the versions; None where the document holds none."""
    rows = []
    for name, value in document.environment.items():
        if isinstance(value, Mapping):
            rows += [(Cell(f"{name}: {key}"), plain_cell(each)) for key, each in value.items()]
        else:
            rows.append((Cell(str(name).removesuffix("_bytes").replace("_", " ")), plain_cell(value, name)))
    shown = rows[:_MOST_ENVIRONMENT]
    return (
        plain_table("Environment and versions.", ("What", "Value"), shown, word_columns=2) if rows else None
    )


def plain_cell(value: object, name: str = "") -> Cell:
    """Return any plain value as a cell; the unit is at the end of its name."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return _plain_number(value, name)
    if isinstance(value, list | tuple):
        return Cell(", ".join(str(each) for each in value) or "none")
    return Cell(str(value))


def _plain_number(value: float, name: str) -> Cell:
    if name.endswith("_bytes"):
        return Cell(formatting.size(value), value=value)
    if name.endswith("_s"):
        return Cell(formatting.time(value), value=value)
    return Cell(f"{value:,}" if isinstance(value, int) else formatting.number(value), value=value)
