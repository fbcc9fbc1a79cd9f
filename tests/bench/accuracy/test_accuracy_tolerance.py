# SPDX-License-Identifier: Apache-2.0
"""What error a type allows, and rounding to types."""

from __future__ import annotations

import pytest
from refusals import refused

pytest.importorskip("torch", reason="tensors are rounded")

import torch

from gpuprof.bench.accuracy.tolerance import (
    UNIT_ROUNDOFF,
    allowance,
    coarsest,
    judge,
    known_dtype,
    rounded,
    rounding_copy,
)
from gpuprof.bench.facts import note
from gpuprof.errors import BenchmarkError


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_unit_roundoffs_are_half_of_pytorchs_epsilon(name) -> None:
    assert UNIT_ROUNDOFF[name] == torch.finfo(getattr(torch, name)).eps / 2


def test_allowances_by_hand() -> None:
    # In proportion to the roundoffs: 2^-8 / 2^-24 = 65,536.
    assert allowance(1e-6, "float32", "bfloat16") == pytest.approx(4 * 1e-6 * 65_536)
    # A copy that rounds is better evidence.
    assert allowance(1e-6, "float32", "bfloat16", 0.02) == pytest.approx(4 * 0.020001)
    assert allowance(1e-6, "float32", "bfloat16", 0.0) == 4 * 2.0**-8
    # A lucky baseline forbids no other order of summation, and a more precise variant nothing less.
    assert allowance(0.0, "float32", "float32") == 4 * 8 * 2.0**-24
    assert allowance(1e-4, "float32", "float64") == pytest.approx(4e-4)


def test_verdicts_carry_their_figures() -> None:
    within = judge("x", 1e-7, 1e-6, ("float32", "float32"), "float64")
    beyond = judge("x", 1e-7, 1e-2, ("float32", "float32"), "float64")
    assert (within.verdict, beyond.verdict, beyond.allowed) == ("within", "beyond", within.allowed)
    assert judge("x", 1e-7, 1e-6, ("float32", "float32"), "float64", 3).verdict == "beyond"
    unknown = judge("x", 1e-7, 1e-6, ("float32", None), "float64")
    assert unknown.reason == note("dtype_unknown", side="optimized")
    assert judge("x", None, 1e-6, ("float32", "float32"), "float64").verdict == "unknown"


def test_names_of_types() -> None:
    assert known_dtype("torch.bfloat16", "dtype") == known_dtype("bf16", "dtype") == "bfloat16"
    assert coarsest(["float32", "float16", "int64"]) == "float16"
    assert coarsest(["int64"]) is None
    with refused(BenchmarkError, "unknown_dtype", "float64"):
        known_dtype("float7", "dtype")


def test_rounding_to_tf32_keeps_ten_bits() -> None:
    values = torch.tensor(
        [1 + 2.0**-10, 1 + 2.0**-12, 1 + 3 * 2.0**-12, -(1 + 3 * 2.0**-12), 0.0], dtype=torch.float64
    )
    expected = [1 + 2.0**-10, 1.0, 1 + 2.0**-10, -(1 + 2.0**-10), 0.0]
    assert rounded(values, "tf32").tolist() == expected


@pytest.mark.parametrize("dtype", ["tf32", "float16", "bfloat16", "int8", "int4"])
def test_no_rounding_is_off_by_more_than_the_roundoff(dtype) -> None:
    values = torch.linspace(0.5, 3, 10_001, dtype=torch.float64)
    error = (rounded(values, dtype) - values).abs()
    scale = values.abs().max() if dtype.startswith("int") else values.abs()
    assert (error <= UNIT_ROUNDOFF[dtype] * scale * (1 + 1e-9)).all()
    assert error.max() > UNIT_ROUNDOFF[dtype] / 2


def test_rounding_leaves_whole_numbers_and_zeros_and_the_model_alone() -> None:
    assert rounded(torch.zeros(3), "int8").tolist() == [0, 0, 0]
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 2)).double()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    copied = rounding_copy(model, "int4")
    assert copied(torch.tensor([1, 2])).shape == (2, 2)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert not torch.equal(copied[0].weight, model[0].weight)
