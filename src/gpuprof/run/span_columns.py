# SPDX-License-Identifier: Apache-2.0
"""The spans of a run as columns in the order of their begin, as few bytes for each as the call tree needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_AT_ONCE = 1 << 20  # rows


class SpanColumns(NamedTuple):
    """Spans by their begin, outer ones first. `order` has their places in the columns they came from."""

    order: npt.NDArray[Any]
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    own_ns: npt.NDArray[np.int64]
    row: npt.NDArray[Any]  # of the tree
    outer: npt.NDArray[Any]  # the place of the span around it, -1 for one outside of all
    thread: npt.NDArray[Any]  # place in `threads`
    threads: list[tuple[int, int]]  # process and thread

    @classmethod
    def of(cls, given: Mapping[str, npt.NDArray[Any]], row_of_number: npt.NDArray[np.int64]) -> SpanColumns:
        """Sort the columns that `with_python_frames` is given."""
        count = len(given["span_id"])
        small = np.int32 if max(count, len(row_of_number)) < 1 << 31 else np.int64
        order = np.lexsort((given["span_id"], -given["duration_ns"], given["start_ns"])).astype(small)
        row = row_of_number.astype(small)[given["path_id"]]
        thread, threads = _threads_of(given)
        return cls(
            order,
            *(given[name].astype(np.int64, copy=False)[order] for name in ("start_ns", "duration_ns", "own_ns")),
            row[order],
            _outer_places(given["span_id"], given["parent_id"], order),
            thread[order],
            threads,
        )

    def places_of(self, thread: int) -> npt.NDArray[np.int64]:
        """Return where the spans of a thread are."""
        return np.flatnonzero(self.thread == thread)


def _threads_of(given: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int32], list[tuple[int, int]]]:
    numbers: dict[tuple[int, int], int] = {}
    found = np.empty(len(given["span_id"]), dtype=np.int32)
    for part in _parts(len(found)):
        keys = np.stack([given["process_id"][part], given["thread_id"][part]]).astype(np.int64)
        begins = np.flatnonzero(np.concatenate([[True], (np.diff(keys) != 0).any(axis=0)]))
        own = [numbers.setdefault(key, len(numbers)) for key in map(tuple, keys[:, begins].T.tolist())]
        found[part] = np.repeat(own, np.diff([*begins.tolist(), keys.shape[1]]))
    return found, list(numbers)


def _outer_places(ids: npt.NDArray[Any], parents: npt.NDArray[Any], order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not len(ids):
        return order
    by_id = np.argsort(ids[order], kind="stable").astype(order.dtype)
    sorted_ids = ids[order][by_id]
    found = np.empty_like(order)
    for part in _parts(len(order)):
        wanted = parents[order[part]]
        place = np.minimum(np.searchsorted(sorted_ids, wanted), len(ids) - 1)
        found[part] = np.where(sorted_ids[place] == wanted, by_id[place], -1)
    return found


def _parts(count: int) -> Iterator[slice]:
    return (slice(begin, begin + _AT_ONCE) for begin in range(0, count, _AT_ONCE))


# ---- equal ones, and outer ones first ---------------------------------------------------------


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


def levels_of(outer: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
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
