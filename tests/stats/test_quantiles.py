# SPDX-License-Identifier: Apache-2.0
"""Quantiles, intervals and trends against exact arithmetic, and their coverage by simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from scipy.stats import binom as binomial

from gpuprof.stats.distributions import approximate_student_quantile, student_quantile
from gpuprof.stats.quantiles import (
    PooledSamples,
    interval_ranks,
    quantile_of,
    relative_drift,
    samples_needed,
    summarize,
    theil_sen,
)


def below(count: int, share: Fraction, ranks: range) -> Fraction:
    """Return the exact probability that the number of samples below the quantile is in `ranks`."""
    return sum(
        (math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in ranks), start=Fraction(0)
    )


@pytest.mark.parametrize(
    ("quantile", "needed"), [(0.5, 6), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995), (0.1, 29)]
)
def test_the_samples_that_a_finite_interval_needs(quantile: float, needed: int) -> None:
    assert samples_needed(quantile) == needed
    samples = np.arange(needed, dtype=np.float64)
    assert quantile_of(samples, quantile) is not None
    assert quantile_of(samples[1:], quantile) is None


@pytest.mark.parametrize("count", [6, 7, 29, 36, 100, 299, 500])
@pytest.mark.parametrize("quantile", ["1/2", "9/10", "99/100", "1/10"])
def test_ranks_cover_at_least_95_percent_exactly(count: int, quantile: str) -> None:
    share = Fraction(quantile)
    ranks = interval_ranks(count, float(share))
    if count < samples_needed(float(share)):
        assert ranks is None
        return
    assert ranks is not None
    low, high = ranks
    assert 1 <= low < high <= count
    assert below(count, share, range(low, high)) >= Fraction(95, 100)
    # With a rank less on either side it would be no 95% any more, where the tails are equal.
    if low > 1 and high < count:
        tail = Fraction(25, 1000)
        assert below(count, share, range(low)) < tail <= below(count, share, range(low + 1))


def test_ranks_are_those_of_scipys_binomial() -> None:
    for count in (40, 1_000, 30_000, 1_000_000):
        for quantile in (0.5, 0.9, 0.99):
            expected = (
                int(binomial.ppf(0.025, count, quantile)),
                int(binomial.ppf(0.975, count, quantile)) + 1,
            )
            if expected[1] <= count:
                assert interval_ranks(count, quantile) == expected


@pytest.mark.parametrize(("quantile", "count"), [(0.5, 20), (0.5, 200), (0.9, 100), (0.99, 400), (0.9, 29)])
def test_intervals_cover_the_true_quantile(quantile: float, count: int) -> None:
    generator = np.random.default_rng(20)
    true = -math.log(1 - quantile)
    repeats, covered = 2_000, 0
    for _ in range(repeats):
        found = quantile_of(generator.exponential(1.0, count), quantile)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= true <= found.high
    # Three standard errors of a count at 95%.
    assert covered / repeats >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / repeats)


def test_intervals_of_process_runs_cover_where_process_runs_differ() -> None:
    generator = np.random.default_rng(21)
    repeats, covered, alone = 300, 0, 0
    for _ in range(repeats):
        runs = [generator.lognormal(0, 0.02, 200) * math.exp(generator.normal(0, 0.02)) for _ in range(10)]
        found = PooledSamples(runs).quantile(0.5)
        assert found is not None
        covered += (found.low or 0) <= 1.0 <= (found.high or math.inf)
        naive = quantile_of(np.concatenate(runs), 0.5)
        assert naive is not None
        alone += (naive.low or 0) <= 1.0 <= (naive.high or math.inf)
    assert covered / repeats >= 0.92
    # Taking the samples for independent is what goes wrong.
    assert alone / repeats < 0.4


def test_two_process_runs_that_differ_bound_next_to_nothing() -> None:
    found = PooledSamples([np.full(100, 1.0), np.full(100, 1.2)]).quantile(0.5)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    # Student's t for one degree of freedom is 12.7.
    assert math.log(found.high / found.value) == pytest.approx(12.706 * math.log(1.2) / 2, rel=1e-3)
    assert found.value / found.low == pytest.approx(found.high / found.value)


def test_process_runs_too_short_for_a_quantile_of_their_own_still_count_as_process_runs() -> None:
    generator = np.random.default_rng(24)
    repeats, covered = 300, 0
    for _ in range(repeats):
        runs = [generator.exponential(1.0, 40) for _ in range(10)]
        found = PooledSamples(runs).quantile(0.99)
        assert found is not None
        covered += (found.low or 0) <= -math.log(0.01) <= (found.high or math.inf)
    assert covered / repeats >= 0.93


def test_an_interval_without_meaningful_ends_is_not_reported() -> None:
    found = PooledSamples([np.full(100, 1.0), np.full(100, 2.0)]).quantile(0.5)
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(1.5)


def test_process_runs_that_are_alike_have_the_interval_of_their_samples_at_least() -> None:
    samples = np.linspace(1, 2, 400)
    found = PooledSamples([samples[::2], samples[1::2]]).quantile(0.5)
    alone = quantile_of(samples, 0.5)
    assert found is not None
    assert alone is not None
    assert found.value == pytest.approx(alone.value, rel=1e-12)
    assert (found.low or 0) <= (alone.low or 0)
    assert (found.high or math.inf) >= (alone.high or 0)


def test_a_process_run_without_samples_is_no_process_run() -> None:
    samples = np.linspace(1, 2, 100)
    assert PooledSamples([samples, np.zeros(0)]).quantile(0.5) == quantile_of(samples, 0.5)
    assert PooledSamples([]).quantile(0.5) is None


def test_a_process_run_of_many_samples_weighs_no_more_than_one_of_few() -> None:
    long, short = np.linspace(1.0, 1.1, 3_000), np.linspace(3.0, 3.1, 300)
    pooled = PooledSamples([long, short])
    summary = pooled.summary()
    assert summary is not None
    assert summary.mean == pytest.approx((1.05 + 3.05) / 2)
    assert (summary.minimum, summary.maximum, summary.count) == (1.0, 3.1, 3_300)
    assert pooled.value(0.25) == pytest.approx(1.05, abs=0.01)
    assert pooled.value(0.75) == pytest.approx(3.05, abs=0.01)
    mean = pooled.mean()
    assert mean is not None
    assert (mean.low, mean.high) == (None, None)  # of two process runs, a factor of 3 apart
    # Twice the harmonic mean of the lengths.
    assert pooled.count == 1_090


def test_process_runs_of_one_length_are_pooled_as_they_are() -> None:
    generator = np.random.default_rng(3)
    runs = [generator.random(40) + 1 for _ in range(3)]
    pooled, together = PooledSamples(runs), np.concatenate(runs)
    assert pooled.count == 120
    for share in (0.01, 0.5, 0.9, 0.99):
        assert pooled.value(share) == pytest.approx(float(np.quantile(together, share)), rel=1e-12)
    summary, plain = pooled.summary(), summarize(together)
    assert summary is not None
    assert plain is not None
    assert (summary.mean, summary.std) == (pytest.approx(plain.mean), pytest.approx(plain.std))


@pytest.mark.parametrize("quantile", [0, 1, -0.1, 99])
def test_a_quantile_is_between_0_and_1(quantile: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_of(np.ones(10), quantile)


def test_summary() -> None:
    figures = summarize(np.array([1.0, 2.0, 3.0, 10.0]))
    assert figures is not None
    assert (figures.count, figures.mean, figures.minimum, figures.maximum) == (4, 4.0, 1.0, 10.0)
    assert (figures.median, figures.first_quartile, figures.third_quartile) == (2.5, 1.75, 4.75)
    assert figures.std == pytest.approx(math.sqrt(50 / 3))
    assert figures.relative_iqr == pytest.approx(3.0 / 2.5)
    assert summarize(np.zeros(0)) is None
    alone = summarize(np.array([2.0]))
    assert alone is not None
    assert alone.std is None


def test_theil_sen_is_the_median_slope_and_its_interval_covers() -> None:
    generator = np.random.default_rng(22)
    places = np.arange(30.0)
    repeats, covered = 300, 0
    for _ in range(repeats):
        values = 0.3 * places + generator.normal(0, 2, len(places))
        found = theil_sen(places, values)
        assert found is not None
        covered += found.low <= 0.3 <= found.high
    slopes = [(values[j] - values[i]) / (j - i) for i in range(30) for j in range(i + 1, 30)]
    assert found.value == pytest.approx(float(np.median(slopes)))
    assert 0.91 <= covered / repeats <= 0.98
    assert theil_sen(places[:3], values[:3]) is None


def test_drift_is_the_relative_rise_of_the_time() -> None:
    found = relative_drift(np.linspace(0.95, 1.05, 5_000))
    assert found is not None
    assert found.value == pytest.approx(0.1, rel=0.02)
    assert found.low > 0
    still = relative_drift(np.random.default_rng(23).normal(1, 0.01, 5_000))
    assert still is not None
    assert abs(still.value) < 0.002


@pytest.mark.parametrize("count", [4, 5, 6, 8, 12, 30])
def test_at_most_one_in_twenty_series_without_a_trend_drifts(count: int) -> None:
    generator = np.random.default_rng(140 + count)
    repeats, alarms = 400, 0
    for _ in range(repeats):
        found = relative_drift(generator.lognormal(0, 0.05, count))
        alarms += found is not None and (found.low > 0 or found.high < 0)
    # 20 are expected; more than 30 have a probability of 1 in 100.
    assert alarms <= 30
    if count == 4:
        assert alarms == 0  # too few samples


def test_a_drift_is_found_in_few_samples() -> None:
    found = relative_drift(np.array([1.0, 1.1, 1.2, 1.3, 1.4]))
    assert found is not None
    assert found.low > 0


@pytest.mark.parametrize("level", [0.05, 0.1, 0.32])
@pytest.mark.parametrize("freedom", [4, 5, 11, 100, 10_000])
def test_the_expansion_of_students_quantile(level: float, freedom: int) -> None:
    exact = float(student_quantile(level, freedom))
    assert approximate_student_quantile(level, freedom) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_theil_sen_is_that_of_scipy_with_ties_and_without(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(5, 60))
    places = np.sort(generator.integers(0, count, count)).astype(float) if seed % 2 else np.arange(count) / 7
    values = generator.integers(0, 5, count).astype(float) if seed % 3 else generator.normal(size=count)
    found = theil_sen(places, values, 0.9)
    expected = scipy.stats.theilslopes(values, places, alpha=0.9)
    assert found is not None
    assert [found.low, found.value, found.high] == pytest.approx(
        [expected.low_slope, expected.slope, expected.high_slope], abs=1e-12
    )
