# SPDX-License-Identifier: Apache-2.0
"""`performance_report.html`: latency, throughput, memory, accuracy and cost of techniques, on one page."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.document import document_from
from gpuprof.bench.report.plot_parts import label
from gpuprof.bench.report.sections import content_of
from gpuprof.bench.report.writers import report_page, required_packages
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.files import write_whole
from gpuprof.errors import BenchmarkError
from gpuprof.render.page import escaped, html_table, page_style, policy

UNAVAILABLE = "unavailable"
_SECONDS_PER_HOUR = 3_600
_TEXT, _GRID = "#7a828e", "rgba(128,128,128,0.3)"
_STYLE = (
    "section { margin-block: 24px; overflow-x: auto; }"
    # Plotly sets its own colors for these, which are hard to see on a dark page.
    " .modebar-group { background: var(--page) !important; }"
    " .modebar-btn .icon path { fill: var(--quiet) !important; }"
    " .modebar-btn:is(.active, :hover, :focus-visible) .icon path { fill: var(--accent) !important; }"
)
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": [["zoom2d", "resetScale2d", "toImage"]],
}
# Plotly's own, one for each plot; what users named is escaped in them.
_SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The figures of one technique at one batch size; None is unavailable."""

    name: str
    batch_size: int
    p50_ms: float
    p95_ms: float | None = None
    p99_ms: float | None = None
    samples_per_s: float | None = None
    memory_mb: float | None = None
    accuracy: float | None = None


def generate_performance_report(
    results: Mapping[str, Any] | Sequence[BatchResult],
    path: str | os.PathLike[str] = "performance_report.html",
    *,
    price_per_hour: float | None = None,
) -> Path:
    """Write a page of results, and return its path.

    `results` are by the names of techniques, the first one the baseline: the figures of `LatencyBenchmark` or
    of `BenchmarkSuite.results`, with `accuracy` if it is known, or the list of `ThroughputBenchmark`. Or they
    are the list of `run_inference_benchmark`, or the document of `run_comparison`, which has the page of
    `gpuprof compare`. Costs need the price of the machine. Raises BenchmarkError for other results,
    UnavailableError without the packages of reports.
    """
    required_packages()
    if isinstance(results, Mapping) and "variants" in results:
        page = report_page(content_of(document_from(results)))
    else:
        measured = [*_measured(results)]
        if not measured:
            raise BenchmarkError("no_results", "there are no results to report", hint="measure first")
        page = _page(measured, price_per_hour)
    try:
        write_whole(Path(path), page)
    except OSError as error:
        raise BenchmarkError(
            "cannot_write", f"{path}: it cannot be written ({error.strerror})", hint="use another folder"
        ) from error
    return Path(path)


def _measured(results: Any) -> Iterator[_Measured]:
    if not isinstance(results, Mapping):
        for each in results:
            yield _of_batch(each)
        return
    for name, figures in results.items():
        for each in figures if isinstance(figures, (list, tuple)) else [figures]:
            yield _of_figures(str(name), each)


def _of_batch(batch: Any) -> _Measured:
    if not isinstance(batch, BatchResult):
        raise _not_figures(type(batch).__name__)
    median_s = batch.result.plain_quantile(0.5)
    if median_s is None:
        raise _not_figures(batch.description.model)
    return _Measured(
        " ".join(filter(None, (batch["model"], batch["framework"], batch["recipe"]))),
        batch.batch_size,
        median_s * 1e3,
        batch["latency_p95_ms"],
        batch["latency_p99_ms"],
        batch["throughput_ips"],
        batch["memory_mb"],
    )


def _of_figures(name: str, figures: Any) -> _Measured:
    if isinstance(figures, BatchResult):
        return _of_batch(figures)
    if not isinstance(figures, Mapping) or "p50" not in figures:
        raise _not_figures(name)
    names = ("p95", "p99", "samples_per_s", "memory_mb", "accuracy")
    values = (figures.get(each) for each in names)
    return _Measured(name, int(figures.get("batch_size", 1)), float(figures["p50"]), *values)


def _not_figures(name: str) -> BenchmarkError:
    return BenchmarkError(
        "invalid_results",
        f"{name} has no latency figures",
        hint="give results of LatencyBenchmark, BenchmarkSuite, run_inference_benchmark or run_comparison",
    )


# --- the page ------------------------------------------------------------------------------------


def _page(measured: Sequence[_Measured], price_per_hour: float | None) -> str:
    speedups = [_speedup(each, measured) for each in measured]
    sections = {
        "Latency": _latency_table(measured),
        "Throughput": _plot(_throughput(measured), "batch size", "samples/s (QPS)"),
        "Memory": _plot(_bars(measured, [each.memory_mb for each in measured]), "", "memory (MB)"),
        "Accuracy and speed-up": _plot(_accuracy(measured), "speed-up", "accuracy"),
        "Speed-up by technique": _plot(_bars(measured, speedups), "", "speed-up"),
        "Cost": _cost_table(measured, price_per_hour),
        "Recommendations": _recommendations(measured),
    }
    library: str = importlib.import_module("plotly.offline").get_plotlyjs()
    body = "".join(
        f"<section><h2>{title}</h2>{html or f'<p>{UNAVAILABLE}</p>'}</section>\n"
        for title, html in sections.items()
    )
    allowed = policy(library, None, *_SCRIPT.findall(body))
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        f"<title>Performance report</title><style>{page_style('kit/page.css')}{_STYLE}</style>"
        f"<script>{library}</script></head>\n"
        f"<body><main><h1>Performance report</h1>\n{body}</main></body></html>\n"
    )


def _speedup(each: _Measured, measured: Sequence[_Measured]) -> float | None:
    """Return the median of the first technique over this one's, at the same batch size."""
    same = (one for one in measured if one.batch_size == each.batch_size and one.name == measured[0].name)
    baseline = next(same, None)
    return None if baseline is None or each.p50_ms <= 0 else baseline.p50_ms / each.p50_ms


def _number(value: float | None, form: str) -> str:
    return UNAVAILABLE if value is None else format(value, form)


def _latency_table(measured: Sequence[_Measured]) -> str:
    titles = ["Model", "Batch size", "p50 (ms)", "p95 (ms)", "p99 (ms)", "Speedup"]
    rows = []
    for each in measured:
        speedup = _speedup(each, measured)
        times = [_number(value, ".3f") for value in (each.p50_ms, each.p95_ms, each.p99_ms)]
        last = UNAVAILABLE if speedup is None else f"{speedup:.1f}x"
        rows.append([escaped(each.name), str(each.batch_size), *times, last])
    return html_table(titles, rows)


def _throughput(measured: Sequence[_Measured]) -> list[dict[str, Any]]:
    """Return a line over the batch sizes for each technique."""
    found = []
    for name in dict.fromkeys(each.name for each in measured):
        own = [each for each in measured if each.name == name and each.samples_per_s is not None]
        own.sort(key=lambda each: each.batch_size)
        if own:
            x, y = [each.batch_size for each in own], [each.samples_per_s for each in own]
            found.append({"type": "scatter", "mode": "lines+markers", "name": label(name), "x": x, "y": y})
    return found


def _bars(measured: Sequence[_Measured], values: Sequence[float | None]) -> list[dict[str, Any]]:
    names = [_name_of(each, measured) for each in measured]
    known = [(label(name), value) for name, value in zip(names, values, strict=True) if value is not None]
    return [{"type": "bar", "x": [name for name, _ in known], "y": [y for _, y in known]}] if known else []


def _accuracy(measured: Sequence[_Measured]) -> list[dict[str, Any]]:
    """Return the points of each technique."""
    found = []
    for name in dict.fromkeys(each.name for each in measured):
        own = [(_speedup(each, measured), each.accuracy) for each in measured if each.name == name]
        known = [pair for pair in own if None not in pair]
        if known:
            x, y = zip(*known, strict=True)
            found.append({"type": "scatter", "mode": "markers", "name": label(name), "x": x, "y": y})
    return found


def _name_of(each: _Measured, measured: Sequence[_Measured]) -> str:
    is_single = sum(one.name == each.name for one in measured) == 1
    return each.name if is_single else f"{each.name}, batch size {each.batch_size}"


def _plot(traces: list[dict[str, Any]], x: str, y: str) -> str:
    if not traces:
        return ""
    graph = importlib.import_module("plotly.graph_objects")
    figure = graph.Figure(traces)
    # Colors that can be read on a light and on a dark page.
    axes = {"gridcolor": _GRID, "linecolor": _GRID, "zerolinecolor": _GRID}
    figure.update_layout(
        xaxis={"title": x, "automargin": True, **axes},
        yaxis={"title": y, **axes},
        height=360,
        # The buttons have a row above what is drawn, and the legend one or more below it.
        margin={"l": 60, "r": 20, "t": 36, "b": 50},
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _TEXT},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
    )
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG)
    return text


def _cost_table(measured: Sequence[_Measured], price_per_hour: float | None) -> str:
    if price_per_hour is None:
        return ""
    rows = [
        [
            escaped(each.name),
            str(each.batch_size),
            f"{price_per_hour / _SECONDS_PER_HOUR / each.samples_per_s * 1e6:.4g}",
        ]
        for each in measured
        if each.samples_per_s
    ]
    return html_table(["Model", "Batch size", "Cost of a million samples"], rows) if rows else ""


def _recommendations(measured: Sequence[_Measured]) -> str:
    """Return statements that follow from the figures."""
    fastest = min(measured, key=lambda each: each.p50_ms / each.batch_size)
    lines = [f"{_name_of(fastest, measured)} has the lowest median latency for each sample."]
    rates = [each for each in measured if each.samples_per_s is not None]
    if rates:
        best = max(rates, key=lambda each: each.samples_per_s or 0.0)
        lines.append(f"{_name_of(best, measured)} has the highest throughput.")
    base = measured[0].accuracy
    lines += [
        f"{_name_of(each, measured)} has a lower accuracy than {measured[0].name}."
        for each in measured[1:]
        if base is not None and each.accuracy is not None and each.accuracy < base
    ]
    if any(each.accuracy is None for each in measured):
        lines.append("Measure the accuracy: it is missing for at least one result.")
    lines.append("Compare variants in fresh processes with gpuprof compare before choosing one.")
    return "<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in lines) + "</ul>"
