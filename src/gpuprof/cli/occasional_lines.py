# SPDX-License-Identifier: Apache-2.0
"""Progress without a terminal: an occasional line, so that a log shows that the command still runs."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_S, EVERY_S = 20.0, 10.0


class OccasionalLines:
    """Writes at most one line every 10 s, and none in the first 20 s."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_s = clock() + FIRST_S

    def add(self, line: str) -> None:
        """Write the line if the last one, or the start, was long enough ago."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._write(line)
