# SPDX-License-Identifier: Apache-2.0
"""The roofline page: a plot and a table in one HTML file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof.analyze.ceilings.ceiling import GPU
from gpuprof.analyze.roofline.rows import RooflineData, RooflineDevice, RooflineKind, RooflineRow
from gpuprof.analyze.roofline.table import (
    device_title,
    outside_text,
    share_text,
    unmatched_rest,
    unmatched_text,
)
from gpuprof.analyze.roofline.text import advice_text, evidence_text, note_text, reason_text
from gpuprof.render.page import (
    asset,
    duration,
    escaped,
    filled,
    html_table,
    notes_list,
    page_script,
    page_style,
    policy,
    readable,
    safe_json,
)

_KINDS: tuple[RooflineKind, ...] = ("operator", "layer", "kernel")
# More circles than this hide one another; the rest stays in the command's output.
_MOST_ROWS = 400
_STATIC_ROWS = 50
_UNMATCHED_ROWS = 12
# The page has no use for these.
_LEFT_OUT = ("kind", "root", "layer", "ordinal", "timing_spread", "group")


def roofline_page(roofline: RooflineData, *, title: str, subtitle: str) -> str:
    """Return a self-contained HTML page that shows `roofline`; it is meant to be written as UTF-8."""
    script = page_script("roofline.js")
    style = page_style("kit/page.css", "kit/bounds.css", "roofline/roofline.css")
    return filled(
        asset("roofline.html"),
        {
            "policy": policy(script, style),
            "style": style,
            "script": script,
            "title": escaped(title),
            "subtitle": escaped(subtitle),
            "base": _base(roofline.ran_on[0])[0],
            "base_title": _base(roofline.ran_on[0])[1],
            "notes": notes_list([note_text(note) for note in roofline.notes]),
            "total": escaped(duration(roofline.ran_on[0].total_ns)),
            "matched": escaped(_percent(roofline.ran_on[0].matched_share)),
            "advice": _advice(roofline),
            "unmatched": _unmatched(roofline),
            "static": _static(roofline.operators[:_STATIC_ROWS]),
            "data": safe_json(_data(roofline)),
        },
    )


def _data(roofline: RooflineData) -> dict[str, Any]:
    return {"devices": [_device_data(roofline, device) for device in roofline.ran_on]}


def _device_data(roofline: RooflineData, device: RooflineDevice) -> dict[str, Any]:
    """Return the rows of one device, and the ceilings that they are compared with."""
    rows = {by: [row for row in roofline.rows(by) if row.device == device.device] for by in _KINDS}
    used = {row.roof for row in rows["operator"]} | {"compute fp32"}
    return {
        "device": device.device,
        "title": device_title(device, _duration),
        "base": _base(device)[0],
        "base_title": _base(device)[1],
        "total": duration(device.total_ns),
        "matched": _percent(device.matched_share),
        "rows": {by: [_row(row) for row in found[:_MOST_ROWS]] for by, found in rows.items()},
        "counts": {by: len(found) for by, found in rows.items()},
        "ceilings": [
            {"resource": row.resource, "dtype": row.dtype, "value": row.value}
            for row in roofline.ceilings_of(device.device)
            if row.resource != "compute" or f"compute {row.dtype}" in used
        ],
    }


def _row(row: RooflineRow) -> dict[str, Any]:
    values = {key: value for key, value in row.as_dict().items() if key not in _LEFT_OUT}
    advice = None if row.advice is None else readable(advice_text(row.advice, _duration))
    evidence = readable(evidence_text(row.evidence, duration=_duration))
    return {**values, "name": readable(row.name), "evidence": evidence, "advice": advice}


def _duration(ns: float | None) -> str:
    return "-" if ns is None else duration(ns)


def _base(device: RooflineDevice) -> tuple[str, str]:
    """Return the name of a device's time base, and a sentence about it."""
    if device.device.startswith(GPU):
        return "GPU time", "Kernels, copies and fills on this GPU, added up"
    return "In calls", "Time inside of recorded calls; Python between them is in no row"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _advice(roofline: RooflineData) -> str:
    items = "".join(
        f"<li><b>{escaped(row.name)} ({escaped(share_text(roofline, row))})</b>"
        f"{escaped(advice_text(row.advice, _duration))}.</li>"
        for row in roofline.operators
        if row.advice is not None
    )
    return f'<section><h2>What to try</h2><ul class="advice">{items}</ul></section>' if items else ""


def _unmatched(roofline: RooflineData) -> str:
    shown = roofline.unmatched[:_UNMATCHED_ROWS]
    if not shown:
        return ""
    several = len(roofline.ran_on) > 1
    titles = ("Operator", "Layer", "Calls", "Time", "Percent", "Reason")
    lines = [
        (
            escaped(row.operator).replace("_", "_<wbr>"),
            escaped(row.layer or "–"),
            f"{row.calls:,}",
            escaped(duration(row.total_ns)),
            _percent(row.time_share) + (f" of {escaped(row.device)}" if several else ""),
            escaped(reason_text(row.reason)),
        )
        for row in shown
    ]
    heading = f"<h2>No label: {escaped(unmatched_text(roofline))}</h2>"
    scroll = '<div class="scroll" role="group" aria-label="No label" tabindex="0">'
    rest = unmatched_rest(roofline, shown)
    outside = outside_text(roofline)
    below = f"<p>… {escaped(rest)}</p>" if rest else ""
    below += f"<p>The other {escaped(outside)}.</p>" if outside else ""
    return f'<section class="unmatched">{heading}{scroll}{html_table(titles, lines)}</div>{below}</section>'


def _static(rows: Sequence[RooflineRow]) -> str:
    """Write the longest rows as HTML, for a reader without JavaScript."""
    titles = ("Name", "Device", "Time", "Bound", "Ceiling", "Confidence", "Evidence")
    lines = [
        (
            escaped(row.name),
            escaped(row.device),
            _percent(row.time_share),
            escaped(row.bound_text),
            _percent(row.roof_share),
            f"{row.confidence:.2f}",
            escaped(evidence_text(row.evidence, duration=_duration)),
        )
        for row in rows
    ]
    return "<p>The picture needs JavaScript.</p>" + html_table(titles, lines)
