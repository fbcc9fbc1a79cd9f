# SPDX-License-Identifier: Apache-2.0
"""The sections of a report in their order, before they are HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from gpuprof.bench.compare.document import (
    KIND,
    BatchFigures,
    ComparisonDocument,
    TrafficFigures,
    VariantFigures,
)
from gpuprof.bench.messages import message
from gpuprof.bench.report import formatting, method_tables, quality_tables, summary
from gpuprof.bench.report.plot_parts import Figure
from gpuprof.bench.report.plots import Plots, layer_figure, quality_figure
from gpuprof.bench.report.tables import BASELINE, MISSING, ReportTables, Table
from gpuprof.bench.report.traffic_tables import traffic_content
from gpuprof.bench.verdicts import VariantStatus
from gpuprof.render.page import readable
from gpuprof.text.sanitize import shorten

_TITLE_NAMES, _TITLE_NAME = 4, 24  # how many names a title has, and how long each may be


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what is below it; `lead` is its result in one sentence."""

    key: str
    title: str
    lead: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    # The heading of the lines.
    folded: str = ""
    # Each single line after lines that group many, and their heading.
    single_lines: tuple[str, ...] = ()
    single_title: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """One figure of the recommended variant, with the baseline's next to it."""

    title: str
    text: str
    note: str = ""
    value: float | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """The whole report: what a reader sees first, then the sections."""

    headline: str
    lines: tuple[str, ...]
    recommendations: tuple[tuple[str, str], ...]
    choice: VariantFigures | None
    cards: tuple[Card, ...]
    failures: tuple[str, ...]
    sections: tuple[Section, ...]
    plots: Plots
    document: ComparisonDocument
    figures: tuple[Figure, ...] = ()

    @property
    def title(self) -> str:
        """The title: the name of the comparison, or its variants where it has none."""
        name = self.document.name
        if name != KIND or not self.document.variants:
            return name
        names = [shorten(readable(each.name), _TITLE_NAME) for each in self.document.variants]
        shown = names[:_TITLE_NAMES]
        more = len(names) - len(shown)
        return f"Comparison of {', '.join(shown)}{f' and {more} more' if more else ''}"

    @property
    def device(self) -> str | None:
        """The device of all variants; None where it is unknown, or not the same."""
        found = {each.device for each in self.document.measured}
        return found.pop() if len(found) == 1 else None


def content_of(document: ComparisonDocument) -> Content:
    """Return the content of a report. An empty section is left out."""
    plots, tables = Plots(document), ReportTables(document)
    sections = tuple(
        section for section in _sections(document, plots, tables) if section.tables or section.lines
    )
    choice = document.choice
    return Content(
        headline=summary.headline(document),
        lines=summary.variant_lines(document),
        recommendations=tuple(map(summary.advice, document.recommendations)),
        choice=choice,
        cards=tuple(_cards(document, tables, choice)) if choice is not None else (),
        failures=tuple(_failure_lines(document)),
        sections=sections,
        plots=plots,
        document=document,
        figures=tuple(each for section in sections for each in section.figures),
    )


def _sections(document: ComparisonDocument, plots: Plots, tables: ReportTables) -> Iterator[Section]:
    yield Section("variants", "Variants", tables=(tables.variants(),))
    if document.measured:
        yield from _speed_sections(plots, tables, document)
    yield _quality_section(document, plots)
    if document.measured:
        lead = _margin_sentence(document)
        yield _section(
            "technique", "Speed-up by technique", plots.technique(), tables.techniques(), lead=lead
        )
        if document.is_priced:
            write = partial(formatting.money, currency=document.method.currency)
            lead = _extreme(document, "Least", min, lambda each: each.cost_per_million, write)
            yield _section("cost", "Cost per million inferences", plots.cost(), tables.cost(), lead=lead)
    layers = quality_tables.layer_table(document)
    if layers is not None:
        yield _section("layers", "Bottlenecks of the layers", layer_figure(document, plots), layers)
    failed = quality_tables.failure_table(document)
    if failed is not None:
        yield Section("failed", "Variants that failed", tables=(failed,))
    if document.traffic is not None:
        yield _traffic_section(document.traffic)
    yield _method_section(document)


def _section(key: str, title: str, figure: Figure | None, *tables: Table, lead: str = "") -> Section:
    """Return a section with a plot; without one it says that its figures are unavailable."""
    if figure is None:
        return Section(key, title, lines=(f"{title}: {formatting.UNAVAILABLE}",))
    return Section(key, title, lead, figures=(figure,), tables=tables)


def _speed_sections(plots: Plots, tables: ReportTables, document: ComparisonDocument) -> Iterator[Section]:
    over = " against batch size" if len(document.batch_sizes) > 1 else ""
    quantiles = method_tables.quantile_table(document)
    lead = _extreme(document, "Shortest median", min, _median_of, formatting.time)
    # Of one batch size the quantiles have all figures.
    medians = (tables.latency(),) if len(document.batch_sizes) > 1 else ()
    yield _section("latency", "Latency", plots.latency(), *medians, quantiles, lead=lead)
    lead = _extreme(document, "Highest", max, _rate_of, formatting.rate)
    yield _section("throughput", f"Throughput{over}", plots.throughput(), tables.throughput(), lead=lead)
    lead = _extreme(document, "Least", min, _memory_of, formatting.size)
    yield _section("memory", "Memory", plots.memory(), tables.memory(), lead=lead)


def _median_of(batch: BatchFigures) -> float | None:
    return None if batch.median_s is None else batch.median_s.value


def _rate_of(batch: BatchFigures) -> float | None:
    return None if batch.throughput_per_s is None else batch.throughput_per_s.value


def _memory_of(batch: BatchFigures) -> float | None:
    found = formatting.peak_memory(batch)
    return None if found is None else found[0]


def _extreme(
    document: ComparisonDocument,
    title: str,
    choose: Callable[[list[tuple[float, str, int]]], tuple[float, str, int]],
    read: Callable[[BatchFigures], float | None],
    write: Callable[[float], str],
) -> str:
    """Return the variant and batch size with the most or least of something; empty where there is none."""
    told = [
        (value, variant.name, batch.batch_size)
        for variant in document.measured
        for batch in variant.batches
        if (value := read(batch)) is not None
    ]
    if not told:
        return ""
    value, name, size = choose(told)
    return f"{title}: {name} with {write(value)} at batch size {size}."


def _quality_section(document: ComparisonDocument, plots: Plots) -> Section:
    table, metrics = quality_tables.quality_table(document), quality_tables.metric_table(document)
    tables = () if len(table.heads) < 2 or not table.rows else (table,)
    figure, measure = quality_figure(document, plots.looks), document.quality.measure
    return Section(
        "quality",
        f"{_capital(str(measure))} against speed-up" if measure else "Quality",
        lead=_front_sentence(document),
        figures=() if figure is None else (figure,),
        tables=tables if metrics is None else (*tables, metrics),
        lines=tuple(quality_tables.quality_lines(document)),
    )


def _margin_sentence(document: ComparisonDocument) -> str:
    margin = formatting.share(document.method.margin)
    return f"The band around 1 is the equivalence margin of {margin}: differences within it do not matter."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _front_sentence(document: ComparisonDocument) -> str:
    front = sorted((each for each in document.pareto if each.on_front), key=lambda each: -each.speedup)
    names = list(dict.fromkeys(each.variant for each in front))
    measure, basis = document.quality.measure, formatting.quality_basis(document.quality)
    if measure is None:
        return f"{_capital(basis)}."
    if not names:
        return f"The figures are based on {basis}."
    return (
        f"Pareto front, the fastest first: {', '.join(names)}. "
        f"No other variant is both faster and better in {measure} than one of these. "
        f"The figures are based on {basis}."
    )


# --- summary -------------------------------------------------------------------------------------


def _failure_lines(document: ComparisonDocument) -> Iterator[str]:
    for variant in document.variants:
        if variant.status != VariantStatus.MEASURED:
            state = "failed" if variant.status == VariantStatus.FAILED else "was measured in part"
            yield f"{variant.name} {state}: {formatting.reason(variant.failure)}"


def _cards(document: ComparisonDocument, tables: ReportTables, choice: VariantFigures) -> Iterator[Card]:
    """Yield the gains and costs of the choice: the cells of its row, with those of the baseline's row."""
    table = tables.variants()
    rows = {row.variant: row for row in table.rows}
    own, base = rows[choice.name], rows.get(document.baseline)
    for place, title in enumerate(table.heads):
        cell = own.cells[place]
        if title in ("Variant", "Verdict") or cell in (MISSING, BASELINE):
            continue
        note = cell.note
        if title not in ("Speed-up", "Change") and base is not None and base is not own:
            note = f"baseline {base.cells[place].text}"
        if title == "Speed-up":
            note = ", ".join(filter(None, (formatting.verdict(choice.verdict), note)))
        yield Card(title, cell.text, note, cell.value, cell.tone)
    if choice.accuracy is None:
        name = str(document.quality.measure or "accuracy")
        yield Card(
            name.capitalize(), formatting.UNAVAILABLE, quality_tables.why_no_accuracy(choice), tone="missing"
        )


def _traffic_section(traffic: TrafficFigures) -> Section:
    lead, tables, lines = traffic_content(traffic)
    return Section("traffic", "Traffic (A/B)", lead, tables=tables, lines=lines)


# --- method --------------------------------------------------------------------------------------


def _method_section(document: ComparisonDocument) -> Section:
    found = [method_tables.method_table(document), method_tables.environment_table(document)]
    if document.measured:
        found += [method_tables.validity_table(document), method_tables.start_table(document)]
    tables = [each for each in found if each is not None]
    grouped, single = tuple(summary.warning_groups(document)), summary.warning_lines(document)
    return Section(
        "method",
        "Method and validity",
        tables=tuple(tables),
        lines=(*_unavailable(document), *map(message, document.notes), *grouped),
        folded="Notes and warnings",
        single_lines=single if len(single) > len(grouped) else (),
        single_title=f"All {len(single):,} warnings, each with its evidence",
    )


def _unavailable(document: ComparisonDocument) -> Iterator[str]:
    """Yield which figures are unavailable, and why."""
    if not document.measured:
        yield f"all figures: {formatting.UNAVAILABLE} (no variant was measured)"
        return
    kinds: list[tuple[str, str, Callable[[BatchFigures], object]]] = [
        ("device memory", "no device reports its peak", lambda each: each.device_peak_bytes),
        ("host memory", "the system does not report the peak", lambda each: each.host_peak_bytes),
        ("energy", "no device with a counter that gpuprof reads", lambda each: each.energy_per_sample_j),
    ]
    # What was not requested is not unavailable.
    if document.is_priced:
        kinds.append(("cost per million inferences", "unknown for these", lambda each: each.cost_per_million))
    for name, why, read in kinds:
        lacking = [
            each.name for each in document.measured if all(read(batch) is None for batch in each.batches)
        ]
        if lacking:
            of = "all variants" if len(lacking) == len(document.measured) else ", ".join(lacking)
            yield f"{name}: {formatting.UNAVAILABLE} for {of} ({why})"
    for each in document.measured:
        if each.accuracy is None:
            why = quality_tables.why_no_accuracy(each)
            yield f"accuracy of {each.name}: {formatting.UNAVAILABLE} ({why})"
    for each in document.measured:
        if each.run_unavailable is not None:
            yield f"run of {each.name}: {formatting.UNAVAILABLE} ({message(each.run_unavailable)})"
    if all(not each.layers for each in document.measured):
        yield f"layers and their bottlenecks: {formatting.UNAVAILABLE} (no run was recorded)"
