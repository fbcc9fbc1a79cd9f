# SPDX-License-Identifier: Apache-2.0
"""The frames above spans that no sample met: those above other calls of the same path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof.run.span_boundaries import MOST_KEPT, NOTHING, common_frames, common_length, typical_frames
from gpuprof.run.stack_placement import FrameGroups, SpanFrames
from gpuprof.run.stacks import Frames

MOST_WAYS = 32  # of calling the same path, the first that were met: a guess looks at all of them


class FrameGuesses:
    """Finds the group of frames above each span; `families` are those of calls from the same places.

    `are_opened` marks the spans that a function of PyTorch opens, which is then the last frame above them.
    """

    def __init__(
        self,
        groups: FrameGroups,
        found: SpanFrames,
        families: npt.NDArray[np.int64],
        are_opened: npt.NDArray[np.bool_],
    ) -> None:
        self._groups = groups
        self._found = found
        self._families = as_numbers(families)
        self._opened = set(families[are_opened].tolist())
        self._known: dict[tuple[int, int, int], int] = {}
        self._ways: defaultdict[int, dict[Frames, int]] = defaultdict(dict)
        above = np.array(found.above, dtype=np.int64)
        met = np.flatnonzero(above >= 0)
        pairs = np.stack([families[met], above[met]])
        distinct, first, counts = np.unique(pairs, axis=1, return_index=True, return_counts=True)
        order = np.argsort(first)
        for (family, group), count in zip(distinct[:, order].T.tolist(), counts[order].tolist(), strict=True):
            ways = self._ways[family]
            if len(ways) < MOST_WAYS:
                ways[groups.frames[group]] = count

    def above(self, place: int) -> int:
        """Return the group above a span of a sampled thread: from a sample, or a guess."""
        found = self._found.above[place]
        if found != NOTHING:
            return found
        key = (self._families[place], self._found.before[place], self._found.after[place])
        group = self._known.get(key)
        if group is None:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            group = self._known[key] = self._guess(*key)
        return group

    def _guess(self, family: int, before: int, after: int) -> int:
        frames = self._groups.frames
        around = None if before == NOTHING else (frames[before], frames[after])
        ways = self._ways.get(family, {})
        if ways and family in self._opened:
            return self._groups.number(guess_opened(ways, around))
        return self._groups.number(guess(ways, around))


def guess(seen: Mapping[Frames, int], around: tuple[Frames, Frames] | None) -> Frames:
    """Return the frames above a span that no sample met.

    `seen` are those of other calls of the same path, with their number; `around` the frames of the samples
    before and after it, for an outermost span. Of the ways that were seen those count that fit to both of
    them, or else to one; they give what they agree on. Where none fits it is what the two samples share.
    Of an inner span, the most frequent ways that are together 90% of the calls give what they agree on.
    """
    ways = list(seen)
    if around is None:
        return typical_frames(seen)
    fits = {way: sum(_fits(way, frames) for frames in around) for way in ways}
    best = max(fits.values(), default=0)
    return common_frames([way for way in ways if fits[way] == best]) if best else common_frames(list(around))


def guess_opened(seen: Mapping[Frames, int], around: tuple[Frames, Frames] | None) -> Frames:
    """Return the frames above a span that no sample met, and that begins in a known function.

    It is called in one of the ways that were `seen`: the one that has most in common with what the samples
    `around` share, of equal ones the most frequent.
    """
    shared = () if around is None else common_frames(around)
    return max(seen, key=lambda way: (common_length(way, shared), seen[way]))


def _fits(way: Frames, frames: Frames) -> bool:
    # A function may have been left or entered between the call and the sample.
    return common_length(way, frames) == min(len(way), len(frames))


# ---- columns of spans -----------------------------------------------------------------------


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
