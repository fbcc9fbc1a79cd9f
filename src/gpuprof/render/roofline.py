# SPDX-License-Identifier: Apache-2.0
"""The roofline page: a plot and a table in one HTML file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof.analyze.roofline.rows import Roofline, RooflineRow, Unmatched
from gpuprof.render.page import (
    asset,
    duration,
    escaped,
    filled,
    joined_scripts,
    notes_list,
    policy,
    readable,
    safe_json,
)

_SCRIPTS = (
    "format.js",
    "roofline/units.js",
    "roofline/scale.js",
    "roofline/plot.js",
    "roofline/table.js",
    "roofline/choose.js",
    "roofline/controls.js",
    "roofline/main.js",
)
# More circles than this hide one another; the rest stays in the command's output.
_MOST_ROWS = 400
_STATIC_ROWS = 50
_UNMATCHED_ROWS = 12
# What is not of use in the page.
_LEFT_OUT = ("kind", "root", "layer", "ordinal", "timing_spread")


def roofline_page(roofline: Roofline, *, title: str, subtitle: str) -> str:
    """Return a self-contained HTML page that shows `roofline`; it is meant to be written as UTF-8."""
    script = joined_scripts(_SCRIPTS)
    style = asset("page.css") + asset("roofline/page.css")
    return filled(
        asset("roofline/page.html"),
        {
            "policy": policy(script, style),
            "style": style,
            "script": script,
            "title": escaped(title),
            "subtitle": escaped(subtitle),
            "notes": notes_list(roofline.notes),
            "total": escaped(duration(roofline.total_ns)),
            "matched": escaped(_percent(roofline.matched_share)),
            "advice": _advice(roofline.operators),
            "unmatched": _unmatched(roofline.unmatched),
            "static": _static(roofline.operators[:_STATIC_ROWS]),
            "data": safe_json(_data(roofline)),
        },
    )


def _data(roofline: Roofline) -> dict[str, Any]:
    used = {row.roof for row in roofline.operators} | {"compute fp32"}
    return {
        "operator": [_row(row) for row in roofline.operators[:_MOST_ROWS]],
        "layer": [_row(row) for row in roofline.layers[:_MOST_ROWS]],
        "counts": {"operator": len(roofline.operators), "layer": len(roofline.layers)},
        "ceilings": [
            {"resource": row.resource, "dtype": row.dtype, "value": row.value}
            for row in roofline.ceilings
            if row.resource != "compute" or f"compute {row.dtype}" in used
        ],
    }


def _row(row: RooflineRow) -> dict[str, Any]:
    values = {key: value for key, value in row.as_dict().items() if key not in _LEFT_OUT}
    return {**values, "name": readable(row.name), "evidence": readable(row.evidence)}


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _advice(rows: Sequence[RooflineRow]) -> str:
    items = "".join(
        f"<li><b>{escaped(row.name)} ({_percent(row.time_share)})</b>{escaped(row.advice)}.</li>"
        for row in rows
        if row.advice is not None
    )
    return f'<section><h2>What to try</h2><ul class="advice">{items}</ul></section>' if items else ""


def _unmatched(rows: Sequence[Unmatched]) -> str:
    shown = rows[:_UNMATCHED_ROWS]
    if not shown:
        return ""
    titles = ("Operator", "Layer", "Calls", "Time", "Share", "Why it has no label")
    lines = [
        (
            escaped(row.operator),
            escaped(row.layer or "–"),
            f"{row.calls:,}",
            escaped(duration(row.total_ns)),
            _percent(row.time_share),
            escaped(row.reason),
        )
        for row in shown
    ]
    share = sum(row.time_share or 0 for row in rows)
    heading = f"<h2>Without a label: {share:.1%} of the time</h2>"
    return f'<section class="unmatched">{heading}{_table(titles, lines)}</section>'


def _static(rows: Sequence[RooflineRow]) -> str:
    """Write the longest rows as HTML, for a reader without JavaScript."""
    titles = ("Name", "Time", "Bound", "Roof", "Sure", "Evidence")
    lines = [
        (
            escaped(row.name),
            _percent(row.time_share),
            escaped(row.bound_text),
            _percent(row.roof_share),
            f"{row.confidence:.2f}",
            escaped(row.evidence),
        )
        for row in rows
    ]
    return "<p>The picture needs JavaScript.</p>" + _table(titles, lines)


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{cells[0]}</th>{"".join(f"<td>{cell}</td>" for cell in cells[1:])}</tr>'
        for cells in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
