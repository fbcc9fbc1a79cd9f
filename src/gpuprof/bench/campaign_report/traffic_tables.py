# SPDX-License-Identifier: Apache-2.0
"""A split of traffic between two variants: what to do, both sides, and how the second compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuprof.bench.campaign_report import words
from gpuprof.bench.campaign_report.more_tables import plain_cell
from gpuprof.bench.campaign_report.plain_values import Plain, each_of, mapping, number, text, word
from gpuprof.bench.campaign_report.reading import interval_of
from gpuprof.bench.campaign_report.tables import (
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

_DEEPEST = 4
# What stands in the tables and sentences, and each launch's figures, which the JSON holds.
_TOLD = ("arms", "figures", "advice", "notes", "headline", "launch_ratios", "variants", "split")


def traffic_content(traffic: Plain) -> tuple[str, tuple[Table, ...], tuple[str, ...]]:
    """Return the advice, the tables, and what is to be known of the figures."""
    told = [_arms(traffic), _figures(traffic), _rest(traffic)]
    lines = [*each_of(traffic.get("notes"), word), *_first_failures(traffic)]
    return _lead(traffic), tuple(each for each in told if each.rows), tuple(lines)


def _first_failures(traffic: Plain) -> Iterator[str]:
    for arm in each_of(traffic.get("arms"), mapping):
        reason = text(arm.get("first_failure"))
        if reason is not None:
            yield f"{text(arm.get('variant')) or words.UNAVAILABLE}: the first that failed: {reason}"


def _lead(traffic: Plain) -> str:
    advice = traffic.get("advice")
    if isinstance(advice, Mapping):
        because = text(advice.get("because"))
        said = f"{text(advice.get('text')) or ''}{f'. Why: {because}' if because else ''}"
    else:
        said = text(advice) or ""
    whole = " ".join(filter(None, (text(traffic.get("headline")), said)))
    return f"{whole[:1].upper()}{whole[1:]}"


def _arms(traffic: Plain) -> Table:
    heads = (
        "Variant",
        "Share of the requests",
        "Requests",
        "Failed",
        "Share that failed",
        "p50",
        "p95",
        "p99",
    )
    rows = each_of(traffic.get("arms"), lambda arm: _arm(mapping(arm)))
    caption = "Both sides of the traffic."
    return without_empty_columns(Table(caption, heads, rows))


def _arm(arm: Plain) -> Row:
    name = text(arm.get("variant")) or text(arm.get("name")) or words.UNAVAILABLE
    cells = [
        Cell(name),
        figure(number(arm.get("share")), words.share),
        figure(number(arm.get("requests")), lambda value: f"{value:,.0f}"),
        figure(number(arm.get("failed")), lambda value: f"{value:,.0f}"),
        between(interval_of(arm.get("failed_share")), words.share),
    ]
    cells += [
        between(interval_of(arm.get(f"{quantile}_s")), words.time) for quantile in ("p50", "p95", "p99")
    ]
    return Row(tuple(cells), name)


def _figures(traffic: Plain) -> Table:
    rows = each_of(traffic.get("figures"), lambda one: _figure(mapping(one)))
    first, second = (*each_of(traffic.get("variants"), word), "the first", "the second")[:2]
    caption = f"Times of {second} over those of {first}: below 1 is faster."
    return without_empty_columns(Table(caption, ("Figure", "Ratio", "Margin", "Launches", "Verdict"), rows))


def _figure(one: Plain) -> Row:
    ratio = between(interval_of(one.get("ratio")), words.number)
    if ratio == MISSING and one.get("verdict") == "insufficient":
        ratio = Cell("insufficient", tone="missing")
    cells = (
        Cell(text(one.get("figure")) or words.UNAVAILABLE),
        ratio,
        figure(number(one.get("margin")), words.share),
        figure(number(one.get("launches")), lambda value: f"{value:,.0f}"),
        judged(text(one.get("verdict"))),
    )
    return Row(cells)


def _rest(traffic: Plain) -> Table:
    """Return whatever else it tells as rows."""
    rows = [row for key, value in traffic.items() if key not in _TOLD for row in _flat(str(key), value)]
    shown = [row for row in rows if row[1] != MISSING]
    return plain_table("How the traffic was split.", ("What", "Value"), shown, word_columns=2)


def _flat(name: str, value: object, depth: int = 0) -> Iterator[tuple[Cell, Cell]]:
    """Yield nested tables and lists as rows."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for key, each in value.items():
            yield from _flat(f"{name}: {key}", each, depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEEPEST and any(isinstance(e, Mapping) for e in value):
        for place, each in enumerate(value, 1):
            label = each.get("name", place) if isinstance(each, Mapping) else place
            yield from _flat(f"{name}: {label}", each, depth + 1)
    else:
        yield Cell(name.removesuffix("_s").replace("_", " ")), plain_cell(value, name)
