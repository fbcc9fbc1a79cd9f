# SPDX-License-Identifier: Apache-2.0
"""Safe display of names and messages: escapes, widths in terminal cells, shortening."""

from __future__ import annotations

import contextlib
import sys
import unicodedata

ELLIPSIS = "..."
# Names can be a megabyte long. Longer names are cut before they are escaped; no terminal is wider.
LONGEST_NAME = 2_000
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Control, format (bidirectional overrides among them), surrogate, private use, line and paragraph ends.
_UNSAFE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def escape_text(text: str) -> str:
    """Return `text` on one line: characters that could move the cursor or hide text become escapes."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME // 2] + ELLIPSIS + text[-LONGEST_NAME // 2 :]
    return visible_text(text)


def visible_text(text: str, kept: str = "") -> str:
    r"""Return `text` with an escape, such as `\n` or `\u202e`, in place of each invisible character.

    Terminal and pages show the same. The characters in `kept` do not change.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each in kept else _escape_character(each) for each in text)


def quoted_if_blank(name: str) -> str:
    """Return `name`, in quotes if its cell would look empty."""
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


def print_warning(message: str) -> None:
    """Print a line on standard error for the user of a program; one that is closed must not stop it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"gpuprof: {escape_text(message)}", file=sys.stderr, flush=True)
