# SPDX-License-Identifier: Apache-2.0
"""Predictions of two variants: by hand, in exact arithmetic, and against published figures."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench.accuracy.classes import ClassificationSum
from gpuprof.bench.serialization import to_finite
from gpuprof.errors import BenchmarkError
from gpuprof.stats.proportions import PairedCounts, change_of, mcnemar, paired_difference, wilson


def scores_of(predictions, classes, size=1.0):
    """Return scores whose largest are at `predictions`, the rest falling with the number of the class."""
    scores = np.tile(-np.arange(classes) * 0.01, (len(predictions), 1))
    scores[np.arange(len(predictions)), predictions] = size
    return scores


def compared(old, new, labels=None, classes=3, margin=0.01, **options):
    sums = ClassificationSum("logits", classes, **options)
    sums.add(scores_of(old, classes), scores_of(new, classes), None if labels is None else np.array(labels))
    return sums.result(margin)


def test_figures_by_hand() -> None:
    labels, old, new = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 0, 1]
    found = compared(old, new, labels)
    assert (found.top1_agreement, found.top5_agreement) == (3 / 6, None)
    assert (found.baseline.accuracy, found.optimized.accuracy) == (5 / 6, 2 / 6)
    first, second, third = found.per_class
    assert (first.accuracy, first.precision) == ((2 / 3, 1 / 3), (1.0, 1 / 2))
    assert (second.precision, second.f1) == ((2 / 3, 1 / 4), (2 * 2 / 5, 2 * 1 / 6))
    # Never predicted: no precision of its own, and 0 in the mean of the classes.
    assert (third.precision, third.becomes, third.count) == ((1.0, None), (1, 1), 1)
    assert found.optimized.precision == pytest.approx((1 / 2 + 1 / 4 + 0) / 3)
    assert found.optimized.recall == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)
    assert found.baseline.f1 == pytest.approx((4 / 5 + 4 / 5 + 1) / 3)


def test_without_labels_there_is_agreement_only() -> None:
    found = compared([0, 1, 2], [0, 1, 1])
    assert found.top1_agreement == pytest.approx(2 / 3)
    assert (found.change, found.per_class, found.baseline.accuracy, found.baseline.f1) == (
        None,
        (),
        None,
        None,
    )


def test_top_5_by_hand_and_not_below_six_classes() -> None:
    old, new = np.array([[9.0, 8, 7, 6, 5, 4, 3]]), np.array([[9.0, 8, 7, 6, 3, 4, 5]])
    sums = ClassificationSum("logits", 7)
    sums.add(old, new, np.array([4]))
    found = sums.result(0.01)
    assert found.top5_agreement == pytest.approx(4 / 5)
    assert (found.baseline.top5_accuracy, found.optimized.top5_accuracy) == (1.0, 0.0)
    assert compared([0], [0], [0], classes=5).baseline.top5_accuracy is None
    assert compared([0], [0], [0], classes=6).baseline.top5_accuracy == 1.0


def test_a_nan_is_no_prediction() -> None:
    new = scores_of([0, 1], 6)
    new[0, 3] = np.nan
    sums = ClassificationSum("logits", 6)
    sums.add(scores_of([0, 1], 6), new, np.array([0, 1]))
    found = sums.result(0.01)
    assert (found.top1_agreement, found.top5_agreement, found.optimized.without_answer) == (0.5, 0.5, 1)
    assert (found.baseline.accuracy, found.optimized.accuracy, found.optimized.top5_accuracy) == (
        1.0,
        0.5,
        0.5,
    )


def test_the_class_that_degrades_is_found_among_those_that_vary_by_chance() -> None:
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(20), 50)
    old = np.where(generator.random(1000) < 0.9, labels, (labels + 1) % 20)
    new = np.where(generator.random(1000) < 0.9, labels, (labels + 1) % 20)
    new[(labels == 7) & (generator.random(1000) < 0.5)] = 3
    found = compared(old, new, labels, classes=20)
    assert [each.label for each in found.degraded] == [7]
    assert found.degraded[0].becomes[0] == 3
    assert found.change.verdict in ("lower", "inconclusive")


def test_two_classes_that_exchange_their_predictions_are_named() -> None:
    old = [0, 1, 2, 3, 4, 5, 1, 4, 1]
    new = [0, 4, 2, 3, 1, 5, 4, 1, 1]
    (pair,) = compared(old, new, classes=6).swapped
    assert (pair.first, pair.second, pair.first_moved, pair.first_count) == (1, 4, 2, 3)
    assert (pair.second_moved, pair.second_count) == (2, 2)
    assert compared(old, old, classes=6).swapped == ()
    # One way only is no exchange.
    assert compared([0, 0, 1, 1], [1, 1, 1, 1]).swapped == ()


def test_exchanged_scores_are_found_where_no_sample_is_of_these_classes() -> None:
    generator = np.random.default_rng(2)
    old = generator.normal(size=(40, 8))
    old[:, 0] += 20
    new = old + generator.normal(0, 0.05, old.shape)
    sums = ClassificationSum("logits", 8)
    sums.add(old, new[:, [0, 1, 5, 3, 4, 2, 6, 7]])
    (pair,) = sums.result(0.01).swapped
    assert (pair.first, pair.second, pair.first_count, pair.by_scores) == (2, 5, 0, True)


def test_noise_and_other_temperatures_swap_nothing() -> None:
    generator = np.random.default_rng(3)
    old = generator.normal(size=(200, 12))
    for new in (old * 3, old + generator.normal(0, 0.5, old.shape), generator.normal(size=(200, 12))):
        sums = ClassificationSum("logits", 12)
        sums.add(old, new)
        assert sums.result(0.01).swapped == ()


def test_labels_that_are_no_classes() -> None:
    with refused(BenchmarkError, "label_out_of_range", "3", "logits", "2"):
        compared([0, 1], [0, 1], [0, 3])
    with refused(BenchmarkError, "label_out_of_range", "-1"):
        compared([0], [0], [-1])


def test_json_and_names() -> None:
    found = compared([0, 1], [0, 2], [0, 1], names=("cat", "dog", "fox"))
    assert json.loads(json.dumps(to_finite(found), allow_nan=False))["per_class"][1]["becomes"] == [2, 1]
    assert found.name_of(1) == "1 (dog)"


# --- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (5, 5), (2, 12), (30, 11), (3_000, 3_200), (900, 1)])
def test_mcnemar_is_the_exact_binomial_test(counts) -> None:
    count, smaller = sum(counts), min(counts)
    tail = Fraction(sum(math.comb(count, each) for each in range(smaller + 1)), 2**count)
    assert mcnemar(*counts) == pytest.approx(float(min(1, 2 * tail)), rel=1e-9)


@pytest.mark.parametrize(("right", "count"), [(0, 10), (10, 10), (1, 3), (81, 263)])
def test_a_fraction_at_an_end_of_wilsons_interval_is_z_errors_away(right, count) -> None:
    z = NormalDist().inv_cdf(0.975)
    for end in wilson(right, count):
        if 0 < end < 1:
            assert abs(right / count - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count))


def test_newcombes_published_interval() -> None:
    # His table of paired examples: 36, 12, 2, 0 of 50, by method 10: 0.0569 to 0.3404.
    assert paired_difference(PairedCounts(36, 2, 12, 0)) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    low, high = paired_difference(PairedCounts(36, 12, 2, 0))
    assert (low, high) == pytest.approx((-0.3404, -0.0569), abs=5e-5)


def test_the_interval_of_a_paired_difference_has_its_stated_coverage() -> None:
    generator = np.random.default_rng(4)
    for shares in ((0.85, 0.06, 0.03, 0.06), (0.6, 0.1, 0.1, 0.2), (0.97, 0.02, 0.0, 0.01)):
        truth = shares[2] - shares[1]
        ends = [
            paired_difference(PairedCounts(*draw))
            for draw in generator.multinomial(300, shares, 600).tolist()
        ]
        assert 0.925 <= np.mean([low <= truth <= high for low, high in ends]) <= 0.995


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((900, 50, 0, 50), "lower"),
        ((900, 0, 50, 50), "higher"),
        ((9_000, 10, 9, 981), "same"),
        ((90, 2, 1, 7), "inconclusive"),
        ((10, 0, 0, 0), "inconclusive"),
    ],
)
def test_verdicts_of_accuracy(counts, verdict) -> None:
    assert change_of(PairedCounts(*counts), 0.01).verdict == verdict
