# SPDX-License-Identifier: Apache-2.0
"""The timing loops: clock readings around calls and nothing else between them, with warm or cold caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from gpuprof import _native

Clock = Callable[[], int]  # nanoseconds
Call = Callable[[], object]
_NOT_DONE = -1
_NULL_CALLS = 2_000


class CallTimer:
    """Times calls into two lists of nanoseconds: until the call was done, and until it had returned.

    `synchronize` is None where a call is done when it returns; then both lists are one. `before` runs ahead
    of each call, outside the timed part. What a call returns is dropped inside the timed part, as a program
    that does not keep it would. Single calls are timed by a native loop, which reads the processor's tick
    counter; with any other `clock` the same loops in Python do it.
    """

    def __init__(
        self,
        run: Call,
        synchronize: Call | None = None,
        clock: Clock = time.perf_counter_ns,
        before: Call | None = None,
    ) -> None:
        self.run = run
        self.synchronize = synchronize
        self.clock = clock
        self.before = before
        # Functions of their own: the interpreter specialises code in place, for one callable at a time.
        self._latency = _copied(_time_plain if synchronize is None else _time_waiting)
        self._cold = _copied(_time_cold)
        self._windows = _copied(_time_windows)
        self.wall_ns: list[int] = []
        self.enqueue_ns: list[int] = []

    def take(self, samples: int, calls_per_sample: int = 1) -> None:
        """Fill the lists with new samples; what was finished before an exception is kept in them."""
        wall, enqueue = [_NOT_DONE] * samples, [_NOT_DONE] * samples
        try:
            if calls_per_sample > 1:
                wait = self.synchronize or _nothing
                self._windows(self.run, wait, self.clock, calls_per_sample, wall, enqueue)
            elif self.clock is time.perf_counter_ns:
                self._take_natively(wall, enqueue)
            elif self.before is not None:
                self._cold(self.before, self.run, self.synchronize or _nothing, self.clock, wall, enqueue)
            elif self.synchronize is None:
                self._latency(self.run, self.clock, wall)
            else:
                self._latency(self.run, self.synchronize, self.clock, wall, enqueue)
        finally:
            done = samples - wall.count(_NOT_DONE)
            self.wall_ns = wall[:done]
            self.enqueue_ns = enqueue[:done] if self.synchronize is not None else self.wall_ns

    def _take_natively(self, wall: list[int], enqueue: list[int]) -> None:
        walls = np.full(len(wall), _NOT_DONE, dtype=np.int64)
        enqueues = walls.copy()
        try:
            _native.time_calls(self.run, self.synchronize, self.before, walls, enqueues)
        finally:
            wall[:], enqueue[:] = walls.tolist(), enqueues.tolist()


def null_call_ns(timer: CallTimer) -> float:
    """Return the median of what the timer reads for a call that does nothing, with the same clock."""
    null = CallTimer(_nothing, None if timer.synchronize is None else _nothing, timer.clock)
    null.take(_NULL_CALLS)
    null.take(_NULL_CALLS)
    return float(sorted(null.wall_ns)[_NULL_CALLS // 2])


def _nothing() -> None:
    pass


def _copied(function: Callable[..., None]) -> Callable[..., None]:
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__)


def _time_plain(run: Call, clock: Clock, wall: list[int]) -> None:
    for index in range(len(wall)):
        begin = clock()
        run()
        wall[index] = clock() - begin


def _time_waiting(run: Call, synchronize: Call, clock: Clock, wall: list[int], enqueue: list[int]) -> None:
    for index in range(len(wall)):
        begin = clock()
        run()
        returned = clock()
        synchronize()
        end = clock()
        enqueue[index] = returned - begin
        wall[index] = end - begin


def _time_cold(
    before: Call, run: Call, synchronize: Call, clock: Clock, wall: list[int], enqueue: list[int]
) -> None:
    for index in range(len(wall)):
        before()
        synchronize()
        begin = clock()
        run()
        returned = clock()
        synchronize()
        end = clock()
        enqueue[index] = returned - begin
        wall[index] = end - begin


def _time_windows(
    run: Call, synchronize: Call, clock: Clock, calls: int, wall: list[int], enqueue: list[int]
) -> None:
    for index in range(len(wall)):
        times: Any = repeat(None, calls)
        begin = clock()
        for _ in times:
            run()
        returned = clock()
        synchronize()
        end = clock()
        enqueue[index] = returned - begin
        wall[index] = end - begin


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Larger than the last level of most processors, where the system does not tell.
ASSUMED_BYTES = 64 << 20


def last_level_cache_bytes() -> int | None:
    """Return the size of the largest cache of the first processor; None where the system does not tell."""
    sizes = [size for path in _CACHES.glob("index*/size") if (size := _read_size(path)) is not None]
    return max(sizes, default=None)


def cache_flusher(size_bytes: int | None = None) -> Callable[[], None]:
    """Return a function that writes twice the last level's bytes, so that older lines have to go."""
    size = size_bytes or 2 * (last_level_cache_bytes() or ASSUMED_BYTES)
    buffer = np.zeros(max(size // 8, 1), dtype=np.int64)

    def flush() -> None:
        np.add(buffer, 1, out=buffer)

    return flush


def _read_size(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    number, unit = text.rstrip("KMG"), text[-1:]
    return int(number) * _UNITS.get(unit, 1) if number.isdigit() else None
