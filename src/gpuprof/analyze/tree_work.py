# SPDX-License-Identifier: Apache-2.0
"""Counted work as a weight of the call tree: bytes and FLOPs of each node."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gpuprof.analyze.call_tree import subtree_sums
from gpuprof.analyze.roofline.counted import plain_name
from gpuprof.analyze.roofline.similar_calls import given_alike
from gpuprof.analyze.summary_work import root_calls, why_unlike
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.run.folder import RunFolder

_LAYER, _BACKWARD = KINDS.index("layer"), KINDS.index("backward")


class Where(NamedTuple):
    """Where a node stands: outermost and innermost layer around it or that it is, and in which pass."""

    root: str
    layer: str
    is_backward: bool


def places_of(tree: CallTree) -> list[Where]:
    """Return where each node stands; "" for no layer."""
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
    return dataclasses.replace(tree, own_ns=own, total_ns=subtree_sums(tree.parent, own)), sorted(notes)


class _Nodes:
    """The nodes of one process by where they stand."""

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
            elif KINDS[kind] == "operator":
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
        # Where the backward pass is not tied to layers, its operators stand in none.
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
