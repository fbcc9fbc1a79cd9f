# SPDX-License-Identifier: Apache-2.0
"""The truth of the benchmark of a stall: of a server without and with a time to respond."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load_stall import RATE, SECONDS, STALL_AT, STALL_S, true_p99_s

START_S = 12_345.0


@pytest.mark.parametrize("service_s", [0.0, 0.0002])
def test_the_true_p99_is_that_of_a_queue_with_one_long_service(service_s: float) -> None:
    arrived, responded, free = [], [], 0.0
    for number, due in enumerate((np.arange(RATE * SECONDS) / RATE).tolist(), 1):
        begin = max(due, free)
        free = begin + service_s + (STALL_S if number == STALL_AT else 0.0)
        # A request is read when those before it have their responses; the first came long before the plan.
        arrived.append(START_S + begin - (3.0 if number == 1 else 0.0))
        responded.append(START_S + free)
    # The 17th of those that are due from the stall on has waited 16 distances less, and 16 services more.
    expected = STALL_S - 16 / RATE + 17 * service_s
    assert true_p99_s(arrived, responded) == pytest.approx(expected)
