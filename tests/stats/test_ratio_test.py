# SPDX-License-Identifier: Apache-2.0
"""Verdicts: false alarms and power by simulation with fixed seeds, effect sizes against known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.ratio_test import (
    bootstrap_ratio,
    cliffs_delta,
    compare,
    compare_many,
    hedges_g,
    launches_needed,
    log_ratio,
    required_runs,
)
from gpuprof.stats.significance import plain_means, welch

DIFFERENT = ("slower", "faster")


def runs(
    generator: np.random.Generator, count: int, median: float = 1.0, variation: float = 0.01
) -> list[float]:
    return list(median * generator.lognormal(0, variation, count))


def test_of_100_comparisons_of_the_same_at_most_7_differ() -> None:
    generator = np.random.default_rng(30)
    pairs = [(runs(generator, 10), runs(generator, 10)) for _ in range(100)]
    assert sum(compare(*pair, margin=0).verdict in DIFFERENT for pair in pairs) <= 7
    # With a practical margin, as by default, next to none.
    assert sum(compare(*pair).verdict in DIFFERENT for pair in pairs) <= 1


def test_process_runs_have_the_nominal_rate_of_false_alarms_and_iterations_far_more() -> None:
    generator = np.random.default_rng(31)
    repeats, by_run, by_iteration = 2_000, 0, 0
    for _ in range(repeats):
        old, new = np.array(runs(generator, 10)), np.array(runs(generator, 10))
        found = log_ratio(old, new)
        assert found is not None
        by_run += found.p_value <= 0.05
        # The iterations of one process run of each, taken as independent.
        inside = log_ratio(
            old[0] * generator.lognormal(0, 0.01, 300), new[0] * generator.lognormal(0, 0.01, 300)
        )
        assert inside is not None
        by_iteration += inside.p_value <= 0.05
    assert 0.035 <= by_run / repeats <= 0.065
    assert by_iteration / repeats > 0.7


def test_two_percent_more_is_found_with_10_process_runs_each() -> None:
    generator = np.random.default_rng(32)
    repeats = 100
    pairs = [(runs(generator, 10), runs(generator, 10, 1.02)) for _ in range(repeats)]
    assert sum(compare(*pair, margin=0).verdict == "slower" for pair in pairs) >= 0.93 * repeats
    swapped = [compare(new, old, margin=0).verdict for old, new in pairs[:20]]
    assert swapped.count("faster") >= 18


def test_same_needs_both_one_sided_tests() -> None:
    generator = np.random.default_rng(33)
    alike = compare(runs(generator, 20, variation=0.002), runs(generator, 20, variation=0.002))
    assert alike.verdict == "same"
    assert alike.same_p_value is not None
    assert alike.same_p_value <= 0.05
    noisy = compare(runs(generator, 5, variation=0.05), runs(generator, 5, variation=0.05))
    assert noisy.verdict == "inconclusive"
    # No margin, no sameness: "not significant" is not "equal".
    assert compare([1.0, 1.001, 0.999], [1.0, 1.001, 0.999], margin=0).verdict == "inconclusive"


def test_at_the_edge_of_the_margin_one_of_twenty_is_called_the_same() -> None:
    generator = np.random.default_rng(34)
    repeats, said = 1_000, 0
    for _ in range(repeats):
        found = log_ratio(np.array(runs(generator, 10)), np.array(runs(generator, 10, 1.03)))
        assert found is not None
        said += found.same_p_value(0.03) <= 0.05
    assert 0.03 <= said / repeats <= 0.07


def test_a_difference_inside_the_margin_is_not_slower() -> None:
    old = [1.0, 1.0001, 0.9999, 1.0, 1.0001]
    new = [1.005 * value for value in old]
    assert compare(old, new, margin=0.01).verdict == "same"
    assert compare(old, new, margin=0.001).verdict == "slower"
    assert compare(new, old, margin=0.001).verdict == "faster"


def test_one_process_run_is_inconclusive() -> None:
    found = compare([1.0], [2.0])
    assert (found.verdict, found.reason) == ("inconclusive", "too_few_runs")
    assert (found.low, found.high, found.p_value, found.hedges_g) == (None, None, None, None)
    assert found.ratio == pytest.approx(2.0)


def test_many_metrics_at_once_make_no_more_false_alarms() -> None:
    generator = np.random.default_rng(35)
    alarms = 0
    for _ in range(20):
        metrics = {str(each): (runs(generator, 10), runs(generator, 10)) for each in range(8)}
        alarms += any(found.verdict in DIFFERENT for found in compare_many(metrics, margin=0).values())
    # Each of 8 metrics alone at 5% would raise one in 34 of 100 rounds.
    assert alarms <= 3
    mixed = compare_many(
        {
            "slow": (runs(generator, 10), runs(generator, 10, 1.2)),
            "like": ([1.0, 1.1, 0.9], [1.0, 1.1, 0.9]),
        }
    )
    assert mixed["slow"].verdict == "slower"
    assert mixed["like"].verdict == "inconclusive"
    assert compare_many({}) == {}


def test_the_ratio_and_its_inverse_agree() -> None:
    generator = np.random.default_rng(36)
    old, new = runs(generator, 8), runs(generator, 12, 1.05)
    there, back = compare(old, new), compare(new, old)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / (back.high or math.nan))


def test_bootstrap_covers() -> None:
    generator = np.random.default_rng(38)
    covered = 0
    for seed in range(300):
        low, _, high = bootstrap_ratio(
            np.array(runs(generator, 15)), np.array(runs(generator, 15)), seed=seed, resamples=1_000
        )
        assert low is not None
        assert high is not None
        covered += low <= 1.0 <= high
    assert covered >= 270


def test_effect_sizes() -> None:
    old, new = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    # Three pooled deviations, times 1 - 3 / 15.
    assert hedges_g(old, new) == pytest.approx(3 * 0.8)
    assert cliffs_delta(old, new) == 1.0
    assert cliffs_delta(new, old) == -1.0
    assert cliffs_delta(old, old) == 0.0
    assert hedges_g(np.ones(3), np.ones(3)) is None


@pytest.mark.parametrize("comparisons", [1, 4, 12, 35])
@pytest.mark.parametrize("deviations", [0.5, 1.0, 2.0, 4.0])
def test_the_power_of_many_comparisons_is_that_of_the_noncentral_t_distribution(
    comparisons: int, deviations: float
) -> None:
    level = 0.05 / comparisons
    runs = launches_needed(0.01, math.expm1(0.01 * deviations), level=level)

    def power(runs: int) -> float:
        critical = scipy.stats.t.isf(level / 2, 2 * runs - 2)
        return float(scipy.stats.nct.sf(critical, 2 * runs - 2, deviations * math.sqrt(runs / 2)))

    assert power(runs) >= 0.8
    assert runs >= 100 or power(runs - 1) < 0.8


@pytest.mark.parametrize(("variation", "change", "needed"), [(0.01, 0.02, 6), (0.02, 0.01, 65)])
def test_process_runs_that_a_change_needs(variation: float, change: float, needed: int) -> None:
    assert launches_needed(variation, change) == needed


def found_slower(runs: int, repeats: int = 2_000) -> float:
    """Return how often +2% is found where process runs vary by 1%, with the practical margin of 1%."""
    generator = np.random.default_rng(31)
    old, new = generator.normal(0, 0.01, (2, repeats, runs))
    found = welch(plain_means(new + math.log(1.02)), plain_means(old))
    half = student_quantile(0.05, found.freedom) * found.error
    return float(np.mean(found.difference - half > math.log(1.01)))


def test_the_practical_margin_costs_process_runs() -> None:
    needed = launches_needed(0.01, 0.02, margin=0.01)
    assert needed == 18
    assert 0.45 < found_slower(10) < 0.62
    assert 0.77 < found_slower(needed) < 0.87
    with pytest.raises(ValueError, match="within the margin"):
        launches_needed(0.01, 0.01, margin=0.01)


@pytest.mark.parametrize(
    ("old", "new", "margin"),
    [([], [1.0], 0.01), ([1.0], [-1.0], 0.01), ([1.0], [math.nan], 0.01), ([1], [1], -1)],
)
def test_what_is_no_time_is_refused(old: list[float], new: list[float], margin: float) -> None:
    with pytest.raises(ValueError, match=r"process run|margin"):
        compare(old, new, margin=margin)


def test_process_runs_without_variation_differ_exactly() -> None:
    assert compare([1.0, 1.0, 1.0], [1.1, 1.1, 1.1]).verdict == "slower"
    assert compare([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]).verdict == "same"


def test_two_process_runs_that_differ_beyond_measure_have_an_interval_all_the_same() -> None:
    found = compare([1e-9, 1e9], [1e-9, 1e9])
    assert found.verdict == "inconclusive"
    assert found.high is not None
    assert math.isfinite(found.high)


@pytest.mark.parametrize(
    ("variation", "margin", "needed"), [(0.01, 0.01, 19), (0.02, 0.01, 71), (0.0, 0.01, 1)]
)
def test_process_runs_for_a_conclusive_comparison(variation: float, margin: float, needed: int) -> None:
    assert required_runs(variation, margin) == needed
    assert required_runs(variation, 0.0) is None


def test_the_required_number_of_process_runs_has_the_stated_power() -> None:
    generator = np.random.default_rng(39)
    needed = required_runs(0.01, 0.01)
    assert needed is not None
    said = 0
    for _ in range(300):
        found = log_ratio(np.array(runs(generator, needed)), np.array(runs(generator, needed)))
        assert found is not None
        said += found.same_p_value(0.01) <= 0.05
    assert 0.72 <= said / 300 <= 0.88
