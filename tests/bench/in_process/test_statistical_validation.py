# SPDX-License-Identifier: Apache-2.0
"""Statistical validation, against SciPy and simulations."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from gpuprof.bench import StatisticalValidator
from gpuprof.errors import BenchmarkError


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_a_comparison_is_welchs_test(level: float) -> None:
    draw = np.random.default_rng(1)
    a, b = draw.normal(0.011, 0.002, 60), draw.normal(0.010, 0.001, 40)
    found = StatisticalValidator(level).validate_comparison(SimpleNamespace(latencies=list(a)), b)
    expected = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = expected.confidence_interval(level)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.confidence_interval == pytest.approx((interval.low, interval.high))
    assert found.is_significant == (expected.pvalue < 1 - level)
    pooled = np.sqrt((59 * a.var(ddof=1) + 39 * b.var(ddof=1)) / 98)
    assert found.effect_size == pytest.approx((a.mean() - b.mean()) / pooled)


@pytest.mark.parametrize(
    ("shift", "size"), [(1.5, "large"), (0.65, "medium"), (0.3, "small"), (-1.5, "large")]
)
def test_the_effect_counts_in_both_directions(shift: float, size: str) -> None:
    values = np.random.default_rng(0).normal(10, 1, 2_000)
    a = (values - values.mean()) / values.std(ddof=1) + 10
    found = StatisticalValidator().validate_comparison(a + shift, a)
    assert found.effect_size == pytest.approx(shift)
    assert found.is_significant
    assert found.recommendation.startswith(size)


def test_false_alarms_are_those_of_the_level() -> None:
    draw, validator = np.random.default_rng(2), StatisticalValidator()
    alarms = sum(
        validator.validate_comparison(draw.normal(1, 0.1, 8), draw.normal(1, 0.3, 20)).is_significant
        for _ in range(2_000)
    )
    assert scipy.stats.binomtest(alarms, 2_000, 0.05).pvalue > 1e-3


def test_equal_and_few_samples() -> None:
    validator = StatisticalValidator()
    same = validator.validate_comparison([1.0, 1.0, 1.0], [1.0, 1.0])
    assert (same.is_significant, same.effect_size) == (False, None)
    few = validator.validate_comparison([1.0], [1.0, 2.0])
    assert (few.is_significant, few.p_value, few.confidence_interval) == (False, None, (None, None))


def test_one_result_has_an_interval_and_no_p_value() -> None:
    values = np.random.default_rng(3).normal(5, 1, 200)
    found = StatisticalValidator().validate_benchmark_result(values)
    error = scipy.stats.sem(values)
    expected = scipy.stats.t.interval(0.95, 199, loc=values.mean(), scale=error)
    assert found.confidence_interval == pytest.approx(expected)
    assert found.effect_size == pytest.approx(values.std(ddof=1) / values.mean())
    assert (found.p_value, found.is_significant) == (None, True)
    few = StatisticalValidator().validate_benchmark_result(values[:50])
    assert not few.is_significant
    assert "n=50" in few.recommendation


def test_outliers_are_found_in_any_order() -> None:
    values = [1.0, 1.1, 1.2, 1.3] * 20
    plain = StatisticalValidator().validate_benchmark_result(values, min_samples=10).recommendation
    for mixed in (values + [9.0] * 12, [9.0] * 12 + values):
        found = StatisticalValidator().validate_benchmark_result(mixed, min_samples=10)
        assert found.recommendation != plain
        assert "13%" in found.recommendation


@pytest.mark.parametrize("level", [0, 1, -1, 2])
def test_levels_that_are_none(level: float) -> None:
    with pytest.raises(BenchmarkError) as raised:
        StatisticalValidator(level)
    assert raised.value.code == "invalid_confidence"


@pytest.mark.parametrize("given", [None, "fast", [1.0, float("nan")], [float("inf")]])
def test_latencies_that_are_none(given: object) -> None:
    with pytest.raises(BenchmarkError) as raised:
        StatisticalValidator().validate_benchmark_result(given)
    assert raised.value.code == "invalid_latencies"
