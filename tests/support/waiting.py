# SPDX-License-Identifier: Apache-2.0
"""Waits for a condition, as long as a busy machine may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LONGEST_S = 120.0
T = TypeVar("T")


def wait_until(
    look: Callable[[], T], tolerated: tuple[type[Exception], ...] = (), *, pause_s: float = 0.005
) -> T:
    """Return what `look` returns once it is true; an exception of `tolerated` means not yet.

    Fails after LONGEST_S.
    """
    end_s = time.monotonic() + LONGEST_S
    raised: Exception | None = None
    while True:
        try:
            if found := look():
                return found
            raised = None
        except tolerated as error:
            raised = error
        if time.monotonic() >= end_s:
            raise AssertionError(f"not true within {LONGEST_S} s") from raised
        time.sleep(pause_s)
