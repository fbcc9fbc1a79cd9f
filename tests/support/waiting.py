# SPDX-License-Identifier: Apache-2.0
"""Waits for a condition, as long as a busy machine may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LONGEST_S = 120.0
_PAUSE_S = 0.005
T = TypeVar("T")


def wait_until(look: Callable[[], T]) -> T:
    """Return what `look` returns once it is true. Fails after LONGEST_S."""
    end_s = time.monotonic() + LONGEST_S
    while not (found := look()):
        assert time.monotonic() < end_s, f"not true within {LONGEST_S} s"
        time.sleep(_PAUSE_S)
    return found
