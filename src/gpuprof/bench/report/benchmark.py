# SPDX-License-Identifier: Apache-2.0
"""The report of a benchmark: one model over batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

import numpy as np

from gpuprof.bench.compare.document import ComparisonDocument
from gpuprof.bench.compare.figures import document_of
from gpuprof.bench.compare.plan import ComparisonPlan, Variant
from gpuprof.bench.compare.runner import ComparisonResult, VariantResult
from gpuprof.bench.report import formatting, summary
from gpuprof.bench.report.plot_parts import (
    HEIGHT,
    QUIET,
    TEXT,
    Figure,
    Mark,
    Plain,
    axis,
    batch_axis,
    errors,
    is_wide,
    layout,
    logarithmic_axis,
    scaled,
)
from gpuprof.bench.report.plots import Plots
from gpuprof.bench.report.sections import Content, Section, extreme, plotted, section_of, value_of
from gpuprof.bench.report.tables import ReportTables
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.result import Result
from gpuprof.bench.results.session import BenchFinding
from gpuprof.bench.results.target import LatencyTarget
from gpuprof.bench.results.text import finding_notes, notes_of, title_of
from gpuprof.stats.quantiles import Estimate

BINS = 50
_LONGEST = 1.5  # times p99: what is longer is counted in words
_SHOWN_SIZES = 8
_PERCENTILES = MappingProxyType({"p50": (0.5, "solid"), "p95": (0.95, "dash"), "p99": (0.99, "dot")})


def benchmark_content(finding: BenchFinding, at: datetime, target: LatencyTarget | None = None) -> Content:
    """Return the content of the report of one model that was measured at one batch size or more."""
    document = benchmark_document(finding, at, target)
    plots, tables = Plots(document), ReportTables(document)
    sections = _sections(finding, document, plots, tables)
    return Content(
        document=document,
        looks=plots.looks,
        title=document.name,
        subtitle=f"Benchmark, {document.timestamp}",
        headline=title_of(finding.session),
        lines=(*notes_of(finding.session), *finding_notes(finding)),
        recommendations=(),
        cards=(),
        failures=() if finding.session.failure is None else (str(finding.session.failure),),
        sections=tuple(each for each in sections if each.tables or each.lines or each.figures),
    )


def benchmark_document(
    finding: BenchFinding, at: datetime, target: LatencyTarget | None = None
) -> ComparisonDocument:
    """Return the figures of one model as a comparison with one variant."""
    session = finding.session
    variant = Variant(session.batches[0].description.model, session.spec)
    runs = max(len(batch.launches) for batch in session.batches)
    plan = ComparisonPlan(
        (variant,),
        name=variant.name,
        batch_sizes=tuple(batch.batch_size for batch in session.batches),
        launches=runs,
        measuring=session.settings.measuring,
        seed=session.spec.seed,
        target=target,
        accuracy=None,
    )
    result = ComparisonResult(plan, [VariantResult(variant, session)], runs_done=runs)
    document = document_of(result, at)
    # Of comparisons alone, or not known here.
    return replace(document, method=replace(document.method, order=None, measured_s=None))


def _sections(
    finding: BenchFinding, document: ComparisonDocument, plots: Plots, tables: ReportTables
) -> Iterator[Section]:
    batches = finding.session.batches
    lead = extreme(document, "Shortest median", min, lambda each: value_of(each.median_s), formatting.time)
    yield section_of("latency", "Latency", tables.quantiles(), figures=(percentiles(batches),), lead=lead)
    shown = [distribution(batch) for batch in batches[:_SHOWN_SIZES]]
    left = len(batches) - len(shown)
    lead = f"The first {_SHOWN_SIZES} of {len(batches)} batch sizes." if left else ""
    yield section_of("distribution", "Latency distribution", tables.validity(), figures=shown, lead=lead)
    lead = extreme(document, "Highest", max, lambda each: value_of(each.throughput_per_s), formatting.rate)
    yield plotted("throughput", "Throughput", plots.throughput(), tables.throughput(), lead=lead)
    yield section_of("tokens", "Tokens per second", tables.tokens(), figures=(plots.tokens(),))
    yield plotted("memory", "Memory", plots.memory(), tables.memory(), lead="")
    yield section_of(
        "utilization", "Device utilization", tables.utilization(), figures=(plots.utilization(),)
    )
    yield section_of("environment", "Test environment", tables.environment())
    found = (tables.method(), tables.start())
    yield Section(
        "method",
        "Methodology",
        tables=tuple(each for each in found if each is not None),
        lines=(*summary.unavailable_figures(document), *summary.warning_lines(document)),
        folded="Notes and warnings",
    )


# --- plots ---------------------------------------------------------------------------------------


def percentiles(batches: list[BatchResult]) -> Figure | None:
    """Return a line for each of p50, p95 and p99 over the batch sizes."""
    found = {
        name: [(batch.batch_size, each) for batch in batches if (each := batch.result.estimate(share))]
        for name, (share, _) in _PERCENTILES.items()
    }
    values = [each.value for marks in found.values() for _, each in marks]
    if not values:
        return None
    factor, unit = formatting.time.axis(max(values))
    traces = [
        _percentile(name, number, marks, factor)
        for number, (name, marks) in enumerate(found.items())
        if marks
    ]
    head, scaled_values = f"latency ({unit})", [value * factor for value in values]
    wide = is_wide(values)
    y_axis = logarithmic_axis(head, scaled_values) if wide else axis(head, rangemode="tozero")
    body = layout(
        HEIGHT, xaxis=batch_axis([batch.batch_size for batch in batches]), yaxis=y_axis, **_legend()
    )
    names = ", ".join(name for name, marks in found.items() if marks)
    return Figure("latency", f"Latency ({names}) against the batch size, as lines.", traces, body)


def _legend() -> Plain:
    font = {"color": TEXT, "size": 12}
    return {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "font": font}}


def _percentile(name: str, number: int, marks: list[tuple[int, Estimate]], factor: float) -> Plain:
    color, dash = f"var(--variant-{number})", _PERCENTILES[name][1]
    points = [Mark(name, scaled(found, factor), "") for _, found in marks]
    texts = [
        f"<b>{name}</b>, batch size {size}<br>{formatting.time(found.value)}"
        f" ({formatting.time.interval(found.low, found.high) or 'no interval'})"
        for size, found in marks
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [size for size, _ in marks],
        "y": [each.found.value for each in points],
        "error_y": errors(points, color),
        "line": {"color": color, "width": 2, "dash": dash},
        "marker": {"color": color, "size": 9, "symbol": ("circle", "square", "diamond")[number]},
        "hoverinfo": "text",
        "hovertext": texts,
        "cliponaxis": False,
    }


def distribution(batch: BatchResult) -> Figure | None:
    """Return the histogram of a batch size's samples with lines at its percentiles."""
    samples = np.asarray(batch.result.samples)
    if not len(samples):
        return None
    most = min(float(samples.max()), _LONGEST * float(np.quantile(samples, 0.99)))
    factor, unit = formatting.time.axis(most)
    counts, edges = np.histogram(samples, bins=BINS, range=(float(samples.min()), most))
    beyond = int((samples > most).sum())
    title = f"latency at batch size {batch.batch_size} ({unit})"
    if beyond:
        title += f"<br>{beyond:,} longer samples are not shown"
    bars = {
        "type": "bar",
        "x": [float(each) for each in (edges[:-1] + edges[1:]) / 2 * factor],
        "y": [int(each) for each in counts],
        "width": float(edges[1] - edges[0]) * factor,
        "marker": {"color": "var(--variant-0)"},
        "hoverinfo": "text",
        "hovertext": [
            f"{formatting.time(float(low))} to {formatting.time(float(high))}: {count:,} samples"
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
    }
    lines = list(_percentile_lines(batch.result, factor))
    body = layout(
        HEIGHT - 80,
        xaxis=axis(title),
        yaxis=axis("samples", rangemode="tozero"),
        shapes=[line for line, _ in lines],
        annotations=[text for _, text in lines],
        bargap=0,
    )
    body["margin"] = body["margin"] | {"t": 30}
    alternative = f"Histogram of {len(samples):,} samples at batch size {batch.batch_size}."
    return Figure(f"distribution-{batch.batch_size}", alternative, [bars], body)


def _percentile_lines(result: Result, factor: float) -> Iterator[tuple[Plain, Plain]]:
    """Yield a vertical line and its name for each percentile that the samples support."""
    for place, (name, (share, dash)) in enumerate(_PERCENTILES.items()):
        value = result.quantile(share)
        if value is None:
            continue
        at = value * factor
        line = {"color": QUIET, "width": 1.5, "dash": dash}
        # Names on two heights: p95 and p99 are often near each other.
        y = 1.0 if place % 2 == 0 else 1.07
        yield (
            {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": y, "line": line},
            {
                "x": at,
                "y": y,
                "yref": "paper",
                "yanchor": "bottom",
                "text": name,
                "showarrow": False,
                "font": {"color": TEXT, "size": 12},
            },
        )
