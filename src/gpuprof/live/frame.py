# SPDX-License-Identifier: Apache-2.0
"""Lays a snapshot out as the lines of a terminal of any size."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.live.snapshot import Snapshot
from gpuprof.live.text import (
    ROWS,
    LiveSection,
    SectionKey,
    SortKey,
    header_lines,
    missing_lines,
    sections,
)
from gpuprof.text.sanitize import cell_width, escape_text, shorten
from gpuprof.text.units import counted

_GAP = "  "
_LEAST_NAME_WIDTH = 10
_LEAST_ROWS = 3  # of a table that is shown
_LEAST_ROOM_OF_NOTICE = 5
_FIXED = (SectionKey.PROCESSES, SectionKey.DEVICES)
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
    since_choice: bool = False  # the sums began again when a process was chosen
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
    room = height - len(footer)
    body = list(_HELP) if state.shows_help else _fitted_body(snapshot, state, width, room, colors)
    lines = [*body[: max(height - len(footer), 0)], *footer][-height:]
    return [line if "\x1b" in line else shorten(line, width) for line in lines]


def _status(snapshot: Snapshot, state: ViewState) -> str:
    words = ["paused"] if state.paused else []
    seconds = snapshot.interval_ns / 1e9
    words.append(_since(snapshot, state) if state.since_start else f"last {seconds:.1f} s")
    if state.process_id is not None:
        words.append(f"process {state.process_id}")
    orders = {
        each.key.value: order
        for each in sections(snapshot, state.process_id)
        if (order := each.other_order(state.sort)) and state.only in (None, each.key)
    }
    others = ", ".join(f"{table}: {order}" for table, order in orders.items())
    order = f"{state.sort.value} ({others})" if others else state.sort.value
    return f"{', '.join(words)}, by {order}; h: help, q: quit"


def _since(snapshot: Snapshot, state: ViewState) -> str:
    """Return since when the sums are: the first interval of a run has all that was recorded before."""
    seconds = snapshot.interval_ns / 1e9
    if state.since_choice:
        return f"since the choice of the process, {seconds:.0f} s"
    return (
        f"since the start of the view, {seconds:.0f} s"
        if snapshot.run is None
        else "since the start of the run"
    )


def fitted_text(snapshot: Snapshot, width: int) -> str:
    """Return the figures of a snapshot as text whose lines have at most `width` cells."""
    width, state = max(width, _LEAST_WIDTH), ViewState()
    lines = [line for long in header_lines(snapshot) for line in _wrapped(long, width)]
    for section in sections(snapshot):
        most = len(section.rows) if section.key in _FIXED else ROWS
        lines += ["", *_table(section, state, width, most, colors=False)]
    return "\n".join(shorten(line, width) for line in lines)


def _fitted_body(snapshot: Snapshot, state: ViewState, width: int, room: int, colors: bool) -> list[str]:
    """Return the lines of a body that fit, the last of which counts what does not."""
    lines, cut = _body(snapshot, state, width, room, colors)
    if room < _LEAST_ROOM_OF_NOTICE or (not cut.tables and not cut.columns and len(lines) <= room):
        return lines
    lines, cut = _body(snapshot, state, width, room - 1, colors)
    if len(lines) > room - 1:
        cut.lines, lines = len(lines) - (room - 1), lines[: room - 1]
    counts = {"table": cut.tables, "line": cut.lines, "column": cut.columns}
    words = ", ".join(counted(count, name) for name, count in counts.items() if count)
    return [*lines, shorten(f"{words} more; enlarge the terminal", width)]


@dataclass(slots=True)
class _Cut:
    """What of a body there is no room for."""

    tables: int = 0
    lines: int = 0
    columns: int = 0


def _body(
    snapshot: Snapshot, state: ViewState, width: int, room: int, colors: bool
) -> tuple[list[str], _Cut]:
    cut = _Cut()
    lines = [line for long in header_lines(snapshot, state.process_id) for line in _wrapped(long, width)]
    shown = sections(snapshot, state.process_id)
    fixed = [each for each in shown if each.key in _FIXED]
    tables = [each for each in shown if each not in fixed]
    if state.only is not None:
        tables = [each for each in tables if each.key is state.only]
    for section in fixed:
        lines += ["", *_table(section, state, width, _MOST_PROCESSES, colors, cut)]
    if not tables:
        return lines + missing_lines(snapshot), cut
    left = room - len(lines)
    shares = _share_rows(tables, left) if left >= _LEAST_ROWS else []
    cut.tables = len(tables) - len(shares)
    for section, rows in shares:
        lines += ["", *_table(section, state, width, rows, colors, cut)]
    return lines, cut


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


def _table(
    section: LiveSection,
    state: ViewState,
    width: int,
    most: int,
    colors: bool,
    cut: _Cut | None = None,
) -> list[str]:
    shown = [tuple(map(escape_text, cells)) for cells in section.first_rows(state.sort, most)]
    titles = section.columns
    columns = _fitting_columns([titles, *shown], width)
    if cut is not None:
        cut.columns += len(titles) - len(columns)
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
