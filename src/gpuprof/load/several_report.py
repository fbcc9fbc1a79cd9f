# SPDX-License-Identifier: Apache-2.0
"""The reports of a search of the highest rate, and of a sweep over concurrency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.bench.report import formatting
from gpuprof.bench.report.sections import Content, Section, section_of
from gpuprof.bench.report.table import Cell, Table, facts_table, figure, judged, table_of, whole
from gpuprof.bench.results.target import parse_target
from gpuprof.load.rate_plots import PlotMark, RatePoint, quantile_plot, throughput_plot
from gpuprof.load.report import write_formats
from gpuprof.load.result import LoadSettings
from gpuprof.load.search import CONFIDENCE as RATE_CONFIDENCE
from gpuprof.load.search import RateProbe
from gpuprof.load.several_runs import Ends, MaxRateResult, SweepResult
from gpuprof.load.sweep import ConcurrencyRun
from gpuprof.render.page import readable
from gpuprof.stats.distributions import student_quantile
from gpuprof.text.units import Quantity

_RATE, _CONCURRENCY = "offered requests per second", "concurrency"


def write_several(
    result: MaxRateResult | SweepResult, formats: Sequence[str], folder: Path, stem: str = "report"
) -> list[Path]:
    """Write a search or a sweep as files `stem.html` and so on; returns their paths. Raises GpuprofError."""
    if isinstance(result, MaxRateResult):
        content, rows = search_content(result), list(search_rows(result))
    else:
        content, rows = sweep_content(result), list(sweep_rows(result))
    return write_formats(content, rows, result.to_dict(), formats, folder, stem)


# --- the highest rate ------------------------------------------------------------------------------


def search_content(result: MaxRateResult) -> Content:
    """Return the content of the report of a search."""
    headline, *_ = str(result).splitlines()
    lines = [str(each) for each in result.found.reasons]
    lines += ["interrupted: rates that were not measured are missing"] if result.interrupted else []
    lines += [] if result.stopped is None else [str(result.stopped)]
    sections = (*_search_sections(result), _method(result.settings))
    return _content(result.settings, "The highest rate of", headline, lines, sections)


def _search_sections(result: MaxRateResult) -> Iterator[Section]:
    target = parse_target(result.settings.slo or "")
    probes = result.found.probes
    marks = []
    if result.found.value is not None:
        between = f"{formatting.rate.interval(result.found.low, result.found.high)}"
        kind = "estimate, " if result.found.is_estimate else ""
        text = f"highest rate: {formatting.rate(result.found.value)} ({kind}{between})"
        marks = [PlotMark("highest rate", result.found.value, text)]
    achieved, quantiles = [], []
    for each in probes:
        name, rates = formatting.rate(each.rate), result.achieved.get(each.rate)
        value, high = _finite(each.quantile.value), _finite(each.quantile.high)
        if rates:
            ends = _mean_ends(rates)
            achieved.append(RatePoint(each.rate, float(np.mean(rates)), *ends, f"{name} offered"))
        if value is not None:
            quantiles.append(RatePoint(each.rate, value, each.quantile.low, high, name))
    yield section_of(
        "rates",
        "Throughput",
        figures=(throughput_plot(achieved, _RATE, marks, is_offered=True),),
        lead="Achieved against offered rate; intervals (95%) are over the runs at a rate.",
    )
    yield section_of(
        "quantile",
        "Latency",
        search_table(result),
        figures=(quantile_plot(quantiles, target.figure, _RATE, marks, limit_s=target.limit_s),),
        lead=f"{target.figure} of the latency from the plan; intervals ({RATE_CONFIDENCE:.0%}) are over the "
        "independent runs at a rate. Failed requests are the latest.",
    )


def search_table(result: MaxRateResult) -> Table | None:
    """Return a row for each rate."""
    columns: dict[str, Any] = {
        "Achieved": lambda each: figure(_mean(result.achieved.get(each.rate, ())), formatting.rate),
        "Quantile": lambda each: figure(_finite(each.quantile.value), formatting.time, _interval(each)),
        "Runs": lambda each: whole(each.quantile.groups),
        "Target": lambda each: judged(each.verdict),
    }
    subjects = [(formatting.rate(each.rate), each) for each in result.found.probes]
    return table_of("Each rate with its runs.", columns, subjects, first="Rate")


def _interval(probe: RateProbe) -> str:
    low, high = probe.quantile.low, probe.quantile.high
    return "no interval" if low is None or high is None else _ends_text((low, high), formatting.time)


def search_rows(result: MaxRateResult) -> Iterator[dict[str, Any]]:
    """Yield a row of CSV for each rate; times are in milliseconds, an empty cell is unavailable."""
    for each in result.found.probes:
        rates = result.achieved.get(each.rate, ())
        low, high = _mean_ends(rates)
        yield {
            "target": readable(result.settings.target),
            "slo": result.settings.slo,
            "rate": each.rate,
            "runs": each.quantile.groups,
            "achieved_rate": _mean(rates),
            "achieved_rate_low": low,
            "achieved_rate_high": high,
            "quantile_ms": _milliseconds(each.quantile.value),
            "quantile_low_ms": _milliseconds(each.quantile.low),
            "quantile_high_ms": _milliseconds(each.quantile.high),
            "verdict": str(each.verdict),
            "highest_rate": result.found.value,
            "highest_rate_low": result.found.low,
            "highest_rate_high": result.found.high,
        }


# --- the sweep -------------------------------------------------------------------------------------


def sweep_content(result: SweepResult) -> Content:
    """Return the content of the report of a sweep."""
    point = result.found.saturation
    headline = "no saturation point: fewer than 3 numbers were measured"
    if result.found.has_growth:
        headline = "throughput still grows at the largest concurrency"
    if point is not None:
        headline = f"saturation point: concurrency {point}, with 90% of the best throughput"
    lines = [
        f"concurrency {each.concurrency}: contradicts Little's law by over 10%"
        for each in result.found.inconsistent
    ]
    lines += ["interrupted: what was not measured or fitted is missing"] if result.interrupted else []
    lines += [] if result.stopped is None else [str(result.stopped)]
    sections = (*_sweep_sections(result), _method(result.settings))
    return _content(result.settings, "Concurrency of", headline, lines, sections)


def _sweep_sections(result: SweepResult) -> Iterator[Section]:
    runs, point = result.found.runs, result.found.saturation
    marks = [] if point is None else [PlotMark("saturation point", point, f"concurrency {point}")]
    rates = [
        RatePoint(each.concurrency, each.throughput, *_ends(result.throughputs.get(each.concurrency)),
                  f"concurrency {each.concurrency}")
        for each in runs
    ]  # fmt: skip
    quantiles = [
        RatePoint(each.concurrency, value, *_ends(result.p99s.get(each.concurrency)),
                  f"concurrency {each.concurrency}")
        for each in runs
        if (value := result.p99_s[each.concurrency]) is not None
    ]  # fmt: skip
    yield section_of(
        "rates",
        "Throughput",
        sweep_table(result),
        figures=(throughput_plot(rates, _CONCURRENCY, marks),),
        lead="A closed loop at each concurrency; intervals (95%) are over parts of the run.",
    )
    yield section_of(
        "quantile",
        "Latency",
        figures=(quantile_plot(quantiles, "p99", _CONCURRENCY, marks),),
        lead="p99 of the latency; a point without an interval has too few independent requests for one.",
    )


def sweep_table(result: SweepResult) -> Table | None:
    """Return a row for each concurrency."""

    def ends(found: dict[int, Ends], run: ConcurrencyRun, write: Quantity) -> str:
        interval = found.get(run.concurrency)
        return "no interval" if interval is None else _ends_text(interval, write)

    columns: dict[str, Any] = {
        "Throughput": lambda run: figure(
            run.throughput, formatting.rate, ends(result.throughputs, run, formatting.rate)
        ),
        "Mean": lambda run: figure(_finite(run.mean_latency_s), formatting.time),
        "p99": lambda run: figure(
            result.p99_s[run.concurrency], formatting.time, ends(result.p99s, run, formatting.time)
        ),
        "Failed": lambda run: whole(result.failed.get(run.concurrency, 0)),
        "Little's law": lambda run: Cell("yes" if run.is_consistent else "no"),
    }
    subjects = [(str(each.concurrency), each) for each in result.found.runs]
    return table_of("Each concurrency.", columns, subjects, first="Concurrency")


def sweep_rows(result: SweepResult) -> Iterator[dict[str, Any]]:
    """Yield a row of CSV for each concurrency; times are in milliseconds, an empty cell is unavailable."""
    for each in result.found.runs:
        low, high = _ends(result.throughputs.get(each.concurrency))
        p99_low, p99_high = _ends(result.p99s.get(each.concurrency))
        yield {
            "target": readable(result.settings.target),
            "concurrency": each.concurrency,
            "throughput": each.throughput,
            "throughput_low": low,
            "throughput_high": high,
            "mean_ms": _milliseconds(each.mean_latency_s),
            "p99_ms": _milliseconds(result.p99_s[each.concurrency]),
            "p99_low_ms": _milliseconds(p99_low),
            "p99_high_ms": _milliseconds(p99_high),
            "failed": result.failed.get(each.concurrency, 0),
            "saturation": result.found.saturation,
        }


# --- parts -----------------------------------------------------------------------------------------


def _content(
    settings: LoadSettings, title: str, headline: str, lines: Sequence[str], sections: Sequence[Section]
) -> Content:
    return Content(
        document=None,
        looks={},
        title=f"{title} {readable(settings.target)}",
        subtitle=", ".join(filter(None, (settings.scenario, settings.pattern, settings.slo))),
        headline=headline,
        lines=tuple(lines),
        recommendations=(),
        cards=(),
        failures=(),
        sections=tuple(each for each in sections if each.figures or each.tables or each.lines),
    )


def _method(settings: LoadSettings) -> Section:
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    return section_of("method", "Methodology", facts_table("What was sent.", given))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _mean_ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the ends of Student's interval of a mean; None of fewer than two values."""
    if len(values) < 2:
        return None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(student_quantile(0.05, len(values) - 1)) * error
    mean = float(np.mean(values))
    return mean - half, mean + half


def _ends(found: Ends) -> tuple[float | None, float | None]:
    return (None, None) if found is None else found


def _ends_text(ends: tuple[float, float], write: Quantity) -> str:
    return (write.interval(*ends) if math.isfinite(ends[1]) else None) or f"from {write(ends[0])}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _milliseconds(value_s: float | None) -> float | None:
    return None if value_s is None or not math.isfinite(value_s) else value_s * 1e3
