# SPDX-License-Identifier: Apache-2.0
"""What holds for figures of any samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.bench.measure.diagnostics import modes_of, sample_warnings
from gpuprof.stats.quantiles import interval_ranks, quantile_of, samples_needed, summarize
from gpuprof.stats.ratio_test import bootstrap_ratio, cliffs_delta, compare

TIMES = st.floats(1e-7, 1e3, allow_nan=False)
SAMPLES = st.lists(TIMES, min_size=1, max_size=400).map(np.array)
LONG = st.lists(TIMES, min_size=30, max_size=400).map(np.array)
MIDDLE = st.floats(0.1, 0.9)
SHARES = st.floats(0.01, 0.999)
RUNS = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=12)


@given(SAMPLES, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter_for_quantiles(samples, share, random) -> None:
    shuffled = samples.tolist()
    random.shuffle(shuffled)
    assert quantile_of(np.array(shuffled), share) == quantile_of(samples, share)


@given(SAMPLES, SHARES)
def test_an_interval_holds_its_value_and_lies_within_the_samples(samples, share) -> None:
    found = quantile_of(samples, share)
    assert (found is None) == (len(samples) < samples_needed(share))
    if found is not None:
        assert samples.min() <= found.low <= found.value <= found.high <= samples.max()


@given(LONG, MIDDLE, MIDDLE)
def test_quantiles_are_monotone(samples, one, other) -> None:
    low, high = sorted((one, other))
    first, second = quantile_of(samples, low), quantile_of(samples, high)
    assert first.value <= second.value or math.isclose(first.value, second.value)


@given(st.integers(1, 5_000), SHARES)
def test_more_samples_need_no_wider_ranks(count, share) -> None:
    ranks = interval_ranks(count, share)
    assert (ranks is None) == (count < samples_needed(share))
    if ranks is not None:
        assert 1 <= ranks[0] < ranks[1] <= count


@given(LONG, MIDDLE, st.sampled_from([0.5, 2.0, 1024.0]))
def test_another_unit_scales_every_figure(samples, share, factor) -> None:
    found, scaled = quantile_of(samples, share), quantile_of(samples * factor, share)
    assert scaled.value == found.value * factor
    assert (scaled.low, scaled.high) == (found.low * factor, found.high * factor)


@given(SAMPLES)
def test_summaries_and_flags_of_anything(samples) -> None:
    figures = summarize(samples)
    assert figures is not None
    assert (
        figures.minimum
        <= figures.first_quartile
        <= figures.median
        <= figures.third_quartile
        <= figures.maximum
    )
    assert figures.count == len(samples)
    for flag in sample_warnings(samples):
        assert str(flag)
        assert "\n" not in str(flag)
    peaks = modes_of(samples)
    assert peaks is None or peaks[0] < peaks[1]


@settings(max_examples=40)
@given(RUNS, RUNS)
def test_a_comparison_and_its_mirror_agree(old, new) -> None:
    there, back = compare(old, new), compare(new, old)
    mirror = {"slower": "faster", "faster": "slower"}
    assert back.verdict == mirror.get(there.verdict, there.verdict)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low <= there.ratio * (1 + 1e-12)
    assert there.ratio <= there.high * (1 + 1e-12)
    assert cliffs_delta(np.array(old), np.array(new)) == -cliffs_delta(np.array(new), np.array(old))


@given(RUNS, RUNS)
def test_a_bootstrap_interval_holds_its_value(old, new) -> None:
    low, value, high = bootstrap_ratio(np.array(old), np.array(new), resamples=200)
    assert low is None or low <= value <= high
