# SPDX-License-Identifier: Apache-2.0
"""How gates show their rows: names that say what differs, whole, in tables that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpuprof.analyze.text_table import (
    GAP,
    MIN_FLEXIBLE_WIDTH,
    Column,
    cell_width,
    escape_text,
    format_duration,
    text_table,
    wrapped,
)
from gpuprof.bench.pooling import WIDEST_FACTOR
from gpuprof.bench.stored import Configuration


def name_parts(configurations: Sequence[Configuration]) -> tuple[str, list[str]]:
    """Return what all configurations share, in words, and for each of them what is its own."""
    if len(configurations) < 2:
        return "", [str(each) for each in configurations]
    alike = {name for name in Configuration._fields if len({getattr(c, name) for c in configurations}) == 1}
    shared = configurations[0]._replace(**{n: None for n in Configuration._fields if n not in alike})
    own = [each._replace(**dict.fromkeys(alike)) for each in configurations]
    return str(shared).strip(", "), [str(each).strip(", ") for each in own]


def names_table(
    columns: Sequence[Column], names: Sequence[str], rows: Sequence[Sequence[str]], width: int = 100
) -> str:
    """Lay out rows behind names, which are broken into lines where they are too long: none of them is cut."""
    cells = [[escape_text(cell) for cell in row] for row in rows]
    others = [
        max(cell_width(text) for text in (column.title, *column_cells))
        for column, column_cells in zip(columns[1:], zip(*cells, strict=True), strict=True)
    ]
    room = max(width - sum(len(GAP) + other for other in others), MIN_FLEXIBLE_WIDTH)
    blank = [""] * len(others)
    lines: list[Sequence[str]] = []
    for name, row in zip(names, cells, strict=True):
        first, *more = textwrap.wrap(escape_text(name), room, break_on_hyphens=False) or [""]
        lines += [(first, *row), *((f"  {each}", *blank) for each in _indented(more, room))]
    return text_table(columns, lines, width)


def _indented(lines: Sequence[str], room: int) -> list[str]:
    return textwrap.wrap(" ".join(lines), room - 2, break_on_hyphens=False) if lines else []


def shared_line(shared: str) -> list[str]:
    """Return the line above a table that says what all its rows share, and a blank one; or nothing."""
    return [wrapped(f"all: {shared}"), ""] if shared else []


def interval_text(low: float | None, high: float | None) -> str:
    """Return both ends of a ratio's interval; a dash for none, or for one that tells nobody anything."""
    if low is None or high is None or high / max(low, 1e-9) > WIDEST_FACTOR**2:
        return "-"
    return f"{low:.3f} to {high:.3f}"


def time_text(seconds: float | None) -> str:
    """Return seconds with their unit, a dash for none."""
    return "-" if seconds is None else format_duration(seconds * 1e9)
