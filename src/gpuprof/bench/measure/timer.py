# SPDX-License-Identifier: Apache-2.0
"""The timing loops: clock readings around calls and nothing else between them, with warm or cold caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from types import FunctionType
from typing import Any

import numpy as np

from gpuprof import _native
from gpuprof.record.processor import data_caches, usable_processors

Integers = np.ndarray[Any, np.dtype[np.int64]]
Clock = Callable[[], int]  # nanoseconds
Call = Callable[[], object]
_NOT_DONE = -1
_NULL_CALLS = 2_000


class CallTimer:
    """Times calls into lists of nanoseconds: until the call was done, and until it had returned.

    `gap_ns` is the time before each call: since the end of the one before it, or since the start of `take`.

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
        # A function of its own: the interpreter specializes code in place, for one callable at a time.
        self._windows = FunctionType(_time_windows.__code__.replace(), _time_windows.__globals__)
        self.wall_ns: list[int] = []
        self.enqueue_ns: list[int] = []
        self.gap_ns: list[int] = []

    def take(self, samples: int, calls_per_sample: int = 1) -> None:
        """Fill the lists with new samples; what was finished before an exception is kept in them."""
        wall = np.full(samples, _NOT_DONE, dtype=np.int64)
        enqueue, gap = wall.copy(), wall.copy()
        try:
            if calls_per_sample > 1:
                wait = self.synchronize or _nothing
                self._windows(self.run, wait, self.clock, calls_per_sample, wall, enqueue, gap)
            elif self.clock is time.perf_counter_ns:
                _native.time_calls(self.run, self.synchronize, self.before, wall, enqueue, gap)
            else:
                _time_calls(self.run, self.synchronize, self.clock, self.before, wall, enqueue, gap)
        finally:
            done = samples - int((wall == _NOT_DONE).sum())
            self.wall_ns, self.gap_ns = wall[:done].tolist(), gap[:done].tolist()
            self.enqueue_ns = self.wall_ns if self.synchronize is None else enqueue[:done].tolist()


def null_call_ns(timer: CallTimer) -> float:
    """Return the median of what the timer reads for a call that does nothing, with the same clock."""
    null = CallTimer(_nothing, None if timer.synchronize is None else _nothing, timer.clock)
    null.take(_NULL_CALLS)
    null.take(_NULL_CALLS)
    return float(np.median(null.wall_ns))


def _nothing() -> None:
    pass


def _time_calls(
    run: Call,
    synchronize: Call | None,
    clock: Clock,
    before: Call | None,
    wall: Integers,
    enqueue: Integers,
    gap: Integers,
) -> None:
    last_end = clock()
    for index in range(len(wall)):
        if before is not None:
            before()
            if synchronize is not None:
                synchronize()
        begin = clock()
        run()
        returned = end = clock()
        if synchronize is not None:
            synchronize()
            end = clock()
        enqueue[index] = returned - begin
        wall[index] = end - begin
        gap[index] = begin - last_end
        last_end = end


def _time_windows(
    run: Call, synchronize: Call, clock: Clock, calls: int, wall: Integers, enqueue: Integers, gap: Integers
) -> None:
    last_end = clock()
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
        gap[index] = begin - last_end
        last_end = end


# Larger than the last level of most processors, where its size is unknown.
ASSUMED_BYTES = 64 << 20


def last_level_cache_bytes() -> int | None:
    """Return the size of the largest cache of the first processor; None where it is unknown."""
    return max((cache.bytes for cache in data_caches(usable_processors()[:1])), default=None)


def cache_flusher() -> Callable[[], None]:
    """Return a function that writes twice the last level's bytes, so that older lines have to go."""
    size = 2 * (last_level_cache_bytes() or ASSUMED_BYTES)
    buffer = np.zeros(max(size // 8, 1), dtype=np.int64)

    def flush() -> None:
        np.add(buffer, 1, out=buffer)

    return flush
