# SPDX-License-Identifier: Apache-2.0
"""Adds counted work to the summary by layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.roofline.similar_calls import given_alike, similar_to_first
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from gpuprof.analyze.summary import Summary, SummaryRow
    from gpuprof.run.folder import RunFolder

_LAYER = KINDS.index("layer")


def with_work(summary: Summary, folder: RunFolder, tree: CallTree) -> Summary:
    """Return the summary by layer with the FLOPs and bytes of each layer's own forward operators.

    Work was counted for one call of each root. Where its calls do not all do the same, nothing is claimed.
    """
    process_id = int(folder.meta.get("process_id") or 0)
    calls = root_calls(tree, process_id)
    counted = _by_layer(folder)
    layers = Counter(layer for _, layer in counted)
    named: dict[str, tuple[int | None, int | None]] = {}
    given = given_alike(folder, process_id)
    unlike = {root: why_unlike(folder, root, process_id, given) for root, _ in counted}
    for (root, layer), (flops, size) in counted.items():
        if unlike[root]:
            continue
        total = _times(flops, calls[root]), _times(size, calls[root])
        named[root if layer == root else f"{root}/{layer}"] = total
        if layers[layer] == 1:
            named[layer] = total
    rows = tuple(_with(row, named.get(row.name)) for row in summary.rows)
    notes = [f"{root}: its calls {why}, so its FLOPs are not shown" for root, why in unlike.items() if why]
    return replace(summary, rows=rows, notes=(*summary.notes, *notes))


def why_unlike(folder: RunFolder, root: str, process_id: int, given: Mapping[int, bool]) -> str | None:
    """Return why not all calls of a root can do the work counted of the first; None where they can."""
    layers = folder.sql("FROM spans").filter(f"kind = 'layer' AND process_id = {process_id}")
    quoted = root.replace("'", "''")
    calls = layers.filter(f"name = '{quoted}'").order("start_ns").select("span_id, duration_ns").fetchall()
    if all(span in given for span, _ in calls):
        return None if all(given[span] for span, _ in calls) else "were given different inputs"
    alike = all(similar_to_first([float(duration) for _, duration in calls]))
    return None if alike else "take times too different for the same work"


def _with(row: SummaryRow, work: tuple[int | None, int | None] | None) -> SummaryRow:
    return row if work is None else replace(row, flops=work[0], bytes=work[1])


def _times(value: int | None, calls: int) -> int | None:
    return None if value is None or not calls else value * calls


def root_calls(tree: CallTree, process_id: int) -> Counter[str]:
    """Return how often each outermost layer was called in a process."""
    inside = [False] * len(tree)
    calls: Counter[str] = Counter()
    for node, (parent, kind) in enumerate(zip(tree.parent.tolist(), tree.kind.tolist(), strict=True)):
        above = parent >= 0 and inside[parent]
        inside[node] = above or kind == _LAYER
        if kind == _LAYER and not above and int(tree.process_id[node]) == process_id:
            calls[tree.names[int(tree.name[node])]] += int(tree.calls[node])
    return calls


def _by_layer(folder: RunFolder) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    """Return FLOPs and bytes of each (root, layer); None where those of any operator are not known."""
    rows = folder.sql("FROM work").filter("phase = 'forward'").select("root, layer, flops, bytes").fetchall()
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for root, layer, flops, size in rows:
        groups[root, layer].append((flops, size))
    return {
        key: (_sum(flops for flops, _ in values), _sum(size for _, size in values))
        for key, values in groups.items()
    }


def _sum(values: Iterable[int | None]) -> int | None:
    every = list(values)
    return None if None in every else sum(value for value in every if value is not None)
