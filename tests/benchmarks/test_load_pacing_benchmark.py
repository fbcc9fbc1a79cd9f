# SPDX-License-Identifier: Apache-2.0
"""The pacing benchmark in short: its distance is that of SciPy, and each pacer starts no request early."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load_pacing import PACERS, distance_from_exponential
from gpuprof.load.schedules import RateSchedule


def test_the_distance_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    starts = np.cumsum(np.random.default_rng(1).gamma(0.5, 1e6, 500)).astype(np.int64)
    gaps = np.diff(starts)
    expected = stats.kstest(gaps, "expon", args=(0, gaps.mean())).statistic
    assert distance_from_exponential(starts) == pytest.approx(expected)


@pytest.mark.parametrize("name", PACERS)
def test_no_pacer_is_early(name: str) -> None:
    plan = RateSchedule(1000.0, 0.05).arrivals_ns(np.random.default_rng(0))
    late = PACERS[name](plan)
    assert len(late) == 50
    assert (late >= 0).all()
