# SPDX-License-Identifier: Apache-2.0
"""The spans of a thread that its samples can tell from each other: a few for each sample.

A program has thousands of spans between two samples. In a sample are the spans that were open at its moment,
and the time of its window in which none of their own inner spans ran. So of all other spans only the time is
needed that the outermost ones take, between the same two instants: they become one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_AT_ONCE = 1 << 16  # spans; what is calculated for them takes some MB
_LONG_AGO = np.iinfo(np.int64).min


class SampledSpans(NamedTuple):
    """Spans by their begin, outer ones first. `places` are theirs; of spans that became one, the first's."""

    places: Ints
    start_ns: Ints
    end_ns: Ints


def sampled_spans(start_ns: Ints, end_ns: Ints, moments: Ints, windows: Ints) -> SampledSpans:
    """Choose among the spans of a thread, which are sorted by their begin, outer ones first.

    `moments` are those of its samples in order; `windows` are the instants at which their windows begin or
    end, in any order. A span that begins in one that no sample met and ends after it, as asynchronous ones
    do, stays, and so do those that begin before its end.
    """
    met = np.concatenate([_none(), *_met(start_ns, end_ns, moments)])
    instants = np.unique(np.concatenate([moments, windows]))
    ends = np.sort(end_ns[met])
    parts = [SampledSpans(_none(), _none(), _none())]
    unmet_until = crossing_until = _LONG_AGO
    for begin in range(0, len(start_ns), _AT_ONCE):
        own = slice(begin, begin + _AT_ONCE)
        start, end = start_ns[own], end_ns[own]
        is_met = np.zeros(len(start), dtype=np.bool_)
        is_met[met[slice(*np.searchsorted(met, (begin, begin + _AT_ONCE)))] - begin] = True
        before, unmet_until = _latest(unmet_until, end, ~is_met)
        is_crossing = (start < before) & (is_met | (end > before))
        among_crossing, crossing_until = _latest(crossing_until, end, is_crossing)
        is_among = is_crossing | (start < among_crossing)
        kept = np.flatnonzero(is_met | (end > before) | is_among)
        can_join = ~(is_met | is_among)[kept]
        can_join[:-1] &= ~is_crossing[kept][1:]
        can_join &= end[kept] <= start_ns[min(begin + _AT_ONCE, len(start_ns) - 1)]
        parts.append(_joined(begin + kept, start[kept], end[kept], is_met[kept], can_join, instants, ends))
    return SampledSpans(*map(np.concatenate, zip(*parts, strict=True)))


def _latest(former: Any, end: Ints, are_meant: npt.NDArray[np.bool_]) -> tuple[Ints, Any]:
    """Return for each span the latest end of those before it that are meant, and that of all."""
    found = np.maximum.accumulate(np.concatenate([[former], np.where(are_meant, end, _LONG_AGO)]))
    return found[:-1], found[-1]


def last_before(moments: Ints, ends: Ints) -> Ints:
    """Return of these ends the last one until each moment."""
    ends = np.sort(ends)
    last = np.searchsorted(ends, moments, side="right") - 1
    return ends[np.unique(last[last >= 0])]


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


def _met(start_ns: Ints, end_ns: Ints, moments: Ints) -> Iterator[Ints]:
    """Yield the places of the spans that are open at one of these moments."""
    for begin in range(0, len(start_ns), _AT_ONCE):
        own = slice(begin, begin + _AT_ONCE)
        first, last = (np.searchsorted(moments, column[own]) for column in (start_ns, end_ns))
        yield begin + np.flatnonzero(first < last)


def _joined(
    places: Ints,
    start: Ints,
    end: Ints,
    is_met: npt.NDArray[np.bool_],
    can_join: npt.NDArray[np.bool_],
    instants: Ints,
    ends: Ints,
) -> SampledSpans:
    """Make one span of those that can join between the same two instants, and begins and ends of others.

    Its length is the sum of theirs.
    """
    between = np.searchsorted(instants, start, side="right")
    is_whole = can_join & (between == np.searchsorted(instants, end))
    keys: list[npt.NDArray[Any]] = [between, np.cumsum(is_met), np.searchsorted(ends, start, side="right")]
    is_first = np.ones(len(places), dtype=np.bool_)
    is_first[1:] = ~(is_whole[1:] & is_whole[:-1])
    for key in keys:
        is_first[1:] |= np.diff(key) != 0
    first = np.flatnonzero(is_first)
    lengths = np.add.reduceat(end - start, first) if len(first) else _none()
    return SampledSpans(places[first], start[first], start[first] + lengths)
