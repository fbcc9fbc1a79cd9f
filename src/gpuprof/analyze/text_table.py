# SPDX-License-Identifier: Apache-2.0
"""Plain text for a terminal: fixed-width tables, human units, and names that cannot break a line."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
ELLIPSIS = "..."
MIN_FLEXIBLE_WIDTH = 16
# Names can be a megabyte long; nothing beyond this reaches the escaping, and no terminal is wider.
LONGEST_NAME = 2_000

_TIME_UNITS = ((1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s"))
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Control, format (bidirectional overrides among them), surrogate, private use, line and paragraph ends.
_UNSAFE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and the side that its cells lean on."""

    title: str
    right: bool = True


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = 100) -> str:
    """Lay out `rows` under `columns`, at most `width` terminal cells wide, without a final newline.

    Cells may hold any text: it is escaped. The first column gives way, its cells shortened in the
    middle, since a name's beginning and end tell more than its middle; different names that would read the
    same are numbered. Where the other columns leave it less than `MIN_FLEXIBLE_WIDTH` cells, it keeps that
    many and the table gets wider.
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
    """Shorten cells to a width; those that are cut to the same text, and differ, get numbers."""
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


def wrapped(text: str, width: int = 100, indent: str = "  ") -> str:
    """Escape a sentence and break it between words; what follows its first line is indented."""
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


def escape_text(text: str) -> str:
    """Return `text` on one line: whatever could move the cursor or hide text becomes an escape."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME // 2] + ELLIPSIS + text[-LONGEST_NAME // 2 :]
    return visible_text(text)


def visible_text(text: str, kept: str = "") -> str:
    r"""Return `text` with an escape, such as `\n` or `\u202e`, in place of each character that nobody sees.

    Terminal and pages show the same; the characters `kept` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each in kept else _escape_character(each) for each in text)


def quoted_if_blank(name: str) -> str:
    """Return `name` in quotes where a reader would see an empty cell."""
    # A line break is shown as an escape, so it is not blank.
    return name if name.strip() or visible_text(name).strip() else f'"{name}"'


def _escape_character(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if unicodedata.category(character) in _UNSAFE_CATEGORIES:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def cell_width(text: str) -> int:
    """Return how many terminal cells `text` fills; wide characters and emoji fill two."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def shorten(text: str, width: int) -> str:
    """Cut the middle out of `text` so that it fits into `width` cells; `width` is at least 3."""
    if cell_width(text) <= width:
        return text
    room = width - len(ELLIPSIS)
    tail = _fitting(text[::-1], room - room // 3)[::-1]
    head = _fitting(text, room - cell_width(tail))
    return head + ELLIPSIS + tail


def _fitting(text: str, width: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += _character_width(character)
        if used > width:
            return text[:index]
    return text


def format_duration(duration_ns: float | None) -> str:
    """Return nanoseconds with three significant digits and the unit that suits them; None is `-`."""
    if duration_ns is None:
        return "-"
    for size, unit in _TIME_UNITS:
        # Compared after rounding, so that 999.9996 us reads "1.00 ms" and not "1000 us".
        if abs(duration_ns) / size < 999.5 or unit == "s":
            value = duration_ns / size
            break
    return f"{_three_digits(value) if size > 1 else format(value, '.0f')} {unit}"


def format_bytes(size_bytes: float) -> str:
    """Return a size with three significant digits in decimal units."""
    value, unit = float(size_bytes), 0
    while abs(value) >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1_000, unit + 1
    return f"{_three_digits(value) if unit else format(value, '.0f')} {_BYTE_UNITS[unit]}"


def format_count(count: int) -> str:
    """Return a whole number with its thousands apart."""
    return f"{count:,}"


def format_quantity(value: float | None) -> str:
    """Return a number with three significant digits and the prefix of its unit; None is `-`."""
    if value is None:
        return "-"
    size, prefix = next((pair for pair in _PREFIXES if value >= 0.9995 * pair[0]), (1, ""))
    return f"{_three_digits(value / size)} {prefix}".rstrip() if value else "0"


def format_share(share: float | None) -> str:
    """Return a fraction of 1 as a percentage; None is `-`."""
    return "-" if share is None else f"{share:.1%}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
