# SPDX-License-Identifier: Apache-2.0
"""The sections of a report in their order, before they are HTML or Markdown, with warnings grouped."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from gpuprof.analyze.text_table import shorten
from gpuprof.bench.report import formatting, more_tables
from gpuprof.bench.report.model import KIND, Batch, Plain, Report, Variant
from gpuprof.bench.report.more_tables import traffic_content
from gpuprof.bench.report.plot_parts import Figure
from gpuprof.bench.report.plots import Plots, layer_figure, quality_figure
from gpuprof.bench.report.tables import BASELINE, MISSING, Table, Tables
from gpuprof.render.page import readable

_TITLE_NAMES, _TITLE_NAME = 4, 24  # how many names a title has, and how long each may be


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it; `lead` is its answer in one sentence."""

    key: str
    title: str
    lead: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    # What the lines are called where they are many and fold away on the screen.
    folded: str = ""
    # Each single line behind lines that tell of many at once, and what they are called.
    single_lines: tuple[str, ...] = ()
    single_title: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """One figure of the chosen variant, with the baseline's beside it."""

    title: str
    text: str
    note: str = ""
    value: float | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """The whole report: what a reader sees first, then the sections."""

    headline: str
    choice: Variant | None
    cards: tuple[Card, ...]
    failures: tuple[str, ...]
    sections: tuple[Section, ...]
    plots: Plots
    report: Report
    figures: tuple[Figure, ...] = ()

    @property
    def title(self) -> str:
        """What the report is called: its name, or its variants where nobody named it."""
        name = self.report.name
        if name != KIND or not self.report.variants:
            return name
        names = [shorten(readable(each.name), _TITLE_NAME) for each in self.report.variants]
        shown = names[:_TITLE_NAMES]
        more = len(names) - len(shown)
        return f"Comparison of {', '.join(shown)}{f' and {more} more' if more else ''}"

    @property
    def device(self) -> str | None:
        """What the variants ran on; None where they tell none, or several."""
        told = {each.device for each in self.report.measured}
        return told.pop() if len(told) == 1 else None


def content_of(report: Report) -> Content:
    """Return everything that a report says. A section without anything to tell is left out."""
    plots, tables = Plots(report), Tables(report)
    sections = tuple(
        section for section in _sections(report, plots, tables) if section.tables or section.lines
    )
    choice = report.variant(report.choice)
    headline = report.headline or "No variant was measured: there is nothing to choose from."
    return Content(
        headline=headline,
        choice=choice,
        cards=tuple(_cards(report, tables, choice)) if choice is not None else (),
        failures=tuple(_failure_lines(report)),
        sections=sections,
        plots=plots,
        report=report,
        figures=tuple(each for section in sections for each in section.figures),
    )


def _sections(report: Report, plots: Plots, tables: Tables) -> Iterator[Section]:
    yield Section("variants", "Variants", tables=(tables.variants(),))
    if report.measured:
        yield from _speed_sections(plots, tables, report)
    yield _quality_section(report, plots)
    if report.measured:
        lead = _margin_sentence(report)
        yield _section(
            "technique", "Speed-up by technique", plots.technique(), tables.techniques(), lead=lead
        )
        if report.is_priced:
            write = partial(formatting.money, currency=report.currency)
            lead = _extreme(report, "Least", min, lambda each: each.cost_per_million, write)
            yield _section("cost", "Cost per million inferences", plots.cost(), tables.cost(), lead=lead)
    layers = more_tables.layer_table(report)
    if layers is not None:
        yield _section("layers", "What binds the layers", layer_figure(report, plots), layers)
    failed = more_tables.failure_table(report)
    if failed is not None:
        yield Section("failed", "Variants that failed", tables=(failed,))
    if report.traffic is not None:
        yield _traffic_section(report.traffic)
    yield _method_section(report)


def _section(key: str, title: str, figure: Figure | None, *tables: Table, lead: str = "") -> Section:
    """Return a section with a plot; where there is nothing to plot there is nothing to tell."""
    if figure is None:
        return Section(key, title, lines=(f"{title}: {formatting.UNAVAILABLE}",))
    return Section(key, title, lead, figures=(figure,), tables=tables)


def _speed_sections(plots: Plots, tables: Tables, report: Report) -> Iterator[Section]:
    over = " against batch size" if len(report.batch_sizes) > 1 else ""
    quantiles = more_tables.quantile_table(report)
    lead = _extreme(report, "Shortest median", min, _median_of, formatting.time)
    # Of one batch size the quantiles tell all.
    medians = (tables.latency(),) if len(report.batch_sizes) > 1 else ()
    yield _section("latency", "Latency", plots.latency(), *medians, quantiles, lead=lead)
    lead = _extreme(report, "Highest", max, _rate_of, formatting.rate)
    yield _section("throughput", f"Throughput{over}", plots.throughput(), tables.throughput(), lead=lead)
    lead = _extreme(report, "Least", min, _memory_of, formatting.size)
    yield _section("memory", "Memory", plots.memory(), tables.memory(), lead=lead)


def _median_of(batch: Batch) -> float | None:
    return None if batch.median is None else batch.median.value


def _rate_of(batch: Batch) -> float | None:
    return None if batch.throughput is None else batch.throughput.value


def _memory_of(batch: Batch) -> float | None:
    found = formatting.peak_memory(batch)
    return None if found is None else found[0]


def _extreme(
    report: Report,
    title: str,
    choose: Callable[[list[tuple[float, str, int]]], tuple[float, str, int]],
    read: Callable[[Batch], float | None],
    write: Callable[[float], str],
) -> str:
    """Return the variant and batch size with the most or least of something; empty where there is none."""
    told = [
        (value, variant.name, batch.batch_size)
        for variant in report.measured
        for batch in variant.batches
        if (value := read(batch)) is not None
    ]
    if not told:
        return ""
    value, name, size = choose(told)
    return f"{title}: {name} with {write(value)} at batch size {size}."


def _quality_section(report: Report, plots: Plots) -> Section:
    table, metrics = more_tables.quality_table(report), more_tables.metric_table(report)
    tables = () if len(table.heads) < 2 or not table.rows else (table,)
    figure = quality_figure(report, plots.looks)
    return Section(
        "quality",
        f"{_capital(report.quality_name)} against speed-up" if report.quality_name else "Quality",
        lead=_front_sentence(report),
        figures=() if figure is None else (figure,),
        tables=tables if metrics is None else (*tables, metrics),
        lines=tuple(more_tables.quality_lines(report)),
    )


def _margin_sentence(report: Report) -> str:
    margin = report.method.get("margin")
    if not isinstance(margin, float):
        return ""
    band = formatting.share(margin)
    return f"The band around 1 is the practical margin of {band}: it decides nothing in practice."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _front_sentence(report: Report) -> str:
    front = sorted((each for each in report.pareto if each.on_front), key=lambda each: -each.speedup)
    names = list(dict.fromkeys(each.variant for each in front))
    what, rests_on = report.quality_name, report.quality_rests_on
    if what is None:
        return f"{_capital(rests_on)}." if rests_on else ""
    rests = f" The figures rest on {rests_on}." if rests_on else ""
    if not names:
        return rests.strip()
    return (
        f"Pareto front, the fastest first: {', '.join(names)}. "
        f"No other variant is both faster and better in {what} than one of these.{rests}"
    )


# --- summary -------------------------------------------------------------------------------------


def _failure_lines(report: Report) -> Iterator[str]:
    for variant in report.variants:
        if variant.status == "failed":
            yield f"{variant.name} failed: {variant.failure or 'no reason was told'}"
        elif variant.status == "partly":
            yield f"{variant.name} was measured in part: {variant.failure or 'no reason was told'}"


def _cards(report: Report, tables: Tables, choice: Variant) -> Iterator[Card]:
    """Yield what the choice brings and costs: the cells of its row, and those of the baseline's row."""
    table = tables.variants()
    rows = {row.variant: row for row in table.rows}
    own, base = rows[choice.name], rows.get(report.baseline)
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
        name = report.quality_name or "accuracy"
        yield Card(
            name.capitalize(), formatting.UNAVAILABLE, more_tables.why_no_accuracy(choice), tone="missing"
        )


def _traffic_section(traffic: Plain) -> Section:
    lead, tables, lines = traffic_content(traffic)
    return Section("traffic", "Traffic (A/B)", lead, tables=tables, lines=lines)


# --- method --------------------------------------------------------------------------------------


def _method_section(report: Report) -> Section:
    told = [more_tables.method_table(report), more_tables.environment_table(report)]
    if report.measured:
        told += [more_tables.validity_table(report), more_tables.start_table(report)]
    tables = [each for each in told if each is not None]
    grouped, single = flag_groups(report), flag_lines(report)
    return Section(
        "method",
        "Method and validity",
        tables=tuple(tables),
        lines=(*_unavailable(report), *report.notes, *grouped),
        folded="What to know of the figures",
        single_lines=tuple(single) if len(single) > len(grouped) else (),
        single_title=f"All {len(single):,} flags, each with its evidence",
    )


def _unavailable(report: Report) -> Iterator[str]:
    """Yield what no figure stands for, and why."""
    if not report.measured:
        yield f"all figures: {formatting.UNAVAILABLE} (no variant was measured)"
        return
    kinds: list[tuple[str, str, Callable[[Batch], object]]] = [
        ("device memory", "no device tells its peak", lambda each: each.device_peak_bytes),
        ("host memory", "the system does not tell the peak", lambda each: each.host_peak_bytes),
        ("energy", "no device with a counter that gpuprof reads", lambda each: each.energy_per_sample_j),
    ]
    # What was not asked for is nothing that could not be had.
    if report.is_priced:
        kinds.append(
            ("cost per million inferences", "not told for these", lambda each: each.cost_per_million)
        )
    for name, why, read in kinds:
        lacking = [
            each.name for each in report.measured if all(read(batch) is None for batch in each.batches)
        ]
        if lacking:
            of = "all variants" if len(lacking) == len(report.measured) else ", ".join(lacking)
            yield f"{name}: {formatting.UNAVAILABLE} for {of} ({why})"
    for each in report.measured:
        if each.accuracy is None:
            yield f"accuracy of {each.name}: {formatting.UNAVAILABLE} ({more_tables.why_no_accuracy(each)})"
    for each in report.measured:
        if each.run_unavailable is not None:
            yield f"run of {each.name}: {formatting.UNAVAILABLE} ({each.run_unavailable})"
    if all(not each.layers for each in report.measured):
        yield f"layers and what binds them: {formatting.UNAVAILABLE} (no run was kept)"


# What of a line's figures says how bad it is, beside others of that name.
_WEIGHTS: dict[str, Callable[[list[float]], float]] = {
    "spread": lambda found: found[0],
    "drift": lambda found: found[0],
    "interrupted": lambda found: found[0] / found[1],
    "other load": lambda found: found[0],
    "stolen time": lambda found: found[0],
    "enqueue": lambda found: found[0],
    "timer": lambda found: found[-1],
    "warm-up": lambda found: found[-1],
}
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_LAUNCHES = re.compile(r"in \d+ of \d+ launches, first: ")


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    where: str
    line: str

    @property
    def weight(self) -> float:
        """How much it speaks against the figures, beside others of its name."""
        if self.name == "drift" and "%" not in self.line:
            return math.inf  # told as two times because no percentage would do
        said = _LAUNCHES.sub("", self.line, count=1)
        found = [float(each.replace(",", "")) for each in _FIGURE.findall(said)]
        try:
            return _WEIGHTS[self.name](found)
        except (IndexError, ZeroDivisionError):
            return 0.0  # words of another version: any of them will do


def _flags(report: Report) -> list[_Flag]:
    return [
        _Flag(name, f"{variant.name}, batch size {batch.batch_size}", line)
        for variant in report.variants
        for batch in variant.batches
        for name, line in batch.flags
    ]


def flag_lines(report: Report) -> list[str]:
    """Return each flag with its evidence."""
    return [f"{each.name}: {each.where}: {each.line}" for each in _flags(report)]


def flag_groups(report: Report) -> list[str]:
    """Return a line for each name of a flag: in how many measurements, and the worst of them."""
    measurements = sum(len(variant.batches) for variant in report.variants)
    groups: dict[str, list[_Flag]] = {}
    for each in _flags(report):
        groups.setdefault(each.name, []).append(each)
    return [_group_line(group, measurements) for group in groups.values()]


def _group_line(group: list[_Flag], measurements: int) -> str:
    first, places = group[0], len({each.where for each in group})
    begin = f"{first.name}: in {places:,} of {measurements:,} measurements"
    if len(group) == 1:
        return f"{begin}: {first.where}: {first.line}"
    if all(each.line == first.line for each in group):
        return f"{begin}: {first.line}"
    if first.name not in _WEIGHTS:
        return f"{begin}, the first: {first.where}: {first.line}"
    worst = max(group, key=lambda each: each.weight)
    return f"{begin}, worst: {worst.where}: {worst.line}"
