# SPDX-License-Identifier: Apache-2.0
"""Work for samplers: it ends after an amount of processor time, so other processes cannot hide it."""

from __future__ import annotations

import time

# For programs of their own process. 0.4 s are some hundred samples; one is enough on a busy machine.
BUSY = """
import time
def busy(seconds=0.4):
    total, end = 0, time.thread_time() + seconds
    while time.thread_time() < end:
        total += abs(total)
    return total
"""


def busy(seconds: float = 0.4) -> int:
    """Compute until this thread has used that much processor time."""
    total, end = 0, time.thread_time() + seconds
    while time.thread_time() < end:
        total += abs(total)
    return total
