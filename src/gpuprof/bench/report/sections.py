# SPDX-License-Identifier: Apache-2.0
"""The sections of a report in their order, before they are HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuprof.bench.compare.document import (
    KIND,
    ComparisonDocument,
    TrafficFigures,
    VariantFigures,
)
from gpuprof.bench.report import formatting, summary, time_series
from gpuprof.bench.report.conclusion import conclusions
from gpuprof.bench.report.plot_parts import Figure, Look
from gpuprof.bench.report.plots import Plots
from gpuprof.bench.report.table import BASELINE, MISSING, Table
from gpuprof.bench.report.tables import ReportTables, traffic_tables
from gpuprof.bench.verdicts import QualityMeasure, VariantStatus
from gpuprof.render.page import readable
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.sanitize import shorten

_TITLE_NAMES, _TITLE_NAME = 4, 24  # how many names a title has, and how long each may be


@dataclass(frozen=True, slots=True)
class Link:
    """A page next to the report."""

    text: str
    file: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what is below it; `lead` is its result in one sentence.

    `folded` is the heading of the lines; `single_lines` are single ones of those that a line groups.
    """

    key: str
    title: str
    lead: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    folded: str = ""
    single_lines: tuple[str, ...] = ()
    single_title: str = ""
    link: Link | None = None


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
    """The whole report: what a reader sees first, then the sections.

    `document` has the figures of a comparison; a report of something else has none, nor CSV and JSON of it.
    """

    document: ComparisonDocument | None
    looks: Mapping[str, Look]
    title: str
    subtitle: str
    headline: str
    lines: tuple[str, ...]
    recommendations: tuple[tuple[str, str], ...]
    cards: tuple[Card, ...]
    failures: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def choice(self) -> VariantFigures | None:
        """The recommended variant."""
        return None if self.document is None else self.document.choice

    @property
    def choice_name(self) -> str | None:
        """The name of the choice, whatever was measured of it."""
        return None if self.document is None else self.document.summary.choice

    @property
    def variant_names(self) -> tuple[str, ...]:
        """The names of the variants by their numbers."""
        return () if self.document is None else tuple(each.name for each in self.document.variants)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All plots."""
        return tuple(each for section in self.sections for each in section.figures)


def _title(document: ComparisonDocument) -> str:
    """Return the name of the comparison, or its variants where it has none."""
    if document.name != KIND or not document.variants:
        return document.name
    names = [shorten(readable(each.name), _TITLE_NAME) for each in document.variants]
    shown = names[:_TITLE_NAMES]
    more = len(names) - len(shown)
    return f"Comparison of {', '.join(shown)}{f' and {more} more' if more else ''}"


def device_of(document: ComparisonDocument) -> str | None:
    """Return the device of all variants; None where it is unknown, or not the same."""
    found = {each.device for each in document.measured}
    return found.pop() if len(found) == 1 else None


def _subtitle(document: ComparisonDocument, title: str) -> str:
    count, device = len(document.variants), device_of(document)
    begin = "Comparison of " if title == document.name else ""
    where = "" if device is None else f", on {device}"
    return f"{begin}{count} variant{'' if count == 1 else 's'}, {document.timestamp}{where}"


def content_of(document: ComparisonDocument) -> Content:
    """Return the content of a report. An empty section is left out."""
    plots, tables = Plots(document), ReportTables(document)
    overview, title = tables.variants(), _title(document)
    sections = [section_of("variants", "Variants", overview), *_sections(document, plots, tables)]
    return Content(
        document=document,
        looks=plots.looks,
        title=title,
        subtitle=_subtitle(document, title),
        headline=summary.headline(document),
        lines=summary.variant_lines(document),
        recommendations=tuple(map(summary.advice, document.recommendations)),
        cards=() if overview is None else tuple(_cards(document, overview)),
        failures=tuple(_failure_lines(document)),
        sections=tuple(each for each in sections if each.tables or each.lines or each.figures),
    )


def section_of(
    key: str, title: str, *tables: Table | None, figures: Sequence[Figure | None] = (), lead: str = ""
) -> Section:
    """Return a section of the plots and tables that have figures."""
    drawn = tuple(each for each in figures if each is not None)
    return Section(key, title, lead, drawn, tuple(each for each in tables if each is not None))


def _sections(document: ComparisonDocument, plots: Plots, tables: ReportTables) -> Iterator[Section]:
    if document.measured:
        yield from _speed_sections(document, plots, tables)
    yield _quality_section(document, plots, tables)
    if document.measured:
        margin = formatting.share(document.method.margin)
        lead = (
            f"The band around 1 is the equivalence margin of {margin}: differences within it do not matter."
        )
        yield plotted("technique", "Speed-up by technique", plots.technique(), tables.techniques(), lead=lead)
        if document.is_priced:
            write = formatting.money(document.method.currency)
            lead = extreme(document, "Least", min, lambda each: each.cost_per_million, write)
            yield plotted("cost", "Cost per million inferences", plots.cost(), tables.cost(), lead=lead)
    yield section_of("sizes", "Model size", tables.sizes(), figures=(plots.sizes(), plots.size_and_speed()))
    yield section_of("layers", "Bottlenecks of the layers", tables.layers(), figures=(plots.layers(),))
    yield section_of(
        time_series.KEY,
        time_series.TITLE,
        time_series.loading_table(document),
        figures=(time_series.series_figure(document, plots.looks),),
        lead=time_series.LEAD,
    )
    yield section_of("failed", "Variants that failed", tables.failures())
    if document.traffic is not None:
        yield _traffic_section(document.traffic)
    yield section_of("environment", "Test environment", tables.environment())
    yield _method_section(document, tables)
    lines = tuple(_capital(str(each)) for each in conclusions(document))
    yield Section("conclusion", "Conclusion", summary.headline(document), lines=lines)


def plotted(key: str, title: str, figure: Figure | None, *tables: Table | None, lead: str) -> Section:
    """Return a section with a plot; without one it has a note that its figures are unavailable."""
    if figure is None:
        return Section(key, title, lines=(f"{title}: {formatting.UNAVAILABLE}",))
    return section_of(key, title, *tables, figures=(figure,), lead=lead)


def _speed_sections(document: ComparisonDocument, plots: Plots, tables: ReportTables) -> Iterator[Section]:
    over = " against batch size" if len(document.batch_sizes) > 1 else ""
    lead = extreme(document, "Shortest median", min, lambda each: value_of(each.median_s), formatting.time)
    # Of one batch size the quantiles have all figures.
    medians = (tables.latency(),) if len(document.batch_sizes) > 1 else ()
    yield plotted("latency", "Latency", plots.latency(), *medians, tables.quantiles(), lead=lead)
    lead = extreme(document, "Highest", max, lambda each: value_of(each.throughput_per_s), formatting.rate)
    yield plotted("throughput", f"Throughput{over}", plots.throughput(), tables.throughput(), lead=lead)
    yield section_of("tokens", "Tokens per second", tables.tokens(), figures=(plots.tokens(),))
    lead = extreme(document, "Least", min, lambda each: (each.peak_memory or (None,))[0], formatting.size)
    yield plotted("memory", "Memory", plots.memory(), tables.memory(), lead=lead)
    yield section_of(
        "utilization", "Device utilization", tables.utilization(), figures=(plots.utilization(),)
    )


def value_of(found: Estimate | None) -> float | None:
    """Return the value of an estimate."""
    return None if found is None else found.value


def extreme(
    document: ComparisonDocument,
    title: str,
    choose: Callable[[list[tuple[float, str, int]]], tuple[float, str, int]],
    read: summary.Read,
    write: Callable[[float], str],
) -> str:
    """Return the variant and batch size with the most or least of something; empty where there is none."""
    found = [
        (value, variant.name, batch.batch_size)
        for variant in document.measured
        for batch in variant.batches
        if (value := read(batch)) is not None
    ]
    if not found:
        return ""
    value, name, size = choose(found)
    return f"{title}: {name} with {write(value)} at batch size {size}."


# --- outputs -------------------------------------------------------------------------------------


def _quality_section(document: ComparisonDocument, plots: Plots, tables: ReportTables) -> Section:
    measure, sizes = document.quality.measure, document.batch_sizes
    figures = (plots.quality(), plots.accuracy_and_time(sizes[0]) if sizes else None)
    timed = tables.accuracy_and_time(sizes[0]) if sizes and measure is not None else None
    found = (tables.quality(), timed, tables.classes(), tables.metrics())
    return Section(
        "quality",
        f"{_capital(str(measure))} against speed-up" if measure else "Quality",
        lead=_front_sentence(document),
        figures=tuple(each for each in figures if each is not None),
        tables=tuple(each for each in found if each is not None),
        lines=tuple(_quality_lines(document)),
    )


def _quality_lines(document: ComparisonDocument) -> Iterator[str]:
    """Yield the findings about outputs, and why there are no figures where there are none."""
    for variant in document.variants:
        accuracy, is_failed = variant.accuracy, variant.status == VariantStatus.FAILED
        if accuracy is None:
            if not is_failed:
                yield f"{variant.name}: {formatting.UNAVAILABLE} ({summary.why_no_accuracy(variant)})"
            continue
        name = f"{variant.name} (failed)" if is_failed else variant.name
        yield from (f"{name}: {each}" for each in accuracy.findings)
        if accuracy.degraded_classes:
            classes = "; ".join(map(formatting.degraded_class, accuracy.degraded_classes))
            yield f"{name}: classes with lower accuracy: {classes}"
    if document.is_finite and any(each.accuracy is not None for each in document.variants):
        yield "the outputs of all variants are finite"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


_BASES = {
    QualityMeasure.ACCURACY: "labels of",
    QualityMeasure.AGREEMENT: "the baseline's predictions on",
    QualityMeasure.COSINE: "the baseline's outputs on",
}


def _front_sentence(document: ComparisonDocument) -> str:
    measure = document.quality.measure
    if measure is None:
        return "No outputs were compared."
    basis = f"The figures are based on {_BASES[measure]} {document.quality.samples:,} samples."
    front = sorted((each for each in document.pareto if each.on_front), key=lambda each: -each.speedup)
    if not front:
        return basis
    return (
        f"Pareto front, the fastest first: {', '.join(each.variant for each in front)}. "
        f"No other variant is both faster and better in {measure} than one of these. {basis}"
    )


# --- summary -------------------------------------------------------------------------------------


def _failure_lines(document: ComparisonDocument) -> Iterator[str]:
    states = {VariantStatus.FAILED: "failed", VariantStatus.PARTLY: "was measured in part"}
    for each in document.variants:
        if each.status in states:
            yield f"{each.name} {states[each.status]}: {summary.reason(each.failure)}"


def _cards(document: ComparisonDocument, table: Table) -> Iterator[Card]:
    """Yield the gains and costs of the choice: the cells of its row, with those of the baseline's row."""
    rows, choice = {row.variant: row for row in table.rows}, document.choice
    if choice is None:
        return
    own, base = rows[choice.name], rows.get(document.baseline)
    for place, title in enumerate(table.heads):
        cell = own.cells[place]
        if title in ("Variant", "Verdict") or cell in (MISSING, BASELINE):
            continue
        note = cell.note
        if title == "Speed-up":
            verdict = "" if choice.verdict is None else formatting.verdict(choice.verdict)
            note = ", ".join(filter(None, (verdict, note)))
        elif title != "Change" and base is not None and base is not own:
            note = f"baseline {base.cells[place].text}"
        yield Card(title, cell.text, note, cell.value, cell.tone)
    if choice.accuracy is None:
        name = str(document.quality.measure or "accuracy").capitalize()
        yield Card(name, formatting.UNAVAILABLE, summary.why_no_accuracy(choice), tone="missing")


# --- traffic and method --------------------------------------------------------------------------


def _traffic_section(traffic: TrafficFigures) -> Section:
    reasons = "; ".join(map(str, traffic.advice.because))
    lead = _capital(str(traffic.advice.text)) + (f". Why: {reasons}" if reasons else "")
    failed = (
        f"{arm.variant}: the first failed request: {arm.first_failure}"
        for arm in traffic.arms
        if arm.first_failure is not None
    )
    return Section(
        "traffic",
        "Traffic (A/B)",
        lead,
        tables=tuple(each for each in traffic_tables(traffic) if each is not None),
        lines=(*map(str, traffic.notes), *failed),
    )


def _method_section(document: ComparisonDocument, tables: ReportTables) -> Section:
    found = (tables.method(), tables.validity(), tables.start())
    grouped, single = tuple(summary.warning_groups(document)), summary.warning_lines(document)
    return Section(
        "method",
        "Methodology",
        tables=tuple(each for each in found if each is not None),
        lines=tuple(dict.fromkeys([*summary.unavailable(document), *map(str, document.notes), *grouped])),
        folded="Notes and warnings",
        single_lines=single,
        single_title=f"{len(single):,} warnings, each with its evidence",
    )
