# SPDX-License-Identifier: Apache-2.0
"""ReportTables of two variants that shared requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuprof.bench.compare.document import TrafficArm, TrafficFigures, TrafficRatio
from gpuprof.bench.messages import message
from gpuprof.bench.report import formatting
from gpuprof.bench.report.method_tables import plain_cell
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
from gpuprof.bench.verdicts import SpeedVerdict


def traffic_content(traffic: TrafficFigures) -> tuple[str, tuple[Table, ...], tuple[str, ...]]:
    """Return the advice, the tables, and what limits the figures."""
    tables = (_arms(traffic), _ratios(traffic), _settings(traffic))
    lines = [*map(message, traffic.notes), *_first_failures(traffic)]
    return _lead(traffic), tuple(each for each in tables if each.rows), tuple(lines)


def _first_failures(traffic: TrafficFigures) -> Iterator[str]:
    for arm in traffic.arms:
        if arm.first_failure is not None:
            yield f"{arm.variant}: the first failed request: {arm.first_failure}"


def _lead(traffic: TrafficFigures) -> str:
    action = message(traffic.advice.text)
    reasons = "; ".join(map(message, traffic.advice.because))
    return f"{action[:1].upper()}{action[1:]}{f'. Why: {reasons}' if reasons else ''}"


def _arms(traffic: TrafficFigures) -> Table:
    heads = (
        "Variant",
        "Share of the requests",
        "Requests",
        "Failed",
        "Failed in percent",
        "p50",
        "p95",
        "p99",
    )
    rows = tuple(_arm(each) for each in traffic.arms)
    return without_empty_columns(Table("Both variants of the traffic.", heads, rows))


def _arm(arm: TrafficArm) -> Row:
    cells = (
        Cell(arm.variant),
        figure(arm.share, formatting.share),
        figure(arm.requests, lambda value: f"{value:,.0f}"),
        figure(arm.failed, lambda value: f"{value:,.0f}"),
        between(arm.failed_share, formatting.share),
        *(between(each, formatting.time) for each in (arm.p50_s, arm.p95_s, arm.p99_s)),
    )
    return Row(cells, arm.variant)


def _ratios(traffic: TrafficFigures) -> Table:
    first, second = traffic.variants
    caption = f"Times of {second} over those of {first}: below 1 is faster."
    heads = ("Figure", "Ratio", "Margin", "Process runs", "Verdict")
    return without_empty_columns(Table(caption, heads, tuple(_ratio(each) for each in traffic.figures)))


def _ratio(figures: TrafficRatio) -> Row:
    ratio = between(figures.ratio, formatting.number)
    if figures.verdict == SpeedVerdict.INSUFFICIENT:
        ratio = Cell("too few samples", tone="missing")
    return Row(
        (
            Cell(figures.figure),
            ratio,
            figure(figures.margin, formatting.share),
            figure(figures.launches, lambda value: f"{value:,.0f}"),
            judged(figures.verdict),
        )
    )


def _settings(traffic: TrafficFigures) -> Table:
    """Return the settings as rows, and what concerns both variants."""
    facts = {
        "process runs": traffic.launches,
        "confidence of intervals": traffic.confidence,
        **traffic.settings,
        "interrupted": traffic.interrupted or None,
    }
    rows = [row for row in _flat("", facts) if row[1] != MISSING]
    if traffic.failure_difference is not None:
        points = between(traffic.failure_difference, formatting.points)
        rows.append((Cell("change of the requests that failed"), points))
    return plain_table("How the traffic was split.", ("What", "Value"), rows, word_columns=2)


def _flat(name: str, value: object) -> Iterator[tuple[Cell, Cell]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}: {key}" if name else str(key), each)
    else:
        yield Cell(name.removesuffix("_s").replace("_", " ")), plain_cell(value, name)
