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
    row: npt.NDArray[Any]  # of the tree
    outer: npt.NDArray[Any]  # the place of the span around it, -1 for one outside of all
    thread: npt.NDArray[Any]  # place in `threads`
    threads: list[tuple[int, int]]  # process and thread

    @classmethod
    def of(cls, given: Mapping[str, npt.NDArray[Any]], row_of_number: npt.NDArray[np.int64]) -> SpanColumns:
        """Sort the columns that `with_python_frames` is given, of which few are read at a time."""
        order = np.lexsort((given["span_id"], -given["duration_ns"], given["start_ns"]))
        if max(len(order), len(row_of_number)) < 1 << 31:
            order = order.astype(np.int32)
        outer = _outer_places(given["span_id"], given["parent_id"], order)
        thread, threads = _threads_of(given["process_id"], given["thread_id"])
        thread = thread[order]
        row = row_of_number.astype(order.dtype)[given["path_id"]][order]
        start, duration = (
            given[name].astype(np.int64, copy=False)[order] for name in ("start_ns", "duration_ns")
        )
        return cls(order, start, duration, row, outer, thread, threads)

    def places_of(self, thread: int) -> npt.NDArray[np.int64] | slice:
        """Return where the spans of a thread are."""
        return slice(None) if len(self.threads) == 1 else np.flatnonzero(self.thread == thread)


def _threads_of(
    processes: npt.NDArray[Any], thread_ids: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int32], list[tuple[int, int]]]:
    numbers: dict[tuple[int, int], int] = {}
    found = np.empty(len(processes), dtype=np.int32)
    for part in parts(len(found)):
        keys = np.stack([processes[part], thread_ids[part]]).astype(np.int64)
        begins = np.flatnonzero(np.concatenate([[True], (np.diff(keys) != 0).any(axis=0)]))
        own = [numbers.setdefault(key, len(numbers)) for key in map(tuple, keys[:, begins].T.tolist())]
        found[part] = np.repeat(own, np.diff([*begins.tolist(), keys.shape[1]]))
    return found, list(numbers)


def _outer_places(
    ids: npt.NDArray[Any], parents: npt.NDArray[Any], order: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    if not len(ids):
        return order
    by_id = np.argsort(ids[order], kind="stable").astype(order.dtype)
    sorted_ids = ids[order[by_id]]
    del ids
    found = np.empty_like(order)
    for part in parts(len(order)):
        wanted = parents[order[part]]
        place = np.minimum(np.searchsorted(sorted_ids, wanted), len(order) - 1)
        found[part] = np.where(sorted_ids[place] == wanted, by_id[place], -1)
    return found


def parts(count: int) -> Iterator[slice]:
    """Yield slices of this many rows."""
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
