# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks, a line a path of calls with its own nanoseconds, as flame graph scripts read them."""

from __future__ import annotations

import re
from typing import IO

from gpuprof.analyze.call_tree import load_tree
from gpuprof.run.folder import RunFolder

# What separates names, lines, and the weight.
_SEPARATORS = re.compile(r"[;\s\x00-\x1f\x7f\x85\u2028\u2029]+")
_FLUSH_LINES = 4096


def write_folded(run: RunFolder, file: IO[bytes]) -> None:
    """Write all paths that have time of their own. Separators in names become spaces or commas."""
    tree = load_tree(run)
    shown = [_plain(name) for name in tree.names]
    path: list[int] = []
    names: list[str] = []
    lines: list[str] = []
    columns = (tree.parent.tolist(), tree.name.tolist(), tree.own_ns.tolist())
    for node, (parent, name, own) in enumerate(zip(*columns, strict=True)):
        while path and path[-1] != parent:
            path.pop()
            names.pop()
        path.append(node)
        names.append(shown[name])
        if own > 0:
            lines.append(f"{';'.join(names)} {own}\n")
        if len(lines) >= _FLUSH_LINES:
            file.write("".join(lines).encode("utf-8", "replace"))
            lines.clear()
    file.write("".join(lines).encode("utf-8", "replace"))


def _plain(name: str) -> str:
    return _SEPARATORS.sub(lambda match: ", " if ";" in match[0] else " ", name).strip() or "(unnamed)"
