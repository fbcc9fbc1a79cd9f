# SPDX-License-Identifier: Apache-2.0
"""compare_layers: the layer that diverges is named, and not those that inherit its error."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
from refusals import refused

pytest.importorskip("torch", reason="layers of PyTorch models are compared")

import torch
from accuracy_models import (
    CONVOLUTIONAL,
    PERCEPTRON,
    PLACES,
    is_same_state,
    network,
    rounded_to_4_bits,
    state_of,
    with_nan,
    with_swapped_classes,
)
from torch import nn

from gpuprof.bench import compare_layers
from gpuprof.bench.facts import note
from gpuprof.errors import BenchmarkError

KINDS = pytest.mark.parametrize("kind", [CONVOLUTIONAL, PERCEPTRON])


def inputs_of(kind):
    return torch.randn(4, *PLACES[kind][0], generator=torch.Generator().manual_seed(2))


def verdicts(found):
    return {each.path: each.verdict for each in found.layers}


@KINDS
def test_a_copy_diverges_nowhere(kind) -> None:
    model = network(kind)
    found = compare_layers(model, copy.deepcopy(model), inputs_of(kind))
    assert (found.first, found.worst, found.nan, found.findings) == (None, (), None, ())
    assert len(found.layers) == len(model) + 1
    assert {each.local_error for each in found.layers} == {0.0}
    assert "no layer diverges" in str(found)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_layer_rounded_to_4_bits_is_the_first_and_only_one(kind, dtype) -> None:
    model, path = network(kind), PLACES[kind][1]
    found = compare_layers(model, rounded_to_4_bits(model, path).to(dtype), inputs_of(kind))
    assert found.first.path == path
    assert [each.path for each in found.worst] == [path]
    assert 0.01 < found.first.local_error < 0.3
    # What comes after has inherited the error and does not diverge itself.
    behind = found.layers[-2]
    assert behind.verdict == "within"
    assert behind.accumulated_error > 0.01
    first = next(each for each in found.findings if each.code == "first_divergence")
    assert first.values["layer"]["path"] == path
    assert path in str(found)


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_type_diverges_nowhere(kind, dtype) -> None:
    model = network(kind)
    found = compare_layers(model, copy.deepcopy(model).to(dtype), inputs_of(kind))
    assert found.first is None
    assert found.layers[0].dtype == str(dtype).removeprefix("torch.")


@KINDS
def test_the_first_nan_is_named_with_its_channel(kind) -> None:
    model, path = network(kind), PLACES[kind][1]
    found = compare_layers(model, with_nan(model, path, 5), inputs_of(kind))
    assert (found.nan.path, found.nan.parameters, found.baseline_nan) == (path, ("weight",), None)
    assert found.nan.found.slice.startswith("[:, 5")
    assert found.first.path == path
    (finding,) = (each for each in found.findings if each.code == "first_nan")
    assert finding.values["origin"]["path"] == path


@KINDS
def test_swapped_classes_are_the_heads_error(kind) -> None:
    model = network(kind)
    found = compare_layers(model, with_swapped_classes(model, 3, 7), inputs_of(kind))
    assert [each.path for each in found.worst] == [PLACES[kind][2]]


def test_overflow_in_float16_is_where_it_begins() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Softmax(-1))
    with torch.no_grad():
        model[1].weight.fill_(5e4)
        model[0].weight.copy_(torch.eye(4) * 10)
    found = compare_layers(model, copy.deepcopy(model).half(), torch.ones(2, 4))
    assert (found.infinite.path, found.nan.path) == ("1", "2")
    assert (found.baseline_infinite, found.baseline_nan) == (None, None)


# --- models that are built otherwise -------------------------------------------------------------


def fused(model):
    """Return a copy with the first batch norm folded into its convolution."""
    changed = copy.deepcopy(model)
    changed[0][0] = torch.nn.utils.fuse_conv_bn_eval(changed[0][0], changed[0][1])
    changed[0][1] = nn.Identity()
    return changed


def test_fused_layers_compensate_each_other() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    block[1].running_mean.uniform_(-1, 1)
    block[1].running_var.uniform_(0.5, 2)
    model = nn.Sequential(block, nn.ReLU()).eval()
    found = compare_layers(model, fused(model), torch.randn(2, 3, 8, 8))
    assert verdicts(found) == {
        "0.0": "compensated",
        "0.1": "compensated",
        "0": "within",
        "1": "within",
        "(model)": "within",
    }
    assert found.first is None
    reason = found.layers[0].reason
    assert (reason.code, reason.values["layer"]) == ("compensated", "0")
    assert found.layers[1].optimized_type == "Identity"


class Residual(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 4), scale

    def forward(self, x):
        return x + self.scale * self.inner(x)


def test_an_error_between_layers_is_that_of_the_module_around_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Residual(), Residual())
    changed = copy.deepcopy(model)
    changed[1].scale = 0.9
    found = compare_layers(model, changed, torch.randn(3, 4))
    assert (found.first.path, [each.path for each in found.worst]) == ("1", ["1"])
    assert verdicts(found)["1.inner"] == "within"


def test_layers_of_one_side_and_layers_that_fail_are_reported() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model.unused = nn.Linear(1, 1)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    changed = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    changed.unused = nn.Linear(1, 1)
    changed[0] = nn.Sequential(nn.Flatten(0), nn.Linear(12, 12), nn.Unflatten(0, (3, 4)))
    changed.forward = lambda x: changed[2](changed[1](changed[0](x)))
    found = compare_layers(model, changed, torch.randn(3, 4))
    assert found.only_optimized == ("0.0", "0.1", "0.2", "2.0", "2.1")
    assert found.not_called == ("unused",)
    failing = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5), nn.Linear(4, 2))
    failing.forward = lambda x: failing[2](failing[0](x))
    found = compare_layers(model, failing, torch.randn(3, 4), tolerance=100.0)
    assert verdicts(found)["1"] == "unknown"
    (failed,) = (each.reason for each in found.layers if each.path == "1")
    assert failed.code == "layer_failed"
    assert failed.values["reason"].startswith("RuntimeError")


def test_a_layer_that_is_called_twice_has_two_rows() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(inplace=True), shared)
    found = compare_layers(model, copy.deepcopy(model), torch.randn(2, 4))
    assert [(each.path, each.ordinal) for each in found.layers] == [
        ("0", 0),
        ("1", 0),
        ("0", 1),
        ("(model)", 0),
    ]
    assert [each.accumulated_error for each in found.layers] == [0.0] * 4


def test_a_model_may_be_compared_with_itself_and_share_layers() -> None:
    model = network(PERCEPTRON)
    assert compare_layers(model, model, inputs_of(PERCEPTRON)).first is None
    half_shared = nn.Sequential(*model[:-1], copy.deepcopy(model[-1]))
    assert len(compare_layers(model, half_shared, inputs_of(PERCEPTRON)).layers) == 10


def test_a_compiled_model_is_looked_into() -> None:
    model = network(PERCEPTRON)
    compiled = torch.compile(rounded_to_4_bits(model, "4"), backend="eager")
    found = compare_layers(model, compiled, inputs_of(PERCEPTRON))
    assert found.first.path == "4"
    assert found.notes == (note("compiled_code_left_out"),)


# --- harm ----------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Changes a buffer in every call, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls = self.calls + 1
        return nn.functional.dropout(x, training=True)


@pytest.mark.parametrize("fails", [False, True])
def test_models_and_random_states_stay_as_they_were(fails) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), Counting(), nn.ReLU(inplace=True), nn.Linear(4, 2))
    model.train()
    model[3].eval()
    changed = copy.deepcopy(model)
    states, inputs = [state_of(each) for each in (model, changed)], torch.randn(3, 4)
    random_state, kept = torch.get_rng_state(), inputs.clone()
    if fails:
        with refused(BenchmarkError, "model_raised", "optimized", "RuntimeError"):
            compare_layers(model, changed, torch.randn(3, 5, generator=torch.Generator()))
    else:
        assert compare_layers(model, changed, inputs).layers[1].accumulated_error == 0
    assert all(map(is_same_state, states, [state_of(each) for each in (model, changed)]))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(inputs, kept)


def test_gradients_flow_afterwards() -> None:
    model = network(PERCEPTRON)
    compare_layers(model, copy.deepcopy(model), inputs_of(PERCEPTRON))
    model(inputs_of(PERCEPTRON)).sum().backward()
    assert all(each.grad is not None for each in model.parameters())


# --- reading -------------------------------------------------------------------------------------


def test_without_a_reference_and_with_a_tolerance_of_ones_own() -> None:
    model = network(PERCEPTRON)
    changed = rounded_to_4_bits(model, "4")
    assert compare_layers(model, changed, inputs_of(PERCEPTRON), reference=False).first.path == "4"
    assert compare_layers(model, changed, inputs_of(PERCEPTRON), tolerance=0.5).first is None


def test_the_table_is_readable_and_json_has_no_nan() -> None:
    model = network(CONVOLUTIONAL)
    found = compare_layers(model, with_nan(model, "6", 5), inputs_of(CONVOLUTIONAL))
    assert max(map(len, str(found).splitlines())) <= 100
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["first"]["path"] == "6"


def test_what_is_no_module_is_refused() -> None:
    with refused(BenchmarkError, "not_a_torch_module", "optimized"):
        compare_layers(nn.ReLU(), len, torch.ones(1))


def test_a_program_of_torchscript_is_one_error() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        program = torch.jit.trace(module, torch.zeros(2, 4))
    for models in ((module, program), (program, module)):
        with pytest.raises(BenchmarkError) as raised:
            compare_layers(*models, torch.zeros(2, 4))
        assert raised.value.code == "no_layers_in_script"
