# SPDX-License-Identifier: Apache-2.0
"""The nodes of spans in a tree with Python's frames, made for many spans at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuprof.run.span_boundaries import NOTHING
from gpuprof.run.stored_spans import StoredSpans

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


class SpanNodes:
    """Gives spans their nodes, part by part in the order of their ids, and keeps these in the store.

    A node is that of the span around, the group of frames between them, and the row of the plain tree.
    `node_below` makes one; `roots` are the nodes of what is around the outermost spans, by thread.
    """

    def __init__(self, spans: StoredSpans, roots: Ints, node_below: Callable[[int, int, int], int]) -> None:
        self._spans = spans
        self._roots = roots
        self._node_below = node_below
        self._made: dict[tuple[int, int, int], int] = {}

    def make(self, ids: Ints, parent_ids: Ints, thread: npt.NDArray[Any], group: Ints, row: Ints) -> Ints:
        """Return the nodes of these spans, which follow those of the call before."""
        around = np.minimum(np.searchsorted(ids, parent_ids), len(ids) - 1)
        around = np.where(ids[around] == parent_ids, around, NOTHING)
        base = np.where(around < 0, self._roots[thread], NOTHING)
        earlier = np.flatnonzero((parent_ids >= 0) & (parent_ids < ids[0]))
        outer, number = np.unique(parent_ids[earlier], return_inverse=True)
        known = np.array(self._spans.nodes_of(outer.tolist()), dtype=np.int64)[number]
        base[earlier] = np.where(known < 0, base[earlier], known)
        node = np.empty(len(ids), dtype=np.int64)
        for level in levels_of(around):
            inner = level[base[level] < 0]
            base[inner] = node[around[inner]]
            node[level] = self._nodes_of(base[level], group[level], row[level])
        self._spans.add_nodes(ids, node.astype(np.int32))
        return node

    def _nodes_of(self, base: Ints, group: Ints, row: Ints) -> Ints:
        kinds = distinct(base, group, row)
        nodes = np.empty(len(kinds.first), dtype=np.int64)
        for number in np.argsort(kinds.first).tolist():
            at = kinds.first[number]
            key = (int(base[at]), int(group[at]), int(row[at]))
            node = self._made.get(key)
            if node is None:
                node = self._made[key] = self._node_below(*key)
            nodes[number] = node
        return nodes[kinds.number]


class Distinct(NamedTuple):
    """Which rows of some columns are equal."""

    first: npt.NDArray[np.int64]  # the place of the first of each kind
    number: npt.NDArray[np.int64]  # by row, the kind


def distinct(*columns: npt.NDArray[Any]) -> Distinct:
    """Find equal rows in columns of numbers from 0 on."""
    key, size = columns[0].astype(np.int64), int(columns[0].max(initial=0)) + 1
    for column in columns[1:]:
        width = int(column.max(initial=0)) + 1
        if size * width >= 1 << 62:
            kinds, key = np.unique(key, return_inverse=True)
            size = len(kinds)
        key = key * width + column
        size *= width
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return Distinct(first, number)


def levels_of(outer: Ints) -> list[Ints]:
    """Return the places of rows without an outer row, of those directly in them, and so on.

    `outer` are places of earlier rows, -1 for none.
    """
    level = (outer >= 0).astype(np.int64)
    above = outer.copy()
    while (inner := np.flatnonzero(above >= 0)).size:
        # The levels between a row and `above` are added to those between that and what is above it.
        level[inner] += level[above[inner]]
        above[inner] = above[above[inner]]
    order = np.argsort(level, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(level[order])) + 1)
