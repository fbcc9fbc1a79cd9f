# SPDX-License-Identifier: Apache-2.0
"""What holds for any outputs: batches make no difference, agreement has no direction, JSON can be written."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gpuprof.bench.accuracy.classes import ClassificationSum
from gpuprof.bench.accuracy.numerics import NumericsSum
from gpuprof.bench.serialization import to_finite
from gpuprof.stats.proportions import PairedCounts, change_of, mcnemar, paired_difference

ANY = st.floats(width=32)
ORDINARY = st.floats(-1e6, 1e6, width=32)
SHAPES = array_shapes(min_dims=1, max_dims=3, max_side=6)
COUNTS = st.integers(0, 400)


@st.composite
def pairs(draw, elements=ORDINARY, shapes=SHAPES):
    shape = draw(shapes)
    return tuple(draw(arrays(np.float32, shape, elements=elements)) for _ in range(2))


def result_of(name, *batches):
    sums = NumericsSum(name)
    for batch in batches:
        sums.add(*batch)
    return sums.result()


def in_batches(old, new, cut):
    return (old[:cut], new[:cut]), (old[cut:], new[cut:])


@given(pairs())
def test_figures_are_numpys(pair) -> None:
    old, new = (each.astype(np.float64) for each in pair)
    error, found = np.abs(new - old), result_of("x", pair)
    assert found.mse == pytest.approx(float(np.mean(error**2)), rel=1e-12)
    assert found.max_abs_error == error.max()
    place = (found.max_abs_place.sample, *found.max_abs_place.index)
    assert error[place] == error.max()
    known = old != 0
    expected = float((error[known] / np.abs(old[known])).max()) if known.any() else None
    assert found.max_relative_error == expected
    if known.any():
        assert found.relative_l2 == pytest.approx(np.linalg.norm(error) / np.linalg.norm(old), rel=1e-9)


@given(pairs(ANY), st.integers(0, 6))
def test_batches_make_no_difference(pair, cut) -> None:
    whole, parts = (dataclasses.asdict(result_of("x", *each)) for each in ((pair,), in_batches(*pair, cut)))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        if isinstance(value, float):
            assert parts[name] == pytest.approx(value, rel=1e-12, nan_ok=True)
        elif name != "cosine_min_sample":
            assert parts[name] == value


@given(pairs(ANY))
def test_nothing_but_json_comes_out_and_every_element_is_accounted_for(pair) -> None:
    found = result_of("x", pair)
    json.dumps(to_finite(found), allow_nan=False)
    finite = [int(np.isfinite(each).sum()) for each in pair]
    sides = (found.baseline_not_finite, found.optimized_not_finite)
    assert [found.elements - each.count for each in sides] == finite
    assert found.compared <= min(finite)
    assert found.cosine_min is None or -1 <= found.cosine_min <= found.cosine_mean + 1e-12 <= 1 + 1e-9


@given(arrays(np.float32, SHAPES, elements=ANY))
def test_a_copy_differs_nowhere(values) -> None:
    found = result_of("x", (values, values.copy()))
    assert (found.different, found.max_abs_error or 0.0, found.relative_l2 or 0.0) == (0, 0.0, 0.0)


@given(pairs(ANY, st.tuples(st.integers(1, 8), st.integers(2, 9))), st.integers(0, 8))
def test_agreement_has_no_direction_and_batches_make_no_difference(pair, cut) -> None:
    old, new = pair
    classes = old.shape[1]
    labels = np.arange(len(old)) % classes
    results = []
    for batches in (
        [(old, new, labels)],
        [(new, old, labels)],
        [
            (*each, labels[part])
            for each, part in zip(
                in_batches(old, new, cut), (slice(None, cut), slice(cut, None)), strict=True
            )
        ],
    ):
        sums = ClassificationSum("x", classes)
        for batch in batches:
            sums.add(*batch)
        results.append(sums.result(0.01))
    there, back, parts = results
    assert (there.top1_agreement, there.top5_agreement) == (back.top1_agreement, back.top5_agreement)
    assert (there.baseline, there.optimized) == (back.optimized, back.baseline)
    assert there.change.value == pytest.approx(-back.change.value)
    assert dataclasses.replace(parts, swapped=()) == dataclasses.replace(there, swapped=())
    json.dumps(to_finite(there), allow_nan=False)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_a_change_lies_in_its_interval_and_turns_with_the_sides(both, one, other, neither) -> None:
    if both + one + other + neither == 0:
        return
    counts, turned = PairedCounts(both, one, other, neither), PairedCounts(both, other, one, neither)
    low, high = paired_difference(counts)
    found = change_of(counts, 0.01)
    assert -1 <= low <= found.value + 1e-12
    assert found.value - 1e-12 <= high <= 1
    assert paired_difference(turned) == pytest.approx((-high, -low), abs=1e-12)
    assert 0 < mcnemar(one, other) <= 1
    assert math.isclose(mcnemar(one, other), mcnemar(other, one))
