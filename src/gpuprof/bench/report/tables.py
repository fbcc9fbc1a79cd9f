# SPDX-License-Identifier: Apache-2.0
"""The tables of a comparison: cells with their text and the exact figure, for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument, VariantFigures
from gpuprof.bench.facts import TextEnum
from gpuprof.bench.report import formatting
from gpuprof.bench.report.formatting import Quantity
from gpuprof.bench.verdicts import QualityMeasure, VariantStatus
from gpuprof.stats.quantiles import Estimate

Write = Callable[[float], str]


_WORD_HEADS = frozenset(("Bound", "Class", "Evidence", "Warnings", "Device", "Run"))


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `value` is the document's figure as it is, `note` a quieter second line."""

    text: str
    note: str = ""
    value: float | None = None
    tone: str = ""
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `variant` names the one that it belongs to, for its colour."""

    cells: tuple[Cell, ...]
    variant: str | None = None
    is_choice: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first `words` columns hold words and lean to the left."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    word_columns: int = 1

    def is_words(self, place: int) -> bool:
        """Say whether a column holds words, which lean to the left."""
        return place < self.word_columns or self.heads[place] in _WORD_HEADS


MISSING = Cell(formatting.UNAVAILABLE, tone="missing")
BASELINE = Cell("baseline")
_TONES = {
    "faster": "good",
    "higher": "good",
    "slower": "bad",
    "lower": "bad",
    "beyond": "bad",
    "missed": "bad",
    "met": "good",
    "failed": "bad",
}


def figure(value: float | None, write: Write, note: str = "") -> Cell:
    """Return a figure, or the word for none."""
    return MISSING if value is None else Cell(write(value), note, value)


def between(found: Estimate | None, write: Quantity) -> Cell:
    """Return a figure with its interval below it."""
    if found is None:
        return MISSING
    return Cell(write(found.value), write.interval(found) or "no interval", found.value)


def named(variant: VariantFigures) -> Cell:
    """Return the name of a variant, with a note where it failed."""
    return Cell(variant.name, "failed" if variant.status == VariantStatus.FAILED else "")


def judged(verdict: TextEnum | None) -> Cell:
    """Return a verdict."""
    if verdict is None:
        return MISSING
    return Cell(formatting.verdict(verdict), tone=_TONES.get(str(verdict), ""))


def without_empty_columns(table: Table) -> Table:
    """Leave out the columns in which nothing is available; the method says so once."""
    kept = [
        place
        for place in range(len(table.heads))
        if place < table.word_columns or any(row.cells[place] != MISSING for row in table.rows)
    ]
    rows = tuple(
        Row(tuple(row.cells[place] for place in kept), row.variant, row.is_choice) for row in table.rows
    )
    return Table(table.caption, tuple(table.heads[place] for place in kept), rows, table.word_columns)


class ReportTables:
    """The tables of one document."""

    def __init__(self, document: ComparisonDocument) -> None:
        self._document = document
        speedups = [each.speedup.value for each in document.variants if each.speedup is not None]
        self._best = max([1.0, *speedups])

    def variants(self) -> Table:
        """One row a variant: what decides between them."""
        quality = str(self._document.quality.measure or "quality")
        heads = (
            "Variant", "Speed-up", "Verdict", quality.capitalize(), "Change", "Model size",
            "Peak memory", f"Cost per million ({self._document.method.currency})",
        )  # fmt: skip
        rows = tuple(
            self._row(variant, self._kind(variant), self._variant_cells(variant))
            for variant in self._document.variants
        )
        sizes = self._document.batch_sizes
        over = "" if not sizes else f" at batch size {sizes[0]}"
        over = over if len(sizes) < 2 else ": the geometric mean over the batch sizes that both have"
        caption = f"One row per variant. Speed-up is over the baseline{over}."
        return without_empty_columns(Table(caption, heads, rows))

    def _variant_cells(self, variant: VariantFigures) -> tuple[Cell, ...]:
        if variant.status == VariantStatus.FAILED:
            judgement = [Cell("failed", tone="bad")] * 2
        else:
            judgement = [self._speedup_cell(variant), judged(variant.verdict)]
        return (
            *judgement,
            self._quality_cell(variant),
            self._change_cell(variant),
            figure(variant.model_bytes, formatting.size),
            self._most_memory(variant),
            self._cost_cell(variant),
        )

    def _row(self, variant: VariantFigures, notes: Sequence[str | None], cells: Sequence[Cell]) -> Row:
        is_baseline = variant.name == self._document.baseline
        note = ", ".join(filter(None, ("baseline" if is_baseline else None, *notes)))
        is_choice = variant.name == self._document.summary.choice
        return Row((Cell(variant.name, note), *cells), variant.name, is_choice)

    @staticmethod
    def _kind(variant: VariantFigures) -> list[str | None]:
        more = (each for each in (variant.dtype, variant.framework) if each and each not in variant.technique)
        return [
            variant.technique,
            *more,
            "partly measured" if variant.status == VariantStatus.PARTLY else None,
        ]

    def _speedup_cell(self, variant: VariantFigures) -> Cell:
        if variant.name == self._document.baseline and variant.speedup is None:
            return BASELINE
        cell = between(variant.speedup, formatting.ratio)
        share = None if cell.value is None else cell.value / self._best
        return Cell(cell.text, cell.note, cell.value, cell.tone, share)

    def _quality_cell(self, variant: VariantFigures) -> Cell:
        found = formatting.quality_of(variant, self._document)
        if found is None:
            return MISSING
        value, measure = found
        note = "" if measure == self._document.quality.measure else str(measure)
        is_cosine = measure == QualityMeasure.COSINE
        return figure(value, formatting.number if is_cosine else formatting.share, note)

    def _change_cell(self, variant: VariantFigures) -> Cell:
        accuracy = variant.accuracy
        if accuracy is None or accuracy.change is None:
            is_baseline = accuracy is not None and variant.name == self._document.baseline
            return BASELINE if is_baseline else MISSING
        cell = between(accuracy.change, formatting.points)
        return Cell(cell.text, cell.note, cell.value, _TONES.get(str(accuracy.verdict), ""))

    def _most_memory(self, variant: VariantFigures) -> Cell:
        told = [found for each in variant.batches if (found := formatting.peak_memory(each)) is not None]
        if not told:
            return MISSING
        value, kind = max(told)
        return Cell(formatting.size(value), kind, value)

    def _cost_cell(self, variant: VariantFigures) -> Cell:
        found = formatting.lowest_cost(variant)
        return (
            MISSING
            if found is None
            else Cell(formatting.number(found[0]), f"batch size {found[1]}", found[0])
        )

    # --- by batch size ---------------------------------------------------------------------------

    def by_batch(self, caption: str, cell_of: Callable[[BatchFigures], Cell]) -> Table:
        """Return a row for each variant with a column for each batch size."""
        sizes = self._document.batch_sizes
        heads = ("Variant", *(f"Batch {size}" for size in sizes))
        rows = []
        for variant in self._document.measured:
            batches = [variant.batch(size) for size in sizes]
            cells = [
                Cell("not measured", tone="missing") if each is None else cell_of(each) for each in batches
            ]
            rows.append(self._row(variant, (), cells))
        return Table(caption, heads, tuple(rows))

    def latency(self) -> Table:
        """Medians with intervals."""
        return self.by_batch("Median latency with its interval.", _median_cell)

    def throughput(self) -> Table:
        """Throughput with intervals."""
        return self.by_batch(
            "Throughput in samples per second, with its interval.",
            lambda batch: between(batch.throughput_per_s, formatting.rate),
        )

    def memory(self) -> Table:
        """Peak memory."""

        def cell(batch: BatchFigures) -> Cell:
            found = formatting.peak_memory(batch)
            return MISSING if found is None else Cell(formatting.size(found[0]), found[1], found[0])

        return self.by_batch("Peak memory, of the device where it is known, else of the host.", cell)

    def cost(self) -> Table:
        """Cost per million inferences."""
        return self.by_batch(
            f"Cost per million inferences in {self._document.method.currency}.",
            lambda batch: figure(batch.cost_per_million, formatting.number),
        )

    def techniques(self) -> Table:
        """Speed-up over the whole and by batch size, the fastest first."""
        sizes = self._document.batch_sizes
        heads = ("Technique", "Variant", "Speed-up", "Verdict", *(f"Batch {size}" for size in sizes))
        told = sorted(
            (each for each in self._document.measured if each.speedup is not None),
            key=lambda each: -(each.speedup.value if each.speedup else 0),
        )
        rows = []
        for variant in told:
            cells = [Cell(variant.technique), Cell(variant.name)]
            cells += [between(variant.speedup, formatting.ratio), judged(variant.verdict)]
            cells += [_speedup_of(variant, size, self._document.baseline) for size in sizes]
            rows.append(Row(tuple(cells), variant.name, variant.name == self._document.summary.choice))
        caption = "Speed-up over the baseline with its interval, over all batch sizes and at each."
        return without_empty_columns(Table(caption, heads, tuple(rows), word_columns=2))


def _median_cell(batch: BatchFigures) -> Cell:
    if batch.median_s is None:
        return Cell(formatting.missing_quantile(batch, "p50"), tone="missing")
    return between(batch.median_s, formatting.time)


def _speedup_of(variant: VariantFigures, size: int, baseline: str | None) -> Cell:
    batch = variant.batch(size)
    if batch is None:
        return Cell("not measured", tone="missing")
    if variant.name == baseline and batch.speedup is None:
        return BASELINE
    cell = between(batch.speedup, formatting.ratio)
    return Cell(cell.text, cell.note, cell.value, _TONES.get(str(batch.verdict), cell.tone))


def plain_table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], word_columns: int = 1
) -> Table:
    """Return a table whose rows belong to no variant."""
    return Table(caption, tuple(heads), tuple(Row(tuple(cells)) for cells in rows), word_columns)
