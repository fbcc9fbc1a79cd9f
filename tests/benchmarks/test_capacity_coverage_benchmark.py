# SPDX-License-Identifier: Apache-2.0
"""The interval of a capacity plan holds the machines of farms whose number is known."""

from __future__ import annotations

from benchmarks.capacity_coverage import simulate_farms


def test_the_interval_holds_the_machines_of_known_farms_in_simulations() -> None:
    found = simulate_farms(12, seed=5, resamples=40, requests=20_000)
    assert found.held >= 11
    assert found.exact >= 5
    assert found.mean_width < 6
