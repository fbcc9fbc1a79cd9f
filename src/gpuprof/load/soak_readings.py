# SPDX-License-Identifier: Apache-2.0
"""What the meters of a soak test read, in memory that is taken before the first cycle.

Otherwise the test would find its own memory: a few objects a cycle are many where a cycle has few requests.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuprof.load.leaks import MemoryLevels, Meter, read_memory
from gpuprof.load.throttling import ThrottleCause, ThrottleMeters, ThrottleReading

_UNAVAILABLE = -1
_METERS, _CAUSES = tuple(Meter), tuple(ThrottleCause)


class SoakReadings:
    """Readings of at most `most` moments; memory is read where the target is in this process."""

    def __init__(self, most: int, *, has_memory: bool) -> None:
        self._throttling = ThrottleMeters()
        self._has_memory = has_memory
        self._count = 0
        # Filled, since untouched pages take memory later.
        self._requests = np.full(most, 0, np.int64)
        self._memory = np.full((most, len(_METERS)), _UNAVAILABLE, np.int64)
        self._times_ns = np.full(most, 0, np.int64)
        self._lost_ns = np.full((most, len(_CAUSES)), _UNAVAILABLE, np.int64)
        self._clocks_mhz = np.full(most, np.nan)

    def read(self, requests: int) -> None:
        """Read all meters now, after so many requests."""
        at = self._count
        self._requests[at] = requests
        if self._has_memory:
            levels = read_memory(requests).values
            self._memory[at] = [_known(levels.get(meter)) for meter in _METERS]
        throttling = self._throttling.read()
        self._times_ns[at] = throttling.at_ns
        self._lost_ns[at] = [_known(throttling.lost_ns.get(cause)) for cause in _CAUSES]
        if throttling.clock_mhz is not None:
            self._clocks_mhz[at] = throttling.clock_mhz
        self._count += 1

    def memory(self) -> Iterator[MemoryLevels]:
        """Yield what memory meters read; the first reading is before the first request."""
        for requests, values in zip(self._requests, self._memory[: self._count].tolist(), strict=False):
            levels = zip(_METERS, values, strict=True)
            yield MemoryLevels(int(requests), {meter: _value(each) for meter, each in levels})

    def throttling(self) -> Iterator[ThrottleReading]:
        """Yield what the counters of throttling were."""
        for at in range(self._count):
            lost = zip(_CAUSES, self._lost_ns[at].tolist(), strict=True)
            clock = float(self._clocks_mhz[at])
            yield ThrottleReading(
                int(self._times_ns[at]),
                {cause: _value(each) for cause, each in lost},
                None if np.isnan(clock) else clock,
            )


def _known(value: int | None) -> int:
    return _UNAVAILABLE if value is None else value


def _value(stored: int) -> int | None:
    return None if stored == _UNAVAILABLE else stored
