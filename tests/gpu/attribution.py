# SPDX-License-Identifier: Apache-2.0
"""Where a run shows its kernels: in the call tree, and in the table that points to spans."""

from __future__ import annotations

from typing import Any, NamedTuple

import gpuprof


class Placed(NamedTuple):
    """What is above a kernel in the call tree."""

    layer: str | None  # the nearest
    in_backward: bool
    calls: int


def placed_kernels(run: gpuprof.Run) -> dict[str, list[Placed]]:
    """Return, for each kernel's name, the places in the call tree where it is."""
    columns = "node_id, parent_id, kind, name, calls"
    nodes = {row[0]: row for row in run.sql(f"SELECT {columns} FROM call_tree").fetchall()}
    found: dict[str, list[Placed]] = {}
    for _, parent, kind, name, calls in nodes.values():
        if kind != "kernel":
            continue
        above = _above(nodes, parent)
        layer = next((str(each[3]) for each in above if each[2] == "layer"), None)
        in_backward = any(each[2] == "backward" or each[3] == "backward" for each in above)
        found.setdefault(name, []).append(Placed(layer, in_backward, calls))
    return found


def layers_of_spans(run: gpuprof.Run) -> list[tuple[str, str | None]]:
    """Return each kernel's name and its nearest layer by `kernels.span_id`, in the order of their begin."""
    columns = "span_id, parent_id, kind, name"
    spans = {row[0]: row for row in run.sql(f"SELECT {columns} FROM spans").fetchall()}
    kernels = run.sql("SELECT name, span_id FROM kernels ORDER BY start_ns").fetchall()
    found = []
    for name, span in kernels:
        above = _above(spans, span)
        found.append((str(name), next((str(each[3]) for each in above if each[2] == "layer"), None)))
    return found


def _above(rows: dict[int, Any], place: int | None) -> list[Any]:
    above = []
    while place is not None:
        above.append(rows[place])
        place = rows[place][1]
    return above
