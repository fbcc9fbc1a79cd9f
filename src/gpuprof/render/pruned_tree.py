# SPDX-License-Identifier: Apache-2.0
"""The tree of a run with very many paths: those with little time are one cell, `other`, below their caller.

A cell `other` has the sums of all paths in it, so the sums of the tree stay exact. By name the sums are kept,
too: lists and search of the page have every name, up to a number; the others are one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.render.flame_views import Coloring, View
from gpuprof.render.shown_tree import Shown
from gpuprof.render.tree_shape import OTHER, OTHER_KIND, name_keys, outermost, subtree_ends
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Columns = dict[str, npt.NDArray[Any]]

MOST_PATHS = 60_000  # that have a cell of their own
MOST_NAMES = 20_000  # that only paths in cells `other` have


@dataclass(frozen=True, slots=True)
class Hidden:
    """The paths in cells `other`: `paths` is how many each node has, 0 for those of the run.

    `by_name` has name (in the tree's names), kind, paths, calls, `node` (the cell with most self time of it)
    and for each view `KEY.own` and `KEY.total`, without calls inside calls of the same row.
    `cell_of_node` has for each of the run's nodes the cell `other` that it is in, -1 for none. Of more names
    than a page has, the last row is the sum of `left_out` names with the least time.
    """

    paths: Ints
    by_name: Columns
    cell_of_node: Ints
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a page draws. `hidden` is None where each path has a cell."""

    shown: Shown
    views: list[View]
    colorings: list[Coloring]
    hidden: Hidden | None = None


def pruned(
    shown: Shown, views: Sequence[View], colorings: Sequence[Coloring], most: int = MOST_PATHS
) -> Pruned:
    """Return the tree with at most about `most` paths, those with the largest fraction of any view."""
    tree = shown.tree
    if len(tree) <= most:
        return Pruned(shown, list(views), list(colorings))
    ends = subtree_ends(tree.parent)
    order = _Order.of(tree, ends, _kept(tree, views, ends, most))
    names = _HiddenNames.of(tree, views, order)
    views_of_small = [_small_view(view, order) for view in views]
    colors = [_small_coloring(each, order) for each in colorings]
    placed = _placed(shown, order, names)
    hidden = _hidden(shown, order, names, _sums_by_name(tree, views, ends, order, names))
    return Pruned(placed, views_of_small, colors, hidden)


@dataclass(frozen=True, slots=True)
class PrunedSides:
    """What the page of a comparison draws, and where the figures of each run go.

    Own figures and totals go where `shown` has them, calls to `call_place`; `row_of_node` has for each of the
    runs' nodes its row in `hidden.by_name`, -1 for none.
    """

    shown: Shown
    call_place: Ints
    hidden: Hidden | None = None
    row_of_node: Ints | None = None


def pruned_sides(shown: Shown, sides: Sequence[View], most: int = MOST_PATHS) -> PrunedSides:
    """Return the tree with at most about `most` paths, those with the largest fraction of any of the sides.

    So a path that only one side has is judged by its time there.
    """
    tree = shown.tree
    if len(tree) <= most:
        return PrunedSides(shown, shown.total_place)
    ends = subtree_ends(tree.parent)
    order = _Order.of(tree, ends, _kept(tree, sides, ends, most))
    names = _HiddenNames.of(tree, sides, order)
    placed = _placed(shown, order, names)
    # A cell has the totals of the topmost paths in it; those have the others.
    is_total = np.append(order.is_kept | order.tops, False)[shown.total_place]
    of_tops = dataclasses.replace(placed, total_place=np.where(is_total, placed.total_place, -1))
    row = np.full(len(tree) + 1, -1, dtype=np.int64)
    row[order.hidden] = names.row
    hidden = _hidden(shown, order, names, {})
    return PrunedSides(of_tops, placed.total_place, hidden, row[shown.own_place])


def _placed(shown: Shown, order: _Order, names: _HiddenNames) -> Shown:
    place = np.append(np.where(order.is_kept, order.place, order.other_place), -1)
    return Shown(
        _small_tree(shown.tree, order, names),
        order.gather(shown.source, parents=True),
        place[shown.own_place],
        place[shown.total_place],
    )


def _hidden(shown: Shown, order: _Order, names: _HiddenNames, sums: Columns) -> Hidden:
    cells = np.append(np.where(order.is_kept, -1, order.other_place), -1)
    cell_of_node = np.where(shown.own_place >= 0, cells[shown.own_place], -1)
    return Hidden(order.paths, {**names.columns(shown.tree, order), **sums}, cell_of_node, names.left_out)


def _kept(tree: CallTree, views: Sequence[View], ends: Ints, most: int) -> npt.NDArray[np.bool_]:
    """Mark the nodes with a cell of their own; with a node also its callers, which have at least its time."""
    largest = np.zeros(len(tree))
    for view in views:
        sums = _subtree_sums(np.maximum(view.own, 0), ends)
        whole = float(sums[tree.parent < 0].sum())
        if whole > 0:
            largest = np.maximum(largest, sums / whole)
    limit = np.partition(largest, len(largest) - most - 1)[len(largest) - most - 1]
    return np.asarray((largest > limit) | (tree.parent < 0))


def _subtree_sums(values: npt.NDArray[Any], ends: Ints) -> Ints:
    running = np.concatenate(([0], np.cumsum(np.round(values).astype(np.int64))))
    return np.asarray(running[ends] - running[np.arange(len(ends))])


@dataclass(frozen=True, slots=True)
class _Order:
    """Where nodes of the whole tree go in the small one."""

    is_kept: npt.NDArray[np.bool_]
    kept: Ints  # nodes with a cell of their own
    holders: Ints  # nodes that have a cell `other` as their last child
    place: Ints  # of each kept node in the small tree
    other_place: Ints  # of each other node: the cell that it is in
    other_places: Ints  # of the cells, one for each holder
    holder_of: Ints  # of each hidden node: which of the holders
    paths: Ints  # of each node of the small tree
    tops: npt.NDArray[np.bool_]  # hidden nodes whose parent is not

    @property
    def hidden(self) -> Ints:
        """The nodes without a cell of their own."""
        return np.flatnonzero(~self.is_kept)

    @classmethod
    def of(cls, tree: CallTree, ends: Ints, is_kept: npt.NDArray[np.bool_]) -> _Order:
        nodes = np.arange(len(tree))
        kept = np.flatnonzero(is_kept)
        tops = ~is_kept & np.append(is_kept, False)[tree.parent]
        holders = np.unique(tree.parent[tops]).astype(np.int64)
        # After the last descendant of its holder, inner ones first, and before what follows.
        keys = (
            np.concatenate([np.zeros(len(kept), dtype=np.int64), -holders]),
            np.concatenate([np.ones(len(kept)), np.zeros(len(holders))]),
            np.concatenate([kept, ends[holders]]),
        )
        placed = np.empty(len(kept) + len(holders), dtype=np.int64)
        placed[np.lexsort(keys)] = np.arange(len(placed))
        place = np.full(len(tree), -1, dtype=np.int64)
        place[kept] = placed[: len(kept)]
        # A hidden subtree is contiguous and begins with its topmost node.
        top = np.maximum.accumulate(np.where(tops, nodes, 0))
        holder_of = np.searchsorted(holders, np.maximum(tree.parent[top], 0))
        holder_of = np.where(is_kept, -1, holder_of)
        others = placed[len(kept) :]
        paths = np.zeros(len(placed), dtype=np.int64)
        paths[others] = np.bincount(holder_of[~is_kept], minlength=len(holders))
        other_place = np.append(others, -1)[holder_of]
        return cls(is_kept, kept, holders, place, other_place, others, holder_of, paths, tops)

    def gather(self, values: npt.NDArray[Any], *, parents: bool = False) -> npt.NDArray[Any]:
        """Return the column in the small tree: of a cell `other` the sum, or the value of its parent."""
        found = np.empty(len(self.paths), dtype=values.dtype)
        found[self.place[self.kept]] = values[self.kept]
        if parents:
            found[self.other_places] = values[self.holders]
        else:
            found[self.other_places] = self.sums(values, ~self.is_kept)
        return found

    def sums(self, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Return for each holder the sum over the hidden nodes of a mask."""
        sums = np.zeros(len(self.holders), dtype=values.dtype)
        np.add.at(sums, self.holder_of[mask], values[mask])
        return sums


def _small_tree(tree: CallTree, order: _Order, names: _HiddenNames) -> CallTree:
    parent = order.gather(tree.parent, parents=True)
    parent = np.where(parent >= 0, order.place[parent], -1).astype(np.int32)
    parent[order.other_places] = order.place[order.holders]
    texts = [*tree.names, OTHER, *([f"{names.left_out:,} other names"] if names.left_out else [])]
    changed: dict[str, Any] = {"parent": parent, "names": texts}
    for name, number in (("kind", OTHER_KIND), ("name", len(tree.names))):
        changed[name] = order.gather(getattr(tree, name), parents=True)
        changed[name][order.other_places] = number
    changed["calls"] = order.gather(np.maximum(tree.calls, 0))
    changed["calls"][order.place[order.kept]] = tree.calls[order.kept]
    changed["own_ns"] = order.gather(tree.own_ns)
    changed["total_ns"] = _small_totals(tree.total_ns, order)
    changed["threads"] = order.gather(tree.threads, parents=True)
    changed["process_id"] = order.gather(tree.process_id, parents=True)
    if tree.gpu_ns is not None:
        changed["gpu_ns"] = order.gather(tree.gpu_ns)
    return dataclasses.replace(tree, **changed)


def _small_totals(total: npt.NDArray[Any], order: _Order) -> npt.NDArray[Any]:
    found = order.gather(total)
    found[order.other_places] = order.sums(total, order.tops)
    return found


def _small_view(view: View, order: _Order) -> View:
    own, total = order.gather(view.own), _small_totals(view.total, order)
    columns = {"own": own.astype("<f8"), "inside": (total - own).astype("<f8")}
    return View(view.key, view.facts, columns, own, total)


def _small_coloring(coloring: Coloring, order: _Order) -> Coloring:
    code = order.gather(coloring.code, parents=True)
    code[order.other_places] = len(coloring.categories) - 1
    return dataclasses.replace(coloring, code=code)


@dataclass(frozen=True, slots=True)
class _HiddenNames:
    """The rows of the names that hidden nodes have: those with the largest fraction of any view."""

    row: Ints  # of each hidden node
    name: Ints
    kind: Ints
    node: Ints  # the hidden node of each row with most self time
    left_out: int  # names that have the last row; 0 where each has its own

    @classmethod
    def of(cls, tree: CallTree, views: Sequence[View], order: _Order) -> _HiddenNames:
        hidden = order.hidden
        used, group = np.unique(name_keys(tree)[hidden], return_inverse=True)
        group = group.reshape(-1)
        name, kind, left_out = used // len(KINDS), used % len(KINDS), max(0, len(used) - MOST_NAMES)
        if left_out:
            kept = np.sort(np.argpartition(-_largest_of(views, hidden, group), MOST_NAMES)[:MOST_NAMES])
            row_of_group = np.full(len(used), MOST_NAMES, dtype=np.int64)
            row_of_group[kept] = np.arange(MOST_NAMES)
            group = row_of_group[group]
            name, kind = np.append(name[kept], len(tree.names) + 1), np.append(kind[kept], OTHER_KIND)
        most = views[0].own[hidden]
        by_size = np.lexsort((-most, group))
        hottest = hidden[by_size[np.searchsorted(group[by_size], np.arange(len(name)))]]
        return cls(group, name, kind, hottest, left_out)

    def summed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each row the sum over its nodes."""
        sums = np.zeros(len(self.name), dtype=values.dtype)
        np.add.at(sums, self.row, values)
        return sums

    def columns(self, tree: CallTree, order: _Order) -> Columns:
        """Return what a page has of each row besides its times."""
        return {
            "calls": self.summed(np.maximum(tree.calls[order.hidden], 0)).astype("<f8"),
            "name": self.name.astype("<i4"),
            "node": order.other_place[self.node].astype("<i4"),
            "paths": np.bincount(self.row, minlength=len(self.name)).astype("<i4"),
            "kind": self.kind.astype("u1"),
        }


def _largest_of(views: Sequence[View], hidden: Ints, group: Ints) -> npt.NDArray[np.float64]:
    """Return for each group of hidden nodes the largest fraction that it has of any view."""
    largest = np.zeros(int(group.max(initial=-1)) + 1)
    for view in views:
        sums = np.bincount(group, np.maximum(view.own[hidden], 0), minlength=len(largest))
        largest = np.maximum(largest, sums / max(float(np.maximum(view.own, 0).sum()), 1.0))
    return largest


def _sums_by_name(
    tree: CallTree, views: Sequence[View], ends: Ints, order: _Order, names: _HiddenNames
) -> Columns:
    hidden = order.hidden
    keys = name_keys(tree)
    if names.left_out:
        # They are one name, so that no time counts twice.
        keys[hidden[names.row == len(names.name) - 1]] = keys.max() + 1
    is_outer = outermost(keys, ends)[hidden]
    columns: Columns = {}
    for view in views:
        columns[f"{view.key}.own"] = names.summed(np.maximum(view.own[hidden], 0)).astype("<f8")
        total = np.where(is_outer, view.total[hidden], 0)
        columns[f"{view.key}.total"] = names.summed(total).astype("<f8")
    return columns
