# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison under load: verdicts, latencies of each variant, and their tails in one plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.bench.gate.result import GateRow
from gpuprof.bench.number_text import interval_text
from gpuprof.bench.report import formatting
from gpuprof.bench.report.sections import Content, Section, section_of
from gpuprof.bench.report.table import Cell, Table, facts_table, figure, judged, table_of, whole, words
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.load.compared_loads import LoadComparison, LoadVariant
from gpuprof.load.gate_side import configuration_of
from gpuprof.load.plots import tails
from gpuprof.load.report import write_formats
from gpuprof.load.requests import is_ok, latency_ns
from gpuprof.render.page import readable
from gpuprof.text.units import Quantity

_TONES = {"better": "good", "worse": "bad"}
_RATES = (RunMetric.THROUGHPUT,)


def write_comparison(
    comparison: LoadComparison, formats: Sequence[str], folder: Path, stem: str = "report"
) -> list[Path]:
    """Write a comparison as files `stem.html` and so on; returns their paths. Raises GpuprofError."""
    rows = list(comparison_rows(comparison))
    return write_formats(comparison_content(comparison), rows, comparison.to_dict(), formats, folder, stem)


def comparison_content(comparison: LoadComparison) -> Content:
    """Return the content of the report."""
    first = comparison.baseline.runs[0].result
    names = ", ".join(readable(each.name) for each in comparison.variants)
    lines = [str(each) for each in comparison.gate.notes]
    return Content(
        document=None,
        looks={},
        title=f"Load on {names}",
        subtitle=configuration_of(first.settings).load or "",
        headline=comparison.headline,
        lines=tuple(lines),
        recommendations=(),
        cards=(),
        failures=(),
        sections=tuple(each for each in _sections(comparison) if each.figures or each.tables or each.lines),
    )


def _sections(comparison: LoadComparison) -> Iterator[Section]:
    baseline = readable(comparison.baseline.name)
    yield section_of(
        "verdicts",
        "Verdicts",
        verdict_table(comparison),
        lead=f"Each variant next to {baseline}. All rows have one correction (95%).",
    )
    series = {}
    for each in (variant for variant in comparison.variants if variant.runs):
        rows = np.concatenate([run.result.rows for run in each.runs])
        series[readable(each.name)] = latency_ns(rows[is_ok(rows)]) / 1e9
    alternative = "The fraction of requests of each variant whose latency from the plan was longer."
    yield section_of(
        "tail", "Tail", figures=(tails(series, alternative),), lead="How many requests took longer."
    )
    yield section_of("runs", "Runs", run_table(comparison.variants))
    first = comparison.baseline.runs[0].result
    yield section_of("environment", "Test environment", facts_table("Where.", first.run.environment))


def verdict_table(comparison: LoadComparison) -> Table | None:
    """Return a row for each figure of each variant."""
    columns: dict[str, Any] = {
        "Metric": lambda row: words(str(row.metric)),
        "Baseline": lambda row: figure(row.baseline, _quantity(row)),
        "Candidate": lambda row: figure(row.candidate, _quantity(row)),
        "Ratio": lambda row: figure(row.ratio, formatting.ratio, _interval(row)),
        "Threshold": lambda row: figure(row.threshold, formatting.share),
        "Verdict": lambda row: Cell(str(row.verdict), tone=_TONES.get(str(row.verdict), "")),
        "Reason": lambda row: Cell("" if row.reason is None else str(row.reason)),
    }
    subjects = [
        (readable(each.name), row) for each in comparison.others for row in comparison.rows_of(each.name)
    ]
    caption = "A ratio above 1 is worse: of rates and fractions it is the baseline over the candidate."
    return table_of(caption, columns, subjects, first="Variant")


def _quantity(row: GateRow) -> Quantity:
    if row.metric in _RATES:
        return formatting.rate
    return formatting.share if row.metric.is_fraction else formatting.time


def _interval(row: GateRow) -> str:
    found = row.judgement
    return "" if found is None or found.low is None else interval_text(found.low, found.high)


def run_table(variants: Sequence[LoadVariant]) -> Table | None:
    """Return a row for each run of each variant."""
    columns: dict[str, Any] = {
        "Requests": lambda run: whole(len(run.result.rows)),
        "Achieved": lambda run: figure(run.result.achieved_rate, formatting.rate),
        "p50": lambda run: figure(run.result.latency.p50, formatting.time),
        "p99": lambda run: figure(run.result.latency.p99, formatting.time),
        "Service p50": lambda run: figure(run.result.service.p50, formatting.time),
        "Failed": lambda run: whole(int((~is_ok(run.result.rows)).sum())),
        "Target": lambda run: judged(run.result.verdict),
        "Warnings": lambda run: Cell(", ".join(dict.fromkeys(each.code for each in run.result.warnings))),
    }
    subjects = [(readable(each.name), run) for each in variants for run in each.runs]
    return table_of("Each run; latency is from the planned arrival.", columns, subjects, first="Variant")


def comparison_rows(comparison: LoadComparison) -> Iterator[dict[str, Any]]:
    """Yield a row of CSV for each figure of each variant; times are in seconds."""
    for each in comparison.others:
        for row in comparison.rows_of(each.name):
            found = row.judgement
            yield {
                "variant": readable(each.name),
                "baseline": readable(comparison.baseline.name),
                "load": row.configuration.load,
                "metric": str(row.metric),
                "unit": row.metric.unit,
                "baseline_value": row.baseline,
                "value": row.candidate,
                "ratio": row.ratio,
                "ratio_low": None if found is None else found.low,
                "ratio_high": None if found is None else found.high,
                "threshold": row.threshold,
                "verdict": str(row.verdict),
                "recommended": comparison.choice is each,
            }
