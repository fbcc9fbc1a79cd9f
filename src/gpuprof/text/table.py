# SPDX-License-Identifier: Apache-2.0
"""Plain tables and wrapped lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.text.sanitize import ELLIPSIS, cell_width, escape_text, shorten

TABLE_WIDTH = 100
GAP = "  "
MIN_FLEXIBLE_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and the alignment of its cells."""

    title: str
    right: bool = True


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = TABLE_WIDTH) -> str:
    """Lay out `rows` under `columns`, at most `width` terminal cells wide, without a final newline.

    Cells can contain any text: it is escaped. The first column becomes narrower if needed. Its cells are
    shortened in the middle, because the begin and end of a name distinguish it better; different names with
    equal shortened text are numbered. Its minimum width is `MIN_FLEXIBLE_WIDTH` cells; the table may become
    wider then.
    """
    cells = [[column.title for column in columns]]
    cells += [[escape_text(cell) for cell in row] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(*cells, strict=True)]
    room = width - sum(len(GAP) + other for other in widths[1:])
    widths[0] = min(widths[0], max(room, MIN_FLEXIBLE_WIDTH))
    names = _shortened([row[0] for row in cells], widths[0])
    lines = ([name, *row[1:]] for name, row in zip(names, cells, strict=True))
    return "\n".join(_line(columns, line, widths) for line in lines)


def _shortened(cells: Sequence[str], width: int) -> list[str]:
    """Shorten cells to a width; different cells with equal shortened text get numbers."""
    short = [shorten(cell, width) for cell in cells]
    originals: dict[str, dict[str, None]] = {}
    for cell, text in zip(cells, short, strict=True):
        originals.setdefault(text, {})[cell] = None
    found = []
    for cell, text in zip(cells, short, strict=True):
        alike = list(originals[text])
        mark = f" ~{alike.index(cell) + 1}" if len(alike) > 1 else ""
        found.append(shorten(cell, max(width - len(mark), len(ELLIPSIS))) + mark)
    return found


def wrapped(text: str, width: int = TABLE_WIDTH, indent: str = "  ") -> str:
    """Escape a sentence and wrap it; the lines after the first are indented."""
    return textwrap.fill(
        escape_text(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        _pad(cell, width, right=column.right)
        for column, cell, width in zip(columns, row, widths, strict=True)
    ]
    return GAP.join(padded).rstrip()


def _pad(text: str, width: int, *, right: bool) -> str:
    blank = " " * (width - cell_width(text))
    return blank + text if right else text + blank
