# SPDX-License-Identifier: Apache-2.0
"""Counted work on the call tree and in the summary by layer, and the class and bottleneck of each node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gpuprof.analyze.call_tree import CallTree, subtree_sums
from gpuprof.analyze.layer_groups import classes_of_layers
from gpuprof.analyze.roofline.counted import plain_name
from gpuprof.analyze.roofline.similar_calls import given_alike, outermost_calls, similar_to_first
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.roofline.build import Roofline
    from gpuprof.analyze.summary import Summary
    from gpuprof.run.folder import RunFolder


_LAYER, _OPERATOR, _BACKWARD = (KINDS.index(kind) for kind in ("layer", "operator", "backward"))
NOT_CLASSIFIED = "not classified"


class Where(NamedTuple):
    """The place of a node: outermost and innermost layer around it or that it is, and in which pass."""

    root: str
    layer: str
    is_backward: bool


def places_of(tree: CallTree) -> list[Where]:
    """Return the place of each node; "" for no layer."""
    found: list[Where] = []
    columns = (tree.parent.tolist(), tree.kind.tolist(), tree.name.tolist())
    for parent, kind, name in zip(*columns, strict=True):
        root, layer, is_backward = found[parent] if parent >= 0 else Where("", "", False)
        if kind == _LAYER:
            layer = tree.names[name]
            root = root or layer
        found.append(Where(root, layer, is_backward or kind == _BACKWARD))
    return found


def with_counted(
    tree: CallTree, folder: RunFolder, what: Literal["bytes", "flops"]
) -> tuple[CallTree, list[str]]:
    """Return the tree with counted work as its times, and what a reader must know about it.

    Work was counted for one call of each model, and is taken for all of its calls in the process that was
    counted. It belongs to the operators of that name in its layer, in proportion to their calls; where the
    recording has none, as inside a compiled layer, to the layer.
    """
    process_id = int(folder.meta.get("process_id") or 0)
    calls = root_calls(tree, process_id)
    nodes = _Nodes(tree, process_id)
    own = np.zeros(len(tree), dtype=np.int64)
    unlike: set[str] = set()
    unknown: set[str] = set()
    whys: dict[str, str | None] = {}
    given = given_alike(folder, process_id)
    rows = folder.sql("FROM work").select(f"root, layer, operator, phase, {what}").fetchall()
    for root, layer, operator, phase, value in rows:
        if root not in whys:
            whys[root] = why_unlike(folder, root, process_id, given)
        if whys[root]:
            unlike.add(root)
        elif value is None:
            unknown.add(operator)
        elif value:
            nodes.share(own, Where(root, layer or root, phase == "backward"), operator, value * calls[root])
    notes = [
        f"{root} is left out: its calls were not all given the like, and do other work" for root in unlike
    ]
    if unknown:
        names = ", ".join(sorted(unknown)[:4]) + (", ..." if len(unknown) > 4 else "")
        notes.append(f"{what} are not known of {names}: these count as nothing here")
    return replace(tree, own_ns=own, total_ns=subtree_sums(tree.parent, own)), sorted(notes)


class _Nodes:
    """The nodes of one process by their places."""

    def __init__(self, tree: CallTree, process_id: int) -> None:
        self._calls = tree.calls
        self._operators: dict[tuple[Where, str], list[int]] = defaultdict(list)
        self._layers: dict[Where, list[int]] = defaultdict(list)
        columns = (tree.kind.tolist(), tree.name.tolist(), tree.process_id.tolist(), places_of(tree))
        for node, (kind, name, process, where) in enumerate(zip(*columns, strict=True)):
            if process != process_id:
                continue
            if kind == _LAYER:
                self._layers[where].append(node)
            elif kind == _OPERATOR:
                self._operators[where, plain_name(tree.names[name])].append(node)

    def share(self, own: npt.NDArray[np.int64], where: Where, operator: str, value: int) -> None:
        """Add `value` to the nodes that it belongs to."""
        nodes = self._find(where, plain_name(operator))
        weights = [max(1, int(self._calls[node])) for node in nodes]
        left = sum(weights)
        for node, weight in zip(nodes, weights, strict=True):
            part = value * weight // left
            own[node] += part
            value, left = value - part, left - weight

    def _find(self, where: Where, operator: str) -> list[int]:
        # Where the backward pass is not linked to layers, its operators are in none.
        outside = Where("", "", where.is_backward)
        forward = where._replace(is_backward=False)
        return (
            self._operators.get((where, operator))
            or (self._operators.get((outside, operator)) if where.is_backward else None)
            or self._layers.get(where)
            or self._layers.get(forward)
            or self._layers.get(Where(where.root, where.root, False))
            or []
        )


# ---- the summary by layer -------------------------------------------------------------------


def with_work(summary: Summary, folder: RunFolder, tree: CallTree) -> Summary:
    """Return the summary by layer with the FLOPs and bytes of each layer's own forward operators.

    Work was counted for one call of each root. Where its calls do not all do the same, nothing is claimed.
    """
    process_id = int(folder.meta.get("process_id") or 0)
    calls = root_calls(tree, process_id)
    counted = _by_layer(folder)
    given = given_alike(folder, process_id)
    unlike = {root: why_unlike(folder, root, process_id, given) for root in {root for root, _ in counted}}
    named: dict[str, tuple[int | None, int | None]] = {}
    # A layer that is also called by itself is part of several roots.
    for (root, layer), (flops, size) in counted.items():
        work = (None, None) if unlike[root] else (_times(flops, calls[root]), _times(size, calls[root]))
        named[layer] = _added(named.get(layer, (0, 0)), work)
    rows = tuple(
        replace(row, flops=named[row.name][0], bytes=named[row.name][1]) if row.name in named else row
        for row in summary.rows
    )
    notes = [f"{root}: its calls {why}, so its FLOPs are not shown" for root, why in unlike.items() if why]
    return replace(summary, rows=rows, notes=(*summary.notes, *notes))


def why_unlike(folder: RunFolder, root: str, process_id: int, given: Mapping[int, bool]) -> str | None:
    """Return why not all calls of a root can do the work counted of the first; None where they can."""
    outermost = outermost_calls(folder, process_id)
    calls = [(span, duration) for name, _, span, duration in outermost if name == root]
    if all(span in given for span, _ in calls):
        return None if all(given[span] for span, _ in calls) else "were given different inputs"
    alike = all(similar_to_first([float(duration) for _, duration in calls]))
    return None if alike else "take times too different for the same work"


def _added(
    one: tuple[int | None, int | None], other: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    flops, size = (
        None if before is None or more is None else before + more
        for before, more in zip(one, other, strict=True)
    )
    return flops, size


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
    sums = (f"CASE WHEN count(*) = count({column}) THEN sum({column}) END" for column in ("flops", "bytes"))
    forward = folder.sql("FROM work").filter("phase = 'forward'")
    rows = forward.aggregate(f"root, layer, {', '.join(sums)}", "root, layer").order("root, layer").fetchall()
    return {(root, layer): (flops, size) for root, layer, flops, size in rows}


# ---- the class and the bottleneck of each node ----------------------------------------------


def layer_types(tree: CallTree, meta: Mapping[str, Any]) -> list[str | None] | None:
    """Return the class of the layer around each node; None alone where the run does not know any."""
    classes = classes_of_layers(meta)
    if not classes:
        return None
    return [classes.get(where.layer) for where in places_of(tree)]


def bounds(tree: CallTree, roofline: Roofline) -> list[str]:
    """Return the bottleneck of each layer and operator, by its roofline rows with the most time."""
    layers: dict[tuple[str, str], str] = {(row.root, row.layer): row.bound for row in roofline.layers}
    times: dict[tuple[Where, str], Counter[str]] = defaultdict(Counter)
    for row in roofline.operators:
        where = Where(row.root, row.layer or row.root, row.phase == "backward")
        times[where, plain_name(row.operator or "")][row.bound] += row.total_ns
    operators = {key: bound.most_common(1)[0][0] for key, bound in times.items()}
    found = []
    columns = (tree.kind.tolist(), tree.name.tolist(), places_of(tree))
    for kind, name, where in zip(*columns, strict=True):
        if kind == _LAYER and not where.is_backward:
            found.append(layers.get((where.root, where.layer), NOT_CLASSIFIED))
        elif kind in (_OPERATOR, _BACKWARD):
            found.append(operators.get((where, plain_name(tree.names[name])), NOT_CLASSIFIED))
        else:
            found.append(NOT_CLASSIFIED)
    return found
