# SPDX-License-Identifier: Apache-2.0
"""Sweeps of systems that follow the scalability law, and what their data do not show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from refusals import refused

from gpuprof.errors import BenchmarkError
from gpuprof.load.sweep import ConcurrencyRun, fit_law, sweep_of

GAIN, CONTENTION, COHERENCY = 1_000.0, 0.03, 0.0005
PEAK = math.sqrt((1 - CONTENTION) / COHERENCY)  # 44


def throughput(level: float) -> float:
    return GAIN * level / (1 + CONTENTION * (level - 1) + COHERENCY * level * (level - 1))


def runs(levels: Sequence[int], noise: float = 0.0, seed: int = 0, repeats: int = 3) -> list[ConcurrencyRun]:
    generator = np.random.default_rng(seed)
    rates = [(each, throughput(each) * math.exp(generator.normal(0, noise))) for each in levels * repeats]
    return [ConcurrencyRun(level, rate, level / rate) for level, rate in rates]


def test_a_law_without_noise_is_found() -> None:
    law = fit_law(runs([1, 2, 4, 8, 16, 32]))
    assert law is not None
    assert (law.gain, law.contention, law.coherency) == pytest.approx((GAIN, CONTENTION, COHERENCY), rel=1e-3)
    assert law.peak == pytest.approx(PEAK, rel=1e-3)
    assert law.throughput(48) == pytest.approx(throughput(48), rel=1e-3)


def test_nothing_is_stated_beyond_twice_the_data() -> None:
    law = fit_law(runs([1, 2, 3, 4, 6, 8], noise=0.02))
    assert law is not None
    assert law.peak_high is None
    beyond = law.throughput(17)
    assert not isinstance(beyond, float)
    assert (beyond.code, beyond.values["most"]) == ("far_extrapolation", 8.0)
    assert isinstance(law.throughput(16), float)


def test_a_throughput_that_only_falls_has_its_peak_at_one() -> None:
    law = fit_law([ConcurrencyRun(level, 100 / level, level**2 / 100) for level in (1, 2, 4, 8)])
    assert law is not None
    assert (law.peak_low, law.peak) == (1, 1)


@pytest.mark.slow
def test_the_interval_of_the_peak_holds_it_in_simulations() -> None:
    held = 0
    for seed in range(8):
        law = fit_law(runs([1, 2, 4, 8, 16, 32, 64], noise=0.02, seed=seed))
        assert law is not None
        assert law.peak_low is not None
        held += law.peak_low <= PEAK <= (law.peak_high or math.inf)
    assert held >= 6


def test_the_saturation_point_of_a_sweep() -> None:
    found = sweep_of(runs([1, 2, 4, 8, 16, 32, 64], repeats=1))
    best = throughput(32)
    assert found.saturation == min(each for each in (16, 32) if throughput(each) >= 0.9 * best)
    still_growing = sweep_of(runs([1, 2, 4], repeats=1))
    assert (still_growing.saturation, still_growing.law) == (None, None)


def test_littles_law_shows_lost_requests() -> None:
    good, lost = ConcurrencyRun(4, 100.0, 0.04), ConcurrencyRun(8, 100.0, 0.04)
    assert sweep_of([good, lost]).inconsistent == (lost,)


def test_runs_that_are_none_are_refused() -> None:
    for bad in ([], [ConcurrencyRun(0, 1.0, 1.0)], [ConcurrencyRun(1, 0.0, 1.0)]):
        with refused(BenchmarkError, "invalid_sweep"):
            sweep_of(bad)
