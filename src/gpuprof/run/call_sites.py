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
    calls = _calls(site.path)
    return calls.get((site.line, site.end_line, site.column, site.end_column))


@functools.lru_cache(maxsize=256)
def _calls(path: str) -> dict[tuple[int, int, int, int], str]:
    """Return the names of the functions called in a file, by their places."""
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_SOURCE_BYTES:
            return {}
        import ast

        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}  # the source has gone, or was never a file
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.end_lineno is not None and node.end_col_offset is not None:
            name = ast.unparse(node.func)
            if len(name) <= _LONGEST_NAME and "\n" not in name:
                found[node.lineno, node.end_lineno, node.col_offset, node.end_col_offset] = name
    return found
