# SPDX-License-Identifier: Apache-2.0
"""The call tree as a page shows it: the same times, in fewer or better labeled cells."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree

    Column = npt.NDArray[np.generic]

BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
OUTSIDE = "untracked"

_PROCESS, _OPERATOR, _BACKWARD = (KINDS.index(kind) for kind in ("process", "operator", "backward"))


def shown_tree(tree: CallTree) -> CallTree:
    """Return the tree that a page draws; its self times add up to the same sum."""
    return with_time_outside(withoutengine_twins(tree))


@dataclass(frozen=True, slots=True)
class Shown:
    """The tree that a page draws, and where the figures of the run's own nodes go in it.

    `source` has for each node of `tree` the run's node, `own_place` and `total_place` for each of the run's
    nodes where its own figure and its total go, -1 for nowhere.
    """

    tree: CallTree
    source: npt.NDArray[np.int64]
    own_place: npt.NDArray[np.int64]
    total_place: npt.NDArray[np.int64]

    def own(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return own figures of the run's nodes, of any kind, as those of `tree`."""
        sums = np.zeros(len(self.tree), dtype=values.dtype)
        np.add.at(sums, self.own_place, values)
        return sums

    def total(self, values: npt.NDArray[Any], own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return total figures likewise; a node of the page's own has `own`."""
        totals = np.array(own)
        kept = self.total_place >= 0
        totals[self.total_place[kept]] = values[kept]
        return totals


def placed_tree(tree: CallTree) -> Shown:
    """Return the tree that a page draws, with what leads from one to the other."""
    shown = shown_tree(tree)
    inner = engine_twins(tree)
    is_added = np.zeros(len(shown), dtype=np.bool_)
    if len(shown.names) > len(tree.names):
        is_added = shown.name == len(tree.names)
    kept = np.flatnonzero(~is_added)
    total_place = np.full(len(tree), -1, dtype=np.int64)
    total_place[~inner] = kept
    own_place = total_place.copy()
    own_place[inner] = total_place[tree.parent[inner]]
    source = np.empty(len(shown), dtype=np.int64)
    source[kept] = np.flatnonzero(~inner)
    added = np.flatnonzero(is_added)
    source[added] = source[shown.parent[added]]
    own_place[source[added]] = added
    return Shown(shown, source, own_place, total_place)


def withoutengine_twins(tree: CallTree) -> CallTree:
    """Merge each backward node's operator into the autograd engine's span around it.

    The engine's span is named after the node that it evaluates, so both would read the same. The merged
    node has the span's calls and total, the self time of both, and the children of both.
    """
    inner = engine_twins(tree)
    if not inner.any():
        return tree
    outer = tree.parent[inner]
    own = np.array(tree.own_ns)
    # A negative self time draws nothing; as a summand it would take width from the other.
    own[outer] = np.maximum(own[outer], 0) + np.maximum(own[inner], 0)
    parent = np.where(inner[tree.parent] & (tree.parent >= 0), tree.parent[tree.parent], tree.parent)
    place = np.append(np.cumsum(~inner) - 1, -1)
    merged = dataclasses.replace(tree, own_ns=own, parent=place[parent].astype(np.int32))
    return _each_column(merged, lambda column: column[~inner])


def engine_twins(tree: CallTree) -> npt.NDArray[np.bool_]:
    """Mark the operators that are the only one of their name in the engine's span of that name."""
    index = {name: number for number, name in enumerate(tree.names)}
    evaluated = np.full(len(tree.names), -1, dtype=np.int64)
    for number, name in enumerate(tree.names):
        if name.startswith(BACKWARD_PREFIX):
            evaluated[number] = index.get(name.removeprefix(BACKWARD_PREFIX), -1)
    inner = np.zeros(len(tree), dtype=np.bool_)
    nodes = np.flatnonzero((tree.parent >= 0) & (tree.kind == _OPERATOR))
    outer = tree.parent[nodes]
    nodes = nodes[(tree.kind[outer] == _BACKWARD) & (evaluated[tree.name[outer]] == tree.name[nodes])]
    twins = np.bincount(tree.parent[nodes], minlength=len(tree))
    inner[nodes[twins[tree.parent[nodes]] == 1]] = True
    return inner


def with_time_outside(tree: CallTree) -> CallTree:
    """Give the untracked time of each process, its self time, a last child of its own."""
    processes = np.flatnonzero((tree.parent < 0) & (tree.kind == _PROCESS) & (tree.own_ns > 0))
    if not len(processes):
        return tree
    roots = np.flatnonzero(tree.parent < 0)
    ends = np.append(roots[1:], len(tree))[np.searchsorted(roots, processes)]
    shift = np.searchsorted(ends, np.arange(len(tree)), side="right")
    parent = np.where(tree.parent < 0, -1, tree.parent + shift[tree.parent])
    moved = dataclasses.replace(
        tree, parent=parent.astype(np.int32), own_ns=np.array(tree.own_ns), names=[*tree.names, OUTSIDE]
    )
    outside_ns = tree.own_ns[processes]
    moved.own_ns[processes] = 0
    # Copies of the processes, then changed: the other columns of both are equal.
    grown = _each_column(moved, lambda column: np.insert(column, ends, column[processes]))
    added = ends + np.arange(len(ends))
    grown.parent[added] = processes + shift[processes]
    grown.name[added] = len(tree.names)
    grown.calls[added] = 0
    grown.own_ns[added] = grown.total_ns[added] = outside_ns
    return grown


def _each_column(tree: CallTree, change: Callable[[Column], Column]) -> CallTree:
    columns: dict[str, Any] = {
        field.name: change(getattr(tree, field.name))
        for field in dataclasses.fields(tree)
        if isinstance(getattr(tree, field.name), np.ndarray)
    }
    return dataclasses.replace(tree, **columns)
