# SPDX-License-Identifier: Apache-2.0
"""The frames above spans that no sample met: those above other calls of the same path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof.run.span_boundaries import NOTHING, common_frames, common_length, typical_frames
from gpuprof.run.stack_placement import FrameGroups, SpanFrames
from gpuprof.run.stacks import Frames

MOST_WAYS = 32  # of calling the same path, the first that were met: a guess looks at all of them


class FrameGuesses:
    """Finds the group of frames above each span; the spans of one of the `families` have the same callers.

    `row_of` has the rows of the plain tree of the spans that were found, `families` are by row, and `opened`
    those of spans that a function of PyTorch opens, which is then the last frame above them.
    """

    def __init__(
        self,
        groups: FrameGroups,
        found: SpanFrames,
        row_of: Mapping[int, int],
        families: npt.NDArray[np.int64],
        opened: set[int],
    ) -> None:
        self._groups = groups
        self._opened = opened
        self._ways: defaultdict[int, dict[Frames, int]] = defaultdict(dict)
        for key in sorted(found.above):
            ways = self._ways[int(families[row_of[key]])]
            frames = groups.frames[found.above[key]]
            if frames in ways or len(ways) < MOST_WAYS:
                ways[frames] = ways.get(frames, 0) + 1
        # All families of which nothing was seen have the same guesses.
        self.families = np.where(np.isin(families, list(self._ways)), families, NOTHING)

    def group(self, family: int, before: int, after: int) -> int:
        """Return the group above a span that no sample met, of one of the `families`.

        For an outermost span, `before` and `after` are the groups above all spans in the samples around.
        """
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
