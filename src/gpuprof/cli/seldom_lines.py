# SPDX-License-Identifier: Apache-2.0
"""Progress where no terminal shows a bar: a plain line now and then, so that a log shows that it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_S, EVERY_S = 20.0, 10.0


class SeldomLines:
    """Hands on what is told, at most every 10 s. What ends within 20 s says nothing."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_s = clock() + FIRST_S

    def tell(self, line: str) -> None:
        """Write the line if the last one, or the beginning, was long enough ago."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._write(line)
