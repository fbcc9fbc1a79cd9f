# SPDX-License-Identifier: Apache-2.0
"""The roofline for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from gpuprof.analyze.ceilings.ceiling import GPU
from gpuprof.analyze.ceilings.text import format_ceiling
from gpuprof.analyze.roofline.rows import Roofline, RooflineDevice, RooflineKind, RooflineRow, Unmatched
from gpuprof.analyze.text_table import (
    GAP,
    MIN_FLEXIBLE_WIDTH,
    Column,
    cell_width,
    escape_text,
    format_duration,
    format_share,
    shorten,
    text_table,
)

# What takes less of the time is left out where nobody asks for a number of rows.
_MATTERS = 0.005
_MOST_ROWS = 30
_UNMATCHED_ROWS = 5
_SHORT = {"compute": "compute", "memory": "memory", "latency": "latency", "page faults": "faults"}
_LEGEND = (
    "time: share of the time in recorded calls, on a GPU of all its time. roof: share that is used of the "
    "roof that binds, or of the nearest where none does (low). sure: 0 to 1. <-: in the backward pass."
)
# Names keep that much where the evidence is long.
_NAME_WIDTH = 20
_BOUND = 2  # the column
# What evidence goes without, in this order, before anything is cut out of it.
_SPARE = (
    re.compile(r"; (compute|memory|latency|page faults) [\d,]+%$"),
    re.compile(r", [\d.,]+ [kMGTP]?B( ideal| measured| partly measured)?(?=;|$)"),
)


def roofline_text(roofline: Roofline, by: RooflineKind, top: int | None, width: int) -> str:
    """Return the table by operator, layer or kernel, advice, what is not labelled, and notes."""
    lines: list[str] = []
    for device in roofline.ran_on:
        lines += _of_device(roofline, device, by, top, width)
    lines += ["", *textwrap.wrap(_LEGEND, width)]
    lines += ["", *_advice(roofline, width)] if any(row.advice for row in roofline.operators) else []
    lines += _unmatched(roofline, width)
    for note in roofline.notes:
        lines += textwrap.wrap(escape_text(f"note: {note}"), width, subsequent_indent="      ")
    return "\n".join(lines)


def _of_device(
    roofline: Roofline, device: RooflineDevice, by: RooflineKind, top: int | None, width: int
) -> list[str]:
    """Return the rows of what ran there, and the roofs that they are held against."""
    rows = [row for row in roofline.rows(by) if row.device == device.device]
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
    return [*lines, "", *_roofs(roofline, device, width)]


def device_title(device: RooflineDevice) -> str:
    """Return what a device is called where several have rows: `cuda:0, NVIDIA H100: 12.3 ms`."""
    name = f"{device.device}, {device.name}" if device.name else device.device
    base = "of GPU time" if device.device.startswith(GPU) else "in recorded calls"
    return f"{name}: {format_duration(device.total_ns)} {base}"


def _that_matter(rows: Sequence[RooflineRow]) -> Sequence[RooflineRow]:
    return [row for row in rows if (row.time_share or 0) >= _MATTERS][:_MOST_ROWS] or rows[:_MOST_ROWS]


def _table(by: str, rows: Sequence[RooflineRow], width: int) -> str:
    columns = [
        Column(by, right=False),
        Column("time"),
        Column("bound", right=False),
        Column("roof"),
        Column("sure"),
        Column("evidence", right=False),
    ]
    cells = [_cells(row) for row in rows]
    room = _evidence_room(columns, cells, width)
    return text_table(columns, [[*row[:-1], _fitted(row[-1], room)] for row in cells], width)


def _evidence_room(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> int:
    """Return what the other columns leave; long names give way to evidence that says no more than it must."""
    widths = [
        max(len(column.title), *(cell_width(escape_text(row[at])) for row in cells))
        for at, column in enumerate(columns)
    ]
    left = width - sum(widths[1:-1]) - len(GAP) * (len(columns) - 1)
    # Why something is unknown stands in full below the table.
    figures = [row[-1] for row in cells if row[_BOUND] != "unknown"]
    needed = max((cell_width(_without(line, *_SPARE)) for line in figures), default=0)
    return max(left - widths[0], min(needed, left - _NAME_WIDTH), MIN_FLEXIBLE_WIDTH)


def _fitted(text: str, room: int) -> str:
    """Leave out what decides nothing before figures are cut."""
    tried = (_without(text, *_SPARE[:number]) for number in range(len(_SPARE) + 1))
    shortest = next((each for each in tried if cell_width(each) <= room), None)
    return shorten(_without(text, *_SPARE), room) if shortest is None else shortest


def _without(text: str, *patterns: re.Pattern[str]) -> str:
    for pattern in patterns:
        text = pattern.sub("", text)
    return text


def _cells(row: RooflineRow) -> list[str]:
    mark = {"backward": "<- ", "optimizer": "opt "}.get(row.phase or "", "")
    return [
        f"{mark}{row.name}",
        format_share(row.time_share),
        _bound(row),
        "-" if row.roof_share is None else f"{row.roof_share:.0%}",
        f"{row.confidence:.2f}",
        # The device stands above the table.
        escape_text(row.evidence.removeprefix(f"{row.device}: ")),
    ]


def _bound(row: RooflineRow) -> str:
    if row.bound == "memory":
        return f"memory {row.memory_level}"
    return f"low {_SHORT[row.nearest]}" if row.bound == "under-utilised" and row.nearest else row.bound


def _roofs(roofline: Roofline, device: RooflineDevice, width: int) -> list[str]:
    parts = [
        f"{ceiling.resource}{f' {ceiling.dtype}' if ceiling.dtype else ''} " + format_ceiling(ceiling)
        for ceiling in roofline.roofs_of(device.device)
    ]
    where = {"cpu.core": "one core", "cpu": "all cores"}.get(device.device, device.device)
    text = f"roofs ({where}): {', '.join(parts) or 'none were measured'}"
    share = format_share(device.matched_share)
    base = f"the time on {device.device}" if device.device.startswith(GPU) else "the time in recorded calls"
    covered = f"labelled operators cover {share} of {base} ({format_duration(device.total_ns)})."
    return [*textwrap.wrap(text, width, subsequent_indent="  "), *textwrap.wrap(covered, width)]


def _advice(roofline: Roofline, width: int) -> list[str]:
    lines = []
    for row in roofline.operators:
        if row.advice is not None:
            text = f"{row.name} ({share_text(roofline, row)}): {row.advice}."
            lines += textwrap.wrap(
                escape_text(text), width, initial_indent="- ", subsequent_indent="  ", break_long_words=True
            )
    return lines


def _unmatched(roofline: Roofline, width: int) -> list[str]:
    rows = roofline.unmatched
    if sum(row.time_share or 0 for row in rows) < _MATTERS:
        return []
    shown = [row for row in rows if (row.time_share or 0) >= _MATTERS][:_UNMATCHED_ROWS] or rows[:1]
    lines = ["", f"not labelled, {unmatched_text(roofline)}:"]
    several = len(roofline.ran_on) > 1
    for row in shown:
        where = (f" @ {row.layer}" if row.layer else "") + (f" on {row.device}" if several else "")
        text = f"  {format_share(row.time_share):>6}  {row.operator}{where}: {row.reason}"
        lines.append(shorten(escape_text(text), width))
    if rest := unmatched_rest(roofline, shown):
        lines.append(f"  ... {rest}")
    return lines


def share_text(roofline: Roofline, row: RooflineRow) -> str:
    """Return the share of the time that a row has, and of which device's where there are several."""
    return format_share(row.time_share) + (f" of {row.device}" if len(roofline.ran_on) > 1 else "")


def unmatched_text(roofline: Roofline) -> str:
    """Return the share of the time that has no label, of each device where there are several."""
    return _shares_text(roofline, roofline.unmatched)


def unmatched_rest(roofline: Roofline, shown: Sequence[Unmatched]) -> str | None:
    """Return what has no label besides the rows `shown`: "and 3 more with 2.1% of the time", or None."""
    listed = set(map(id, shown))
    rest = [row for row in roofline.unmatched if id(row) not in listed]
    return f"and {len(rest):,} more with {_shares_text(roofline, rest)}" if rest else None


def _shares_text(roofline: Roofline, rows: Sequence[Unmatched]) -> str:
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.device] = shares.get(row.device, 0) + (row.time_share or 0)
    if len(roofline.ran_on) < 2:
        return f"{sum(shares.values()):.1%} of the time"
    return ", ".join(f"{share:.1%} of the time of {device}" for device, share in shares.items())
