# SPDX-License-Identifier: Apache-2.0
"""The spans of a thread that its samples distinguish: a few for each sample.

A program has thousands of spans between two samples. In a sample are the spans that were open at its moment,
and the time of its window in which none of their own inner spans ran. So of all other spans only the time is
needed that the outermost ones take, between the same two instants: they become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_LONG_AGO = np.iinfo(np.int64).min


class SampledSpans(NamedTuple):
    """Spans by their begin, outer ones first. `places` are theirs; of spans that became one, the first's."""

    places: Ints
    start_ns: Ints
    end_ns: Ints


class SpanChooser:
    """Chooses among the spans of a thread, which it is given in parts.

    `moments` are those of its samples in order; `windows` are the instants at which their windows begin or
    end, in any order. A span that begins in one that no sample met and ends after it, as asynchronous ones
    do, stays, and so do those that begin before its end.
    """

    def __init__(self, moments: Ints, windows: Ints) -> None:
        self._moments = moments
        self._instants = np.unique(np.concatenate([moments, windows]))
        self._ends = np.empty(0, dtype=np.int64)  # sorted, of spans that a sample met
        self._unmet_until = self._crossing_until = _LONG_AGO

    def choose(self, start: Ints, end: Ints) -> SampledSpans:
        """Choose among the next spans, one or more; `places` are in this part.

        They are sorted by their begin, outer ones first.
        """
        first, last = (np.searchsorted(self._moments, column) for column in (start, end))
        is_met = first < last
        ends = self._ends[np.searchsorted(self._ends, start[0]) :]
        self._ends = ends = np.sort(np.concatenate([ends, end[is_met]]))
        before, self._unmet_until = _latest(self._unmet_until, end, ~is_met)
        is_crossing = (start < before) & (is_met | (end > before))
        among_crossing, self._crossing_until = _latest(self._crossing_until, end, is_crossing)
        is_among = is_crossing | (start < among_crossing)
        kept = np.flatnonzero(is_met | (end > before) | is_among)
        can_join = ~(is_met | is_among)[kept]
        can_join[:-1] &= ~is_crossing[kept][1:]
        # What follows may begin inside of a later one.
        can_join &= end[kept] <= start[-1]
        return self._joined(kept, start[kept], end[kept], is_met[kept], can_join)

    def _joined(
        self,
        places: Ints,
        start: Ints,
        end: Ints,
        is_met: npt.NDArray[np.bool_],
        can_join: npt.NDArray[np.bool_],
    ) -> SampledSpans:
        """Make one span of those that can join between the same two instants, and begins and ends of others.

        Its length is the sum of theirs.
        """
        between = np.searchsorted(self._instants, start, side="right")
        is_whole = can_join & (between == np.searchsorted(self._instants, end))
        ended = np.searchsorted(self._ends, start, side="right")
        is_first = np.ones(len(places), dtype=np.bool_)
        is_first[1:] = ~(is_whole[1:] & is_whole[:-1])
        for key in (between, np.cumsum(is_met), ended):
            is_first[1:] |= np.diff(key) != 0
        first = np.flatnonzero(is_first)
        lengths = np.add.reduceat(end - start, first) if len(first) else start
        return SampledSpans(places[first], start[first], start[first] + lengths)


class LastEnds:
    """Finds of the ends of spans, which come in parts, the last one until each of the moments."""

    def __init__(self, moments: Ints) -> None:
        self._moments = moments
        self._latest = np.full(len(moments) + 1, _LONG_AGO)

    def add(self, ends: Ints) -> None:
        """Take in ends, in any order."""
        np.maximum.at(self._latest, np.searchsorted(self._moments, ends), ends)

    @property
    def found(self) -> Ints:
        """The ends that were the last ones, sorted."""
        latest = np.maximum.accumulate(self._latest[:-1])
        return np.unique(latest[latest > _LONG_AGO])


def _latest(former: Any, end: Ints, are_meant: npt.NDArray[np.bool_]) -> tuple[Ints, Any]:
    """Return for each span the latest end of those before it that are meant, and that of all."""
    found = np.maximum.accumulate(np.concatenate([[former], np.where(are_meant, end, _LONG_AGO)]))
    return found[:-1], found[-1]
