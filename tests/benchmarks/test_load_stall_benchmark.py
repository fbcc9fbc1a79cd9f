# SPDX-License-Identifier: Apache-2.0
"""The truth of the benchmark of a stall, against Lindley's recursion."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load_stall import RATE, SECONDS, STALL_AT, STALL_S, true_p99_s


def test_the_true_p99_is_that_of_a_queue_with_one_long_service() -> None:
    planned = np.arange(RATE * SECONDS) / RATE
    waits, free = [], 0.0
    for number, at in enumerate(planned.tolist(), 1):
        free = max(at, free) + (STALL_S if number == STALL_AT else 0.0)
        waits.append(free - at)
    assert true_p99_s() == pytest.approx(sorted(waits)[int(np.ceil(0.99 * len(waits))) - 1])
