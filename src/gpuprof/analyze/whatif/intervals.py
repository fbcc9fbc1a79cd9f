# SPDX-License-Identifier: Apache-2.0
"""Disjoint intervals of time, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint, sorted intervals `[begin_ns, end_ns)`."""

    begin_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.begin_ns)

    @classmethod
    def union(cls, begin_ns: Ints, end_ns: Ints) -> Intervals:
        """Return what any of the given intervals covers; intervals that touch become one."""
        begin_ns, end_ns = np.asarray(begin_ns, dtype=np.int64), np.asarray(end_ns, dtype=np.int64)
        order = np.argsort(begin_ns, kind="stable")
        begin_ns, end_ns = begin_ns[order], end_ns[order]
        kept = end_ns > begin_ns
        begin_ns, end_ns = begin_ns[kept], end_ns[kept]
        if not len(begin_ns):
            return cls(begin_ns, end_ns)
        reached = np.maximum.accumulate(end_ns)
        opens = np.concatenate(([True], begin_ns[1:] > reached[:-1]))
        last = np.append(np.flatnonzero(opens)[1:] - 1, len(reached) - 1)
        return cls(begin_ns[opens], reached[last])

    @property
    def total_ns(self) -> int:
        """The covered time."""
        return int((self.end_ns - self.begin_ns).sum())

    @property
    def mean_ns(self) -> float | None:
        """The mean length; None without intervals."""
        return self.total_ns / len(self) if len(self) else None

    def place(self, times_ns: Ints) -> Ints:
        """Return for each time the number of the interval that it is in, or -1."""
        if not len(self):
            return np.full(len(times_ns), -1, dtype=np.int64)
        place = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        inside = (place >= 0) & (times_ns < self.end_ns[place])
        return np.where(inside, place, -1)

    def covered_ns(self, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return how much of each given interval is covered."""
        return self._covered_before(end_ns) - self._covered_before(begin_ns)

    def without(self, other: Intervals) -> Intervals:
        """Return what the other ones do not cover."""
        edges = np.unique(np.concatenate([self.begin_ns, self.end_ns, other.begin_ns, other.end_ns]))
        kept = (self.place(edges[:-1]) >= 0) & (other.place(edges[:-1]) < 0)
        return Intervals.union(edges[:-1][kept], edges[1:][kept])

    def _covered_before(self, times_ns: Ints) -> Ints:
        if not len(self):
            return np.zeros(len(times_ns), dtype=np.int64)
        length = self.end_ns - self.begin_ns
        before = np.concatenate(([0], np.cumsum(length)))
        place = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        partly = np.clip(times_ns - self.begin_ns[place], 0, length[place])
        covered: Ints = np.where(place >= 0, before[place] + partly, 0)
        return covered


NO_INTERVALS = Intervals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
