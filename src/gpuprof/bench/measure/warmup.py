# SPDX-License-Identifier: Apache-2.0
"""Warm-up until the times are steady, not for a fixed count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuprof.bench.measure.timer import CallTimer

TOLERANCE = 0.01
WINDOWS = 3
# Neither a handful of calls nor a handful of milliseconds shows that times are steady.
_LEAST_CALLS, _LEAST_NS = 300, 20_000_000
# For slow calls, which would take minutes to make so many.
_FEW_CALLS, _LONG_ENOUGH_NS = 30, 2_000_000_000
_GROWTH = 1.25
_CHUNK_NS = 50_000_000
_MOST_CALLS_IN_CHUNK = 10_000
_MOST_CALLS = 1_000_000
_RECENT = 1_000


@dataclass(frozen=True, slots=True)
class Warmup:
    """What warming up took.

    `settled` is None where a fixed number of calls was asked for, and False where the limit came first.
    `settled_after` is the number of calls before the three windows that agreed, `drift` how far apart the
    medians of the last three windows were, as a fraction.
    """

    calls: int
    elapsed_s: float
    first_call_s: float | None
    settled: bool | None
    settled_after: int | None
    drift: float | None

    def __str__(self) -> str:
        took = f"{self.calls:,} calls in {self.elapsed_s:.2f} s"
        if self.settled is None:
            return f"{took}, as asked for"
        drift = "" if self.drift is None else f"; the last {WINDOWS} windows differed by {self.drift:.1%}"
        if not self.settled:
            return f"{took}: the times were never steady{drift}"
        return f"{took}: steady after {self.settled_after:,}{drift}"


class WarmupRun:
    """Calls until three windows drift by less than 1%; `report()` at any time, after a failure too.

    The windows are the last half of all calls, in three parts: they grow with the calls, so that noise
    becomes small against the tolerance while a trend does not.
    """

    def __init__(
        self,
        timer: CallTimer,
        *,
        calls: int | None,
        limit_s: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._timer = timer
        self._progress = progress
        self._wanted = calls
        self._limit_ns = limit_s * 1e9
        self._durations: list[int] = []
        self._began = timer.clock()
        self._ended = self._began
        # The first call may compile for minutes: it is reported separately, and is not part of the limit.
        self._first_ended = self._began
        self._settled = False

    def run(self) -> None:
        """Warm up. Whatever a call raises goes through."""
        if self._wanted is not None:
            while len(self._durations) < self._wanted:
                self._take(self._wanted - len(self._durations))
            return
        check_at = _FEW_CALLS
        while True:
            self._take(check_at - len(self._durations))
            if len(self._durations) >= check_at:
                check_at = max(check_at + 1, int(check_at * _GROWTH))
                if self._is_long_enough() and self._agrees():
                    break
            if self._after_first_call_ns() >= self._limit_ns or len(self._durations) >= _MOST_CALLS:
                self._agrees()
                break

    def report(self) -> Warmup:
        """Return what was done so far."""
        calls = len(self._durations)
        window = calls // (2 * WINDOWS)
        return Warmup(
            calls=calls,
            elapsed_s=self._elapsed_ns() / 1e9,
            first_call_s=self._durations[0] / 1e9 if calls else None,
            settled=self._settled if self._wanted is None else None,
            settled_after=calls - WINDOWS * window if self._settled else None,
            drift=self._drift(),
        )

    @property
    def usual_ns(self) -> float:
        """The median of the last calls, 0 where there is none."""
        recent = self._durations[-min(_RECENT, (len(self._durations) + 1) // 2) :]
        return float(np.median(recent)) if recent else 0.0

    def _take(self, calls: int) -> None:
        usual = self.usual_ns
        # The first call may compile; it does not show how many fit into a chunk.
        fitting = int(_CHUNK_NS / max(usual, 1.0)) if len(self._durations) > 1 else 1
        try:
            self._timer.take(max(1, min(calls, fitting, _MOST_CALLS_IN_CHUNK)))
        finally:
            self._durations += self._timer.wall_ns
            self._ended = self._timer.clock()
            if len(self._durations) <= 1:
                self._first_ended = self._ended
        if self._progress is not None:
            self._progress(len(self._durations))

    def _after_first_call_ns(self) -> int:
        return self._ended - self._first_ended

    def _elapsed_ns(self) -> int:
        return self._ended - self._began

    def _is_long_enough(self) -> bool:
        calls, elapsed = len(self._durations), self._after_first_call_ns()
        return (calls >= _LEAST_CALLS and elapsed >= _LEAST_NS) or elapsed >= _LONG_ENOUGH_NS

    def _agrees(self) -> bool:
        drift = self._drift()
        self._settled = drift is not None and drift < TOLERANCE
        return self._settled

    def _drift(self) -> float | None:
        calls = len(self._durations)
        window = calls // (2 * WINDOWS)
        if window == 0:
            return None
        recent = self._durations[calls - WINDOWS * window :]
        middles = [float(np.median(recent[each * window : (each + 1) * window])) for each in range(WINDOWS)]
        least = min(middles)
        return (max(middles) - least) / least if least > 0 else 0.0
