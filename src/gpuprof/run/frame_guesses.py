# SPDX-License-Identifier: Apache-2.0
"""Which Python frames stand above spans that no sample met: those above other calls of the same path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from gpuprof.run.span_columns import as_numbers
from gpuprof.run.stack_placement import MOST_KEPT, NOTHING, FrameGroups, SpanFrames, common_length
from gpuprof.run.stacks import Frames

MOST_WAYS = 32  # of calling the same path, the first that were met: a guess looks at all of them


class FrameGuesses:
    """Tells the group of frames above each span; `families` are those of calls from the same places."""

    def __init__(self, groups: FrameGroups, found: SpanFrames, families: npt.NDArray[np.int64]) -> None:
        self._groups = groups
        self._found = found
        self._families = as_numbers(families)
        self._known: dict[tuple[int, int, int], int] = {}
        self._ways: defaultdict[int, list[Frames]] = defaultdict(list)
        above = np.array(found.above, dtype=np.int64)
        met = np.flatnonzero(above >= 0)
        pairs = np.stack([families[met], above[met]])
        distinct, first = np.unique(pairs, axis=1, return_index=True)
        for family, group in distinct[:, np.argsort(first)].T.tolist():
            ways = self._ways[family]
            if len(ways) < MOST_WAYS:
                ways.append(groups.frames[group])

    def above(self, place: int) -> int:
        """Return the group above a span of a sampled thread: what a sample told, or a guess."""
        told = self._found.above[place]
        if told != NOTHING:
            return told
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
        return self._groups.number(guess(self._ways.get(family, ()), around))


def guess(seen: Collection[Frames], around: tuple[Frames, Frames] | None) -> Frames:
    """Return the frames above a span that no sample met.

    `seen` are those of other calls of the same path, `around` the frames of the samples before and after it,
    for an outermost span. Of the ways that were seen those count that fit to both of them, or else to one;
    they give what they agree on. Where none fits it is what the two samples share.
    """
    ways = list(seen)
    if around is None:
        return _common(ways)
    fits = {way: sum(_fits(way, frames) for frames in around) for way in ways}
    best = max(fits.values(), default=0)
    return _common([way for way in ways if fits[way] == best]) if best else _common(list(around))


def _fits(way: Frames, frames: Frames) -> bool:
    # A function may have been left or entered between the call and the sample.
    return common_length(way, frames) == min(len(way), len(frames))


def _common(ways: list[Frames]) -> Frames:
    if not ways:
        return ()
    shortest = min(ways, key=len)
    return shortest[: min(common_length(shortest, way) for way in ways)]
