# SPDX-License-Identifier: Apache-2.0
"""The nodes of spans in a tree with Python's frames, made for many spans at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run.span_boundaries import NOTHING
from gpuprof.run.stored_spans import StoredSpans

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_LIMIT = 1 << 31  # of nodes, groups and rows


class SpanNodes:
    """Gives spans their nodes, part by part in the order of their ids, and keeps these in the store.

    A node is that of the span around, the group of frames between them, and the row of the plain tree.
    `node_below` makes one; `roots` are the nodes of what is around the outermost spans, by thread.
    """

    def __init__(self, spans: StoredSpans, roots: Ints, node_below: Callable[[int, int, int], int]) -> None:
        self._spans = spans
        self._roots = roots
        self._node_below = node_below
        self._pairs: list[tuple[int, int]] = []  # group and row
        self._number_of_pair = _Known(self._add_pair)
        self._node_of_pair = _Known(self._add_node)

    def make(self, ids: Ints, parent_ids: Ints, thread: npt.NDArray[Any], group: Ints, row: Ints) -> Ints:
        """Return the nodes of these spans, which follow those of the call before."""
        around = np.minimum(np.searchsorted(ids, parent_ids), len(ids) - 1)
        around = np.where(ids[around] == parent_ids, around, NOTHING)
        base = np.where(around < 0, self._roots[thread], NOTHING)
        earlier = np.flatnonzero((parent_ids >= 0) & (parent_ids < ids[0]))
        outer, number = np.unique(parent_ids[earlier], return_inverse=True)
        known = np.array(self._spans.nodes_of(outer.tolist()), dtype=np.int64)[number]
        base[earlier] = np.where(known < 0, base[earlier], known)
        pair = self._number_of_pair.of(group * _LIMIT + row)
        node = np.empty(len(ids), dtype=np.int64)
        for level in levels_of(around):
            inner = level[base[level] < 0]
            base[inner] = node[around[inner]]
            node[level] = self._node_of_pair.of(base[level] * _LIMIT + pair[level])
        self._spans.add_nodes(ids, node.astype(np.int32))
        return node

    def _add_pair(self, key: int) -> int:
        self._pairs.append(divmod(key, _LIMIT))
        return len(self._pairs) - 1

    def _add_node(self, key: int) -> int:
        base, pair = divmod(key, _LIMIT)
        return self._node_below(base, *self._pairs[pair])


class _Known:
    """A number for each key. `make` gives those of new keys, in the order in which they are met."""

    def __init__(self, make: Callable[[int], int]) -> None:
        self._make = make
        # Keys are sorted; -1 is none.
        self._keys = np.full(1, -1, dtype=np.int64)
        self._numbers = np.full(1, -1, dtype=np.int64)

    def of(self, keys: Ints) -> Ints:
        """Return the numbers of keys."""
        place = self._places(keys)
        if len(new := np.flatnonzero(self._keys[place] != keys)):
            fresh, first = np.unique(keys[new], return_index=True)
            numbers = np.empty(len(fresh), dtype=np.int64)
            for at in np.argsort(first).tolist():
                numbers[at] = self._make(int(fresh[at]))
            before = np.searchsorted(self._keys, fresh)
            self._keys = np.insert(self._keys, before, fresh)
            self._numbers = np.insert(self._numbers, before, numbers)
            place = self._places(keys)
        return self._numbers[place]

    def _places(self, keys: Ints) -> Ints:
        places: Ints = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return places


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
