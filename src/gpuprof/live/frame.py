# SPDX-License-Identifier: Apache-2.0
"""Lays a snapshot out as the lines of a terminal of any size."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.live.snapshot import Snapshot
from gpuprof.live.text import LiveSection, SectionKey, SortKey, header_lines, missing_lines, sections
from gpuprof.text.sanitize import cell_width, escape_text, shorten

_GAP = "  "
_LEAST_NAME_WIDTH = 10
_LEAST_ROWS = 3  # of a table that is shown
_MOST_PROCESSES = 6
_LEAST_WIDTH = 3  # that `shorten` takes
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_HELP = (
    "q     end the view",
    "space pause, continue",
    "s     sort by self time, total time, calls, name",
    "t     figures of the interval, or since the start",
    "tab   show one table, the next, all",
    "n     choose the next process, or all",
    "p     take a profile of the last 2 seconds",
    "o     open the page of that profile",
    "h     this help",
)


@dataclass(slots=True)
class ViewState:
    """What the user chose. `only` is the table that is shown alone."""

    sort: SortKey = SortKey.SELF
    since_start: bool = False
    paused: bool = False
    only: SectionKey | None = None
    process_id: int | None = None
    shows_help: bool = False
    message: str = ""
    output: str = ""  # the program's last line


def frame_lines(snapshot: Snapshot, state: ViewState, width: int, height: int, *, colors: bool) -> list[str]:
    """Return at most `height` lines of at most `width` cells; escape sequences are only those of colors."""
    width, height = max(width, _LEAST_WIDTH), max(height, 1)
    footer = [_status(snapshot, state)]
    if state.output:
        footer.insert(0, f"output: {escape_text(state.output)}")
    if state.message:
        footer.insert(0, escape_text(state.message))
    body = list(_HELP) if state.shows_help else _body(snapshot, state, width, height - len(footer), colors)
    lines = [*body[: max(height - len(footer), 0)], *footer][-height:]
    return [line if "\x1b" in line else shorten(line, width) for line in lines]


def _status(snapshot: Snapshot, state: ViewState) -> str:
    words = ["paused"] if state.paused else []
    seconds = snapshot.interval_ns / 1e9
    words.append(f"since the start, {seconds:.0f} s" if state.since_start else f"last {seconds:.1f} s")
    if state.process_id is not None:
        words.append(f"process {state.process_id}")
    return f"{', '.join(words)}, by {state.sort.value}; h: help, q: quit"


def _body(snapshot: Snapshot, state: ViewState, width: int, room: int, colors: bool) -> list[str]:
    lines = [line for long in header_lines(snapshot, state.process_id) for line in _wrapped(long, width)]
    shown = sections(snapshot, state.process_id)
    fixed = [each for each in shown if each.key in (SectionKey.PROCESSES, SectionKey.DEVICES)]
    tables = [each for each in shown if each not in fixed]
    if state.only is not None:
        tables = [each for each in tables if each.key is state.only]
    for section in fixed:
        lines += ["", *_table(section, state, width, _MOST_PROCESSES, colors)]
    if not tables:
        return lines + missing_lines(snapshot)
    for section, rows in _share_rows(tables, room - len(lines)):
        lines += ["", *_table(section, state, width, rows, colors)]
    return lines


def _wrapped(line: str, width: int) -> list[str]:
    """Break a line between its figures; words that are longer than the line are shortened later."""
    if cell_width(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _share_rows(tables: Sequence[LiveSection], room: int) -> list[tuple[LiveSection, int]]:
    """Divide lines among tables; those that do not fit are left out. A blank line and titles are included."""
    count = min(len(tables), max(room // (_LEAST_ROWS + 2), 1))
    shares: list[tuple[LiveSection, int]] = []
    for place, section in enumerate(tables[:count]):
        rows = min(room // (count - place) - 2, len(section.rows))
        shares.append((section, max(rows, 0)))
        room -= rows + 2
    return shares


def _table(section: LiveSection, state: ViewState, width: int, most: int, colors: bool) -> list[str]:
    shown = [tuple(map(escape_text, cells)) for cells in section.first_rows(state.sort, most)]
    titles = section.columns
    columns = _fitting_columns([titles, *shown], width)
    name_width = width - sum(columns[1:]) - len(_GAP) * (len(columns) - 1)
    name_width = min(max(name_width, _LEAST_WIDTH), columns[0])
    lines = [_line(cells, [name_width, *columns[1:]]) for cells in (titles, *shown)]
    if colors:
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    rest = len(section.rows) - len(shown)
    if rest and shown:
        lines[-1] = shorten(f"... {rest + 1:,} more", width)
    return lines


def _fitting_columns(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the first columns that fit next to a name."""
    widths = [max(map(cell_width, column)) for column in zip(*lines, strict=True)]
    least = min(widths[0], _LEAST_NAME_WIDTH)
    while len(widths) > 1 and least + sum(len(_GAP) + each for each in widths[1:]) > width:
        widths.pop()
    return widths


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name = shorten(cells[0], widths[0])
    padded = [name + " " * (widths[0] - cell_width(name))]
    padded += [
        " " * (width - cell_width(cell)) + cell for cell, width in zip(cells[1:], widths[1:], strict=False)
    ]
    return _GAP.join(padded).rstrip()
