# SPDX-License-Identifier: Apache-2.0
"""compare_outputs: planted errors are found and named, bad input is refused, models stay as they were."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from refusals import refused

pytest.importorskip("torch", reason="models of PyTorch are compared")

import torch
from accuracy_models import (
    CONVOLUTIONAL,
    PERCEPTRON,
    PLACES,
    is_same_state,
    loader,
    network,
    rounded_to_4_bits,
    state_of,
    with_nan,
    with_swapped_classes,
)

from gpuprof.bench import compare_outputs
from gpuprof.bench.facts import note
from gpuprof.errors import BenchmarkError

KINDS = pytest.mark.parametrize("kind", [CONVOLUTIONAL, PERCEPTRON])


def doubled(batch):
    return np.asarray(batch) * 2.0


# --- planted errors ------------------------------------------------------------------------------


@KINDS
def test_a_model_and_its_copy_are_the_same(kind) -> None:
    model = network(kind)
    found = compare_outputs(model, copy.deepcopy(model), loader(model, kind), reference=True)
    assert (found.findings, found.samples, found.batches) == ((), 160, 5)
    assert (found.numerics[0].different, found.numerics[0].mse) == (0, 0.0)
    assert found.tolerance[0].verdict == "within"
    assert found.classification.top1_agreement == found.classification.optimized.accuracy == 1.0


@KINDS
def test_a_layer_rounded_to_4_bits_is_beyond_what_float32_allows(kind) -> None:
    model = network(kind)
    changed = rounded_to_4_bits(model, PLACES[kind][1])
    found = compare_outputs(model, changed, loader(model, kind), reference=True)
    (tolerance,) = found.tolerance
    assert (tolerance.verdict, tolerance.optimized_dtype) == ("beyond", "float32")
    assert tolerance.optimized_error > 1_000 * tolerance.allowed
    assert found.findings[0].code == "output_beyond_tolerance"
    # As what it is, 4 bits, it is within.
    named = compare_outputs(model, changed, loader(model, kind), reference=True, optimized_dtype="int4")
    assert named.tolerance[0].verdict == "within"


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_smaller_type_is_within_and_hides_no_4_bits_of_the_head(kind, dtype) -> None:
    model = network(kind)
    small = copy.deepcopy(model).to(dtype)
    found = compare_outputs(model, small, loader(model, kind), reference=True).tolerance[0]
    assert (found.verdict, found.optimized_dtype) == ("within", str(dtype).removeprefix("torch."))
    broken = rounded_to_4_bits(model, PLACES[kind][2]).to(dtype)
    assert (
        compare_outputs(model, broken, loader(model, kind), reference=True).tolerance[0].verdict == "beyond"
    )


@KINDS
def test_a_nan_in_one_class_is_located(kind) -> None:
    model = network(kind)
    found = compare_outputs(model, with_nan(model, PLACES[kind][2], 6), loader(model, kind))
    assert found.numerics[0].optimized_not_finite.slice == "[:, 6]"
    assert found.findings[0].code == "not_finite"
    first = {"sample": 0, "index": [6]}
    where = {"nan": 160, "infinite": 0, "samples": 160, "first": first, "slice": "[:, 6]"}
    assert found.findings[0].values == {"output": "output", "found": where, "baseline_count": 0}
    assert found.classification.optimized.without_answer == 160


@KINDS
def test_two_swapped_classes_are_named(kind) -> None:
    model = network(kind)
    found = compare_outputs(
        model, with_swapped_classes(model, 3, 7), loader(model, kind), classes=[f"c{i}" for i in range(10)]
    )
    assert [(each.first, each.second) for each in found.classification.swapped] == [(3, 7)]
    assert {each.label for each in found.classification.degraded} == {3, 7}
    swapped = found.findings[0]
    assert (swapped.code, swapped.values["first"], swapped.values["second"]) == (
        "swapped_classes",
        "3 (c3)",
        "7 (c7)",
    )
    assert swapped.values["by_scores"]
    assert found.classification.change.verdict == "lower"


def test_the_table_is_readable_and_json_has_no_nan() -> None:
    model = network(PERCEPTRON)
    found = compare_outputs(model, with_nan(model, "8", 6), loader(model, PERCEPTRON), reference=True)
    assert max(map(len, str(found).splitlines())) <= 100
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["tolerance"][0]["verdict"] == "beyond"
    assert again["numerics"][0]["optimized_not_finite"]["nan"] == 160
    assert [each["text"] for each in again["findings"]] == list(map(str, found.findings))


# --- tolerance -----------------------------------------------------------------------------------


def test_what_cannot_be_judged_is_unknown_with_the_reason() -> None:
    batches = [np.linspace(1, 2, 8).reshape(4, 2)]
    single = compare_outputs(
        lambda x: (x * 2).astype(np.float32), lambda x: (x * 2).astype(np.float32), batches, reference=doubled
    )
    assert single.tolerance[0].verdict == "within"
    double = compare_outputs(doubled, doubled, batches, reference=doubled).tolerance[0]
    assert double.verdict == "unknown"
    assert double.reason == note("reference_too_coarse", reference="float64", baseline="float64")
    whole = compare_outputs(*[lambda x: x.astype(int)] * 2, batches, reference=lambda x: x.astype(int))
    assert whole.tolerance[0].reason == note("reference_without_floats")
    assert compare_outputs(doubled, doubled, batches).tolerance == ()


def test_a_function_that_rounds_inside_is_within_once_its_type_is_named() -> None:
    def small(x):
        return x.astype(np.float16).astype(np.float32) * np.float32(2)

    def single(x):
        return (x.astype(np.float32) * np.float32(2)).astype(np.float32)

    batches = [np.random.default_rng(0).normal(size=(16, 4))]
    options = {"reference": doubled}
    assert compare_outputs(single, small, batches, **options).tolerance[0].verdict == "beyond"
    named = compare_outputs(single, small, batches, optimized_dtype="fp16", **options)
    assert named.tolerance[0].verdict == "within"
    with refused(BenchmarkError, "unknown_dtype"):
        compare_outputs(single, small, batches, optimized_dtype="fp13")
    with refused(BenchmarkError, "not_a_torch_module"):
        compare_outputs(single, small, batches, reference=True)


# --- labels and bad input ------------------------------------------------------------------------

PAIRS = [(np.eye(3), np.arange(3)), (np.eye(3), np.arange(3))]


@pytest.mark.parametrize(
    ("batches", "options"),
    [
        (PAIRS, {}),
        (PAIRS, {"labels": True}),
        ([list(pair) for pair in PAIRS], {}),
        ([{"x": x, "y": y} for x, y in PAIRS], {"labels": "y"}),
        ([x for x, _ in PAIRS], {"labels": [0, 1, 2, 0, 1, 2]}),
        ([(x,) for x, _ in PAIRS], {"labels": np.tile(np.arange(3), 2)}),
        (lambda: iter(PAIRS), {}),
    ],
)
def test_labels_come_in_many_ways(batches, options) -> None:
    found = compare_outputs(lambda x: x, lambda x: x, batches, **options)
    assert (found.samples, found.classification.optimized.accuracy) == (6, 1.0)


def test_two_inputs_are_no_labels_where_labels_are_off() -> None:
    found = compare_outputs(lambda x, y: x + y[:, None], lambda x, y: x, PAIRS, labels=False)
    assert found.classification.change is None
    assert found.notes == (note("no_labels_in_batches"),)


def test_one_batch_alone_and_models_of_keywords() -> None:
    assert compare_outputs(doubled, doubled, np.ones((4, 2))).samples == 4
    assert compare_outputs(doubled, doubled, torch.ones(4, 2)).samples == 4
    found = compare_outputs(
        *[lambda left, right: {"a": left, "b": [right]}] * 2, {"left": np.ones((4, 3)), "right": np.ones(4)}
    )
    assert [each.name for each in found.numerics] == ["a", "b[0]"]


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        ([], {}, "no_samples"),
        ([np.zeros((0, 3))], {}, "no_samples"),
        (7, {}, "invalid_loader"),
        ([np.eye(3)], {"labels": True}, "no_labels"),
        ([np.eye(3)], {"labels": "y"}, "no_labels"),
        ([PAIRS[0], np.eye(3)], {}, "no_labels"),
        ([np.eye(3), PAIRS[0]], {}, "no_labels"),
        ([np.eye(3)], {"labels": [0, 1]}, "number_of_labels"),
        ([np.eye(3)], {"labels": [0, 1, 2, 0]}, "number_of_labels"),
        ([(np.eye(3), np.array([0, 1, 3]))], {}, "label_out_of_range"),
        ([(np.eye(3), np.array([0, 1]))], {"labels": True}, "number_of_labels"),
        (PAIRS, {"classes": ["cat", "dog"]}, "number_of_classes"),
        ([np.ones((4, 2, 2))], {"classes": True}, "no_scores"),
        ([np.eye(3)], {"output": "logits"}, "no_scores"),
    ],
)
def test_bad_input_is_an_error_of_one_line(batches, options, message) -> None:
    with refused(BenchmarkError, message) as raised:
        compare_outputs(lambda x: x, lambda x: x, batches, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("optimized", "message"),
    [
        (
            lambda x: x[:, :2],
            "outputs_differ",
        ),
        (lambda x: {"logits": x}, "outputs_differ"),
        (lambda x: (x, x), "outputs_differ"),
        (lambda x: 1 / 0, "model_raised"),
        (lambda x: "words", "no_outputs"),
        (int, "not_callable"),
    ],
)
def test_outputs_that_do_not_match(optimized, message) -> None:
    with refused(BenchmarkError, message):
        compare_outputs(lambda x: x, optimized, [np.eye(3)])


# --- harm ----------------------------------------------------------------------------------------


def test_models_inputs_and_random_states_stay_as_they_were() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Dropout(), torch.nn.ReLU(inplace=True))
    model.train()
    model[1].eval()
    before = state_of(model)
    inputs = torch.randn(8, 12)
    kept, torch_state, numpy_state = inputs.clone(), torch.get_rng_state(), np.random.get_state()[1].copy()

    def draws(x):
        np.random.random()
        return torch.relu_(x) + torch.rand(1)

    compare_outputs(model, draws, [inputs], reference=True)
    assert is_same_state(before, state_of(model))
    assert torch.equal(inputs, kept)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    # Both variants draw the same.
    assert compare_outputs(draws, draws, [inputs]).numerics[0].different == 0
