# SPDX-License-Identifier: Apache-2.0
"""Numerics of two variants' outputs: against NumPy and by hand, with the places of what is wrong."""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

import numpy as np
import pytest

from gpuprof.bench.accuracy.numerics import NotFinite, NotFiniteCount, NumericsSum, Place
from gpuprof.bench.measure.outputs import named_arrays
from gpuprof.bench.serialization import to_finite


def summed(*pairs):
    sums = NumericsSum("output")
    for pair in pairs:
        sums.add(*map(np.asarray, pair))
    return sums.result()


def test_figures_by_hand() -> None:
    found = summed(([[3.0, 4.0], [0.0, 1.0]], [[3.0, 4.5], [0.0, 1.0]]))
    assert (found.mse, found.max_abs_error, found.max_abs_place) == (0.0625, 0.5, Place(0, (1,)))
    assert (found.max_relative_error, found.max_relative_place) == (0.125, Place(0, (1,)))
    assert found.relative_l2 == pytest.approx(0.5 / np.sqrt(26))
    assert found.cosine_min == pytest.approx((9 + 18) / (5 * np.hypot(3, 4.5)))
    assert found.cosine_mean == pytest.approx((found.cosine_min + 1) / 2)
    assert (found.different, found.elements, found.samples, found.shape) == (1, 4, 2, (2,))


def test_a_place_counts_samples_over_all_batches() -> None:
    still = np.ones((3, 2, 2))
    moved = still.copy()
    moved[1, 0, 1] = 5
    found = summed((still, still), (still, moved))
    assert found.max_abs_place == Place(4, (0, 1))
    assert (found.cosine_min_sample, str(found.max_abs_place)) == (4, "sample 4 at [0, 1]")


def test_a_nan_in_one_channel_is_located_and_the_rest_is_still_compared() -> None:
    old = np.ones((4, 6, 3, 3), np.float32)
    new = old.copy()
    new[2:, 3] = np.nan
    found = summed((old, new))
    assert found.optimized_not_finite.nan == 18
    assert found.optimized_not_finite.slice == "[:, 3, :, :]"
    assert (found.optimized_not_finite.first, found.optimized_not_finite.samples) == (Place(2, (3, 0, 0)), 2)
    assert (found.baseline_not_finite.count, found.compared, found.mse) == (0, 198, 0.0)


def test_infinity_differs_from_nan_and_equal_ones_are_no_difference() -> None:
    found = summed(([np.inf, np.nan, 1.0], [np.inf, np.nan, -np.inf]))
    assert (found.different, found.baseline_not_finite.infinite, found.optimized_not_finite.infinite) == (
        1,
        1,
        2,
    )
    assert (found.optimized_not_finite.nan, found.max_abs_error) == (1, None)
    assert found.optimized_not_finite == NotFinite(1, 2, 3, Place(0, ()))


def test_scattered_places_have_no_slice() -> None:
    count = NotFiniteCount()
    values = np.zeros((1, 3, 3))
    values[0, [0, 1], [0, 2]] = np.nan
    count.add(values, np.isfinite(values), 0)
    assert count.result().slice is None


def test_whole_numbers_are_compared_exactly_also_beyond_what_a_double_holds() -> None:
    found = summed(([2**53, 7], [2**53 + 1, 7]))
    assert (found.different, found.cosine_min, found.mse, found.relative_l2) == (1, None, None, None)
    assert summed(([True, False], [True, True])).max_abs_error == 1


def test_unknown_figures_are_none() -> None:
    zeros = summed((np.zeros((2, 3)), np.ones((2, 3))))
    assert (zeros.cosine_mean, zeros.relative_l2, zeros.max_relative_error) == (None, None, None)
    assert (zeros.mse, zeros.max_abs_error) == (1.0, 1.0)
    empty = summed((np.zeros((0, 3)), np.zeros((0, 3))))
    assert (empty.samples, empty.mse, empty.max_abs_error) == (0, None, None)


def test_huge_and_tiny_numbers_and_scalars_and_complex_ones() -> None:
    assert summed(([[1e300, 1e300]], [[1e300, 1e300]])).cosine_min == pytest.approx(1)
    assert summed(([[1e-300, 0.0]], [[0.0, 1e-300]])).cosine_min == 0
    assert summed((2.0, 3.0), (2.0, 2.0)).samples == 2
    assert summed(([1 + 1j], [1 + 2j])).max_abs_place == Place(0, (1,))
    assert summed((np.float16([60000.0]), np.float16([-60000.0]))).max_abs_error == 120000


def test_a_varying_length_is_no_error_but_shapes_of_a_pair_are() -> None:
    assert summed((np.ones((1, 4)), np.ones((1, 4))), (np.ones((1, 5)), np.ones((1, 5)))).shape == (None,)
    with pytest.raises(ValueError, match="shapes differ"):
        summed((np.ones(3), np.ones(4)))


def test_big_samples_are_read_in_parts(monkeypatch) -> None:
    generator = np.random.default_rng(0)
    old, new = generator.normal(size=(2, 50, 7))
    whole = summed((old, new))
    monkeypatch.setattr("gpuprof.bench.accuracy.numerics._CHUNK_ELEMENTS", 20)
    parts = summed((old, new))
    assert parts.max_abs_place == whole.max_abs_place
    assert parts.relative_l2 == pytest.approx(whole.relative_l2, rel=1e-12)


class Pair(NamedTuple):
    scores: object
    hidden: object


@dataclasses.dataclass
class Output:
    logits: object
    cache: object = None


def test_outputs_are_named_by_keys_fields_and_places() -> None:
    one = np.ones(2, np.float16)
    nested = {"logits": one, "hidden": (one, [one, None])}
    assert list(named_arrays(nested).arrays) == ["logits", "hidden[0]", "hidden[1][0]"]
    assert list(named_arrays(Pair(one, 3.0)).arrays) == ["scores", "hidden"]
    assert list(named_arrays(one).arrays) == ["output"]
    found = named_arrays(Output(one, cache=object()))
    assert (list(found.arrays), found.skipped) == (["logits"], ("cache (object)",))
    assert found.arrays["logits"].dtype == "float16"


def test_json_gets_no_nan() -> None:
    assert json.dumps(to_finite({"a": (np.inf, [float("nan"), 1.5], "x")}), allow_nan=False) == (
        '{"a": [null, [null, 1.5], "x"]}'
    )


def test_what_the_baseline_has_too_is_not_new() -> None:
    found = summed(([np.nan, 1.0, np.inf, 2.0], [np.nan, np.nan, 3.0, 2.0]))
    assert (found.baseline_not_finite.count, found.optimized_not_finite.count) == (2, 2)
    assert found.new_not_finite == 1
