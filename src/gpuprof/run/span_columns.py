# SPDX-License-Identifier: Apache-2.0
"""Columns of spans, one by one without a copy: which are of one thread, and which are around which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def as_numbers(column: npt.NDArray[Any]) -> Sequence[int]:
    """Return a view of a column whose elements are Python's own numbers, which are faster one by one."""
    whole: Any = np.ascontiguousarray(column)
    return memoryview(whole)


def places_by_thread(spans: Mapping[str, Sequence[int]]) -> dict[tuple[int, int], npt.NDArray[np.int64]]:
    """Return where the spans of each thread are, by process and thread."""
    processes, threads = (np.asarray(spans[name]) for name in ("process_id", "thread_id"))
    if not len(processes):
        return {}
    order = np.lexsort((threads, processes))
    keys = np.stack([processes[order], threads[order]])
    parts = np.split(order, np.flatnonzero((np.diff(keys) != 0).any(axis=0)) + 1)
    return {(int(processes[part[0]]), int(threads[part[0]])): part for part in parts}


def outer_places(spans: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """Return where the span around each span is, -1 for a span outside of all."""
    ids, parents = (np.asarray(spans[name]) for name in ("span_id", "parent_id"))
    if not len(ids):
        return ()
    by_id = np.argsort(ids, kind="stable")
    found = by_id[np.minimum(np.searchsorted(ids, parents, sorter=by_id), len(ids) - 1)]
    return as_numbers(np.where(ids[found] == parents, found, -1))
