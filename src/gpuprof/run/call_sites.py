# SPDX-License-Identifier: Apache-2.0
"""The built-in function that a waiting thread is in, by the source of its innermost Python frame.

A native function has no Python frame. A thread that waits does so in one, and the instruction of its
innermost frame is the call. Its place in the source (PEP 657) gives the text of what is called, such as
`time.sleep`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_LARGEST_SOURCE_BYTES = 4 << 20
_LONGEST_NAME = 80


class CallSite(NamedTuple):
    """A place in a source file; lines from 1, columns in bytes from 0, -1 where unknown."""

    path: str
    line: int
    end_line: int
    column: int
    end_column: int


def waited_ns(duration_ns: int, cpu_ns: int, queued_ns: int) -> int:
    """Return how long a thread waited in a sample's duration; 0 unless it waited for most of it.

    It waits where it is neither on a processor nor ready to run. A sample whose `cpu_ns` is unknown (-1) is
    no wait.
    """
    if cpu_ns < 0:
        return 0
    waited = duration_ns - cpu_ns - max(queued_ns, 0)
    return waited if 2 * waited > duration_ns else 0


def waited_in_each_ns(duration_ns: Ints, cpu_ns: Ints, queued_ns: Ints) -> Ints:
    """Return what `waited_ns` returns for each of many samples."""
    import numpy as np

    waited = duration_ns - cpu_ns - np.maximum(queued_ns, 0)
    return np.where((cpu_ns >= 0) & (2 * waited > duration_ns), waited, 0)


@functools.lru_cache(maxsize=4096)
def called_at(site: CallSite) -> str | None:
    """Return the text of the function that is called there; None where the source has no such call."""
    lines = _lines(site.path)[max(site.line - 1, 0) : site.end_line]
    if not lines or min(site.line, site.end_line - site.line + 1, site.column + 1) <= 0:
        return None
    if len(lines) <= site.end_line - site.line or _is_attribute(lines[0][: site.column]):
        return None
    lines[-1] = lines[-1][: site.end_column]
    lines[0] = lines[0][site.column :]
    return _function_called_in(b"\n".join(lines))


def _is_attribute(before: bytes) -> bool:
    """Whether what follows some text is an attribute, so that the call's function begins on a line before."""
    return before.rstrip().endswith(b".")


def _function_called_in(text: bytes) -> str | None:
    """Return the function that an expression calls; None if it is no call, or not the whole text."""
    import ast

    try:
        # A whole file takes a thousand times as long. Parentheses, since a call may have several lines.
        node = ast.parse(b"(" + text + b")", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    last = text.count(b"\n") + 1
    end = len(text) - text.rfind(b"\n") - 1 + (last == 1)
    if not isinstance(node, ast.Call) or (node.col_offset, node.end_lineno, node.end_col_offset) != (
        1,
        last,
        end,
    ):
        return None
    name = ast.unparse(node.func)
    return name if len(name) <= _LONGEST_NAME and "\n" not in name else None


@functools.lru_cache(maxsize=256)
def _lines(path: str) -> list[bytes]:
    """Return the lines of a source file in UTF-8, of which columns are offsets; empty if it has gone."""
    import tokenize

    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_SOURCE_BYTES:
            return []
        with tokenize.open(path) as opened:
            return opened.read().encode().split(b"\n")
    except (OSError, SyntaxError, ValueError):
        return []  # or it was never a source file
