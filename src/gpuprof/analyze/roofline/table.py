# SPDX-License-Identifier: Apache-2.0
"""The roofline as a table for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpuprof.analyze.ceilings.ceiling import GPU
from gpuprof.analyze.ceilings.text import format_ceiling
from gpuprof.analyze.roofline.evidence import Evidence
from gpuprof.analyze.roofline.labels import Bound
from gpuprof.analyze.roofline.rows import (
    RooflineData,
    RooflineDevice,
    RooflineKind,
    RooflineRow,
    Unmatched,
    folded,
)
from gpuprof.analyze.roofline.text import Duration, advice_text, evidence_text, note_text, reason_text
from gpuprof.text.sanitize import cell_width, escape_text, shorten
from gpuprof.text.table import GAP, MIN_FLEXIBLE_WIDTH, Column, text_table
from gpuprof.text.units import format_duration, format_share

# Rows with less of the time are left out without --top.
_MATTERS = 0.005
_MOST_ROWS = 30
_UNMATCHED_ROWS = 5
_LEGEND = (
    "time: percent of the time in recorded calls; for a GPU, of all GPU time. bound: the bottleneck. "
    "ceiling: utilization of the bottleneck's ceiling, or of the nearest ceiling if underutilized. conf.: "
    "confidence, 0 to 1. <-: in the backward pass."
)
# What would make the column too wide.
_SHORT = {Bound.NO_DOMINANT: "no dominant"}
# The least width of names next to long evidence.
_NAME_WIDTH = 20


def roofline_text(
    roofline: RooflineData, by: RooflineKind, top: int | None, width: int, *, flat: bool = False
) -> str:
    """Return the table by operator, layer or kernel, advice, what has no label, and notes.

    Repeated layers are one row, unless `flat`.
    """
    lines: list[str] = []
    rows = roofline.rows(by) if flat else folded(roofline.rows(by))
    for device in roofline.ran_on:
        of_device = [row for row in rows if row.device == device.device]
        lines += _of_device(roofline, device, by, of_device, top, width)
    lines += ["", *textwrap.wrap(_LEGEND, width)]
    lines += ["", *_advice(roofline, width)] if any(row.advice for row in roofline.operators) else []
    lines += _unmatched(roofline, width)
    for note in roofline.notes:
        lines += textwrap.wrap(escape_text(f"note: {note_text(note)}"), width, subsequent_indent="      ")
    return "\n".join(lines)


def _of_device(
    roofline: RooflineData,
    device: RooflineDevice,
    by: RooflineKind,
    rows: Sequence[RooflineRow],
    top: int | None,
    width: int,
) -> list[str]:
    """Return the rows of what ran there, and the ceilings that they are compared with."""
    if not rows and device != roofline.ran_on[0]:
        return []
    shown = rows[:top] if top is not None else _that_matter(rows)
    first = device == roofline.ran_on[0]
    lines = [] if first else [""]
    if len(roofline.ran_on) > 1 or device.device.startswith(GPU):
        lines += [escape_text(device_title(device)), ""]
    lines += [_table(by, shown, width)] if shown else [f"no {by} was both counted and timed"]
    if len(shown) < len(rows):
        rest = sum(row.time_share or 0 for row in rows[len(shown) :])
        lines.append(f"... and {len(rows) - len(shown):,} more with {rest:.1%} of the time")
    return [*lines, "", *_ceilings(roofline, device, width)]


def device_title(device: RooflineDevice, duration: Duration = format_duration) -> str:
    """Return the heading of a device: `cuda:0, NVIDIA H100: 12.3 ms of GPU time`."""
    name = f"{device.device}, {device.name}" if device.name else device.device
    base = "of GPU time" if device.device.startswith(GPU) else "in recorded calls"
    return f"{name}: {duration(device.total_ns)} {base}"


def _that_matter(rows: Sequence[RooflineRow]) -> Sequence[RooflineRow]:
    return [row for row in rows if (row.time_share or 0) >= _MATTERS][:_MOST_ROWS] or rows[:_MOST_ROWS]


def _table(by: str, rows: Sequence[RooflineRow], width: int) -> str:
    columns = [
        Column(by, right=False),
        Column("time"),
        Column("bound", right=False),
        Column("ceiling"),
        Column("conf."),
        Column("evidence", right=False),
    ]
    cells = [_cells(row) for row in rows]
    room = _evidence_room(columns, rows, cells, width)
    lines = [[*cell, _fitted(row.evidence, room)] for cell, row in zip(cells, rows, strict=True)]
    return text_table(columns, lines, width)


def _evidence_room(
    columns: Sequence[Column], rows: Sequence[RooflineRow], cells: Sequence[Sequence[str]], width: int
) -> int:
    """Return the width that the other columns leave; long names give way to the shortest evidence."""
    widths = [
        max(len(column.title), *(cell_width(escape_text(row[at])) for row in cells))
        for at, column in enumerate(columns[:-1])
    ]
    left = width - sum(widths[1:]) - len(GAP) * (len(columns) - 1)
    # Why a row has no label is listed below the table.
    figures = [row.evidence for row in rows if row.bound != Bound.UNKNOWN]
    needed = max((cell_width(_variants(evidence)[-1]) for evidence in figures), default=0)
    return max(left - widths[0], min(needed, left - _NAME_WIDTH), MIN_FLEXIBLE_WIDTH)


def _fitted(evidence: Evidence, room: int) -> str:
    """Leave out the less important parts before figures are cut."""
    variants = _variants(evidence)
    fitting = next((each for each in variants if cell_width(each) <= room), None)
    return shorten(variants[-1], room) if fitting is None else fitting


def _variants(evidence: Evidence) -> list[str]:
    """Return the evidence from the longest to the shortest; the heading above the table names the device."""
    options = ((True, True), (False, True), (False, False))
    return [
        escape_text(evidence_text(evidence, device=False, next_resource=next_resource, size=size))
        for next_resource, size in options
    ]


def _cells(row: RooflineRow) -> list[str]:
    mark = {"backward": "<- ", "optimizer": "opt "}.get(row.phase or "", "")
    return [
        f"{mark}{row.shown_name}",
        format_share(row.time_share),
        _bound(row),
        "-" if row.roof_share is None else f"{row.roof_share:.0%}",
        f"{row.confidence:.2f}",
    ]


def _bound(row: RooflineRow) -> str:
    if row.bound == Bound.MEMORY:
        return f"{row.bound} {row.memory_level}"
    return _SHORT.get(row.bound, str(row.bound))


def _ceilings(roofline: RooflineData, device: RooflineDevice, width: int) -> list[str]:
    parts = [
        f"{ceiling.resource}{f' {ceiling.dtype}' if ceiling.dtype else ''} " + format_ceiling(ceiling)
        for ceiling in roofline.ceilings_of(device.device)
    ]
    where = {"cpu.core": "one core", "cpu": "all cores"}.get(device.device, device.device)
    text = f"ceilings ({where}): {', '.join(parts) or 'none were measured'}"
    share = format_share(device.matched_share)
    base = f"the time on {device.device}" if device.device.startswith(GPU) else "the time in recorded calls"
    covered = f"operators with a label cover {share} of {base} ({format_duration(device.total_ns)})."
    if not device.device.startswith(GPU) and (outside := outside_text(roofline)):
        covered = f"{covered[:-1]}; {outside}."
    return [*textwrap.wrap(text, width, subsequent_indent="  "), *textwrap.wrap(covered, width)]


def _advice(roofline: RooflineData, width: int) -> list[str]:
    lines = []
    for row in roofline.operators:
        if row.advice is not None:
            text = f"{row.name} ({share_text(roofline, row)}): {advice_text(row.advice)}."
            lines += textwrap.wrap(
                escape_text(text), width, initial_indent="- ", subsequent_indent="  ", break_long_words=True
            )
    return lines


def _unmatched(roofline: RooflineData, width: int) -> list[str]:
    rows = roofline.unmatched
    if sum(row.time_share or 0 for row in rows) < _MATTERS:
        return []
    shown = [row for row in rows if (row.time_share or 0) >= _MATTERS][:_UNMATCHED_ROWS] or rows[:1]
    lines = ["", f"no label, {unmatched_text(roofline)}:"]
    several = len(roofline.ran_on) > 1
    for row in shown:
        where = (f" @ {row.layer}" if row.layer else "") + (f" on {row.device}" if several else "")
        text = f"  {format_share(row.time_share):>6}  {row.operator}{where}: {reason_text(row.reason)}"
        lines.append(shorten(escape_text(text), width))
    if rest := unmatched_rest(roofline, shown):
        lines.append(f"  ... {rest}")
    return lines


def share_text(roofline: RooflineData, row: RooflineRow) -> str:
    """Return the percent of the time of a row, with the device where there are several."""
    return format_share(row.time_share) + (f" of {row.device}" if len(roofline.ran_on) > 1 else "")


def unmatched_text(roofline: RooflineData) -> str:
    """Return the percent of the time without a label, of each device where there are several."""
    return _fractions_text(roofline, roofline.unmatched)


def outside_text(roofline: RooflineData) -> str | None:
    """Return the percent of the time in recorded calls in which no operator ran on the CPU; None for none."""
    device = next((each for each in roofline.ran_on if not each.device.startswith(GPU)), None)
    if device is None or device.matched_share is None:
        return None
    unlabeled = sum(row.time_share or 0 for row in roofline.unmatched if row.device == device.device)
    share = 1 - device.matched_share - unlabeled
    return f"{share:.1%} of the time in calls is outside of operators" if share >= _MATTERS else None


def unmatched_rest(roofline: RooflineData, shown: Sequence[Unmatched]) -> str | None:
    """Return the rest without a label after the rows `shown` ("and 3 more with 2.1% of the time") or None."""
    listed = set(map(id, shown))
    rest = [row for row in roofline.unmatched if id(row) not in listed]
    return f"and {len(rest):,} more with {_fractions_text(roofline, rest)}" if rest else None


def _fractions_text(roofline: RooflineData, rows: Sequence[Unmatched]) -> str:
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.device] = shares.get(row.device, 0) + (row.time_share or 0)
    if len(roofline.ran_on) < 2:
        return f"{sum(shares.values()):.1%} of the time"
    return ", ".join(f"{share:.1%} of the time of {device}" for device, share in shares.items())
