# SPDX-License-Identifier: Apache-2.0
"""Recipes on small real models, on a CPU: what each promises of outputs, layers, zeros and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from wrapped_models import wrap_model

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import FRAMEWORKS, make_system, with_recipe
from gpuprof.bench.models.recipes import RECIPES, RecipeChoice, batch_sizes, parse_recipe
from gpuprof.bench.serialization import decode, encode, to_plain
from gpuprof.errors import BenchmarkError, UnavailableError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"


@pytest.fixture(autouse=True)
def fast_path() -> Iterator[None]:
    """Put back what quantizing a transformer switches off for its process."""
    was = torch.backends.mha.get_fastpath_enabled()
    yield
    torch.backends.mha.set_fastpath_enabled(was)


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Branching(nn.Module):
    """What cannot be traced, since its way depends on its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, batch: Any) -> Any:
        return self.layer(batch) if float(batch.sum()) > -1e9 else batch


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "convolutional": (convolutional, (3, 12, 12)),
    "perceptron": (perceptron, (64,)),
    "encoder": (encoder, (5, 32)),
    "branching": (Branching, (64,)),
}


def made(network: str, recipe: str | None) -> Any:
    """Return the system of a network, loaded, with the same weights each time."""
    torch.manual_seed(1)
    factory, shape = NETWORKS[network]
    spec = SystemSpec(network, "pytorch", input_shape=shape, device="cpu")
    system = wrap_model(factory(), spec if recipe is None else with_recipe(spec, recipe))
    system.load()
    return system


def outputs_of(system: Any, size: int = 4) -> Any:
    system.prepare(size)
    outputs = system.first_inference()
    return np.asarray(outputs[0] if isinstance(outputs, list) else outputs.detach().float())


def error(network: str, recipe: str) -> float:
    expected, found = (outputs_of(made(network, each)) for each in (None, recipe))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def kinds(system: Any) -> list[str]:
    return [f"{type(each).__module__}.{type(each).__name__}" for each in system.counted.modules()]


def quantized(system: Any) -> int:
    names = [each for each in kinds(system) if ".quantized" in each]
    return sum(each.endswith(("Linear", "LinearReLU", "Conv2d", "ConvReLU2d")) for each in names)


@pytest.mark.parametrize("network", ["perceptron", "encoder", "branching"])
def test_dynamic_int8_replaces_linear_layers(network: str) -> None:
    plain, system = made(network, None), made(network, "int8-dynamic")
    assert 1e-4 < error(network, "int8-dynamic") < 0.03
    told = system.describe()
    # Attention reads its output projection without calling it: that one stays in floats.
    of = {"perceptron": (2, 2), "encoder": (4, 6), "branching": (1, 1)}[network]
    assert (quantized(system), told.details["quantized_layers"]) == (of[0], f"{of[0]} of {of[1]}")
    assert told.details["technique"] == "dynamic INT8"
    assert told.parameters == plain.describe().parameters
    assert told.model_bytes < plain.describe().model_bytes


@pytest.mark.parametrize("network", NETWORKS)
def test_static_int8_is_calibrated_and_close(network: str) -> None:
    plain, system = made(network, None), made(network, "int8-static")
    assert 1e-4 < error(network, "int8-static") < 0.08
    told = system.describe()
    how, of = {
        "convolutional": ("whole graph", (2, 2)),
        "perceptron": ("whole graph", (2, 2)),
        "encoder": ("each layer", (4, 6)),
        "branching": ("each layer", (1, 1)),
    }[network]
    assert (told.details["quantized_by"], told.details["calibration"]) == (how, "64 synthetic samples")
    assert (quantized(system), told.details["quantized_layers"]) == (of[0], f"{of[0]} of {of[1]}")
    assert told.model_bytes < plain.describe().model_bytes


def test_norms_keep_a_graph_from_being_quantized_as_a_whole() -> None:
    torch.manual_seed(1)
    system = wrap_model(
        nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
        with_recipe(SystemSpec("normed", "pytorch", input_shape=(8,), device="cpu"), "int8-static"),
    )
    system.load()
    assert system.details["quantized_by"] == "layers, batch norms folded in"
    assert system.details["quantized_layers"] == "2 of 2"


def test_packed_weights_are_counted_byte_by_byte() -> None:
    system = made("branching", "int8-dynamic")
    # 640 weights of a byte, 10 scales and 10 zero points of 8 bytes, 10 biases of 4; then the scale and the
    # zero point of the output, which this layer has and does not use.
    assert system.describe().model_bytes == 640 + 10 * 16 + 40 + 4 + 8
    recurrent = wrap_model(
        nn.LSTM(8, 16, batch_first=True),
        with_recipe(SystemSpec("lstm", "pytorch", input_shape=(6, 8), device="cpu"), "int8-dynamic"),
    )
    recurrent.load()
    assert recurrent.details["quantized_layers"] == "1 of 1"
    weights, biases = 64 * 8 + 64 * 16, 2 * 64 * 4
    assert weights + biases <= recurrent.describe().model_bytes < 4 * weights


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_pruning_makes_the_asked_share_zero_in_each_layer(network: str, share: float) -> None:
    plain, system = made(network, None), made(network, f"pruned:{share}")
    weights = {name: each.detach() for name, each in system.counted.named_parameters()}
    for name, old in plain.counted.state_dict().items():
        if name not in weights:
            continue
        new = weights[name]
        if old.ndim < 2:
            assert torch.equal(old, new)
            continue
        assert int((new == 0).sum()) == round(share * old.numel())
        kept = new != 0
        assert torch.equal(old[kept], new[kept])
        assert float(old[~kept].abs().max()) <= float(old[kept].abs().min())
    told = float(system.describe().details["zeros"].split("%")[0])
    assert told == pytest.approx(100 * share, abs=0.1)
    assert system.describe().model_bytes == plain.describe().model_bytes


def test_zeros_stay_zero_when_they_are_quantized() -> None:
    system = made("perceptron", "pruned-int8:0.7:32")
    shares = [
        float((each.weight().int_repr() == 0).float().mean())
        for each in system.counted.modules()
        if hasattr(type(each), "_weight_bias") and hasattr(each, "weight")
    ]
    assert len(shares) == 2
    assert min(shares) >= 0.699
    details = system.describe().details
    assert (details["recipe"], details["calibration"]) == ("pruned-int8:0.7:32", "32 synthetic samples")
    assert details["technique"] == "static INT8, magnitude pruning 70%"


def test_calibration_takes_other_data_and_leaves_the_measured_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "calibration.npz", inputs=np.full((3, 64), 9, dtype=np.float32))
    np.savez(tmp_path / "measured.npz", inputs=np.arange(5 * 64, dtype=np.float32).reshape(5, 64))
    spec = SystemSpec("net", "pytorch", input_shape=(64,), device="cpu", data=str(tmp_path / "measured.npz"))
    recipe = f"int8-static:3:{tmp_path / 'calibration.npz'}"
    torch.manual_seed(1)
    system = wrap_model(perceptron(), with_recipe(spec, recipe))
    system.load()
    assert system.details["calibration"] == f"3 samples of {tmp_path / 'calibration.npz'}"
    system.prepare(2)
    assert float(system.arguments[0][0, 1]) == 1
    usual = wrap_model(perceptron(), with_recipe(spec, "int8-static:5"))
    usual.load()
    usual.prepare(1)
    assert float(usual.arguments[0][0, 1]) == 1


@pytest.mark.parametrize(
    ("recipe", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_types_reach_the_weights(recipe: str, dtype: str) -> None:
    system = made("perceptron", recipe)
    assert {str(each.dtype) for each in system.counted.parameters()} == {f"torch.{dtype}"}
    assert system.describe().dtype == dtype
    assert error("perceptron", recipe) < {"fp32": 1e-9, "bf16": 0.02, "fp16": 0.002}[recipe]


@pytest.mark.parametrize(("recipe", "dtype"), [("autocast-bf16", "bfloat16"), ("autocast-fp16", "float16")])
def test_autocast_computes_in_a_short_type_and_keeps_weights(recipe: str, dtype: str) -> None:
    plain, system = made("perceptron", None), made("perceptron", recipe)
    assert {str(each.dtype) for each in system.counted.parameters()} == {"torch.float32"}
    assert kinds(system) == kinds(plain)
    with torch.autocast("cpu", dtype=getattr(torch, dtype)), torch.inference_mode():
        plain.prepare(4)
        expected = plain.model(*plain.arguments)
    np.testing.assert_array_equal(outputs_of(system), np.asarray(expected.float()))
    assert (system.computes_in(), system.dtype) == (dtype, "float32")
    with pytest.raises(BenchmarkError):
        with_recipe(SystemSpec("net", dtype="float16"), recipe)


def test_quantized_modules_go_through_the_other_forms_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is played, since a real one takes half a minute."""
    monkeypatch.setattr(torch, "compile", lambda module, dynamic: module)
    torch.manual_seed(1)
    spec = SystemSpec("net", input_shape=(64,), device="cpu")
    for framework in ("torchscript", "torch-compile"):
        asked = with_recipe(SystemSpec(**{**to_plain(spec), "framework": framework}), "int8-dynamic")
        torch.manual_seed(1)
        system = wrap_model(perceptron(), asked)
        system.load()
        np.testing.assert_allclose(
            outputs_of(system), outputs_of(made("perceptron", "int8-dynamic")), atol=1e-6
        )
        assert system.describe().details["quantized_layers"] == "2 of 2"


@pytest.mark.needs("onnx", "onnxruntime", "onnxscript")
def test_onnx_recipes_export_and_quantize() -> None:
    found = {}
    for recipe in ("onnx", "onnx-int8:16", "pruned"):
        spec = SystemSpec(f"{MODELS}:network", "onnxruntime", input_shape=(16,), device="cpu")
        system = make_system(with_recipe(spec, recipe))
        system.load()
        found[recipe] = outputs_of(system), system.describe(), system.computes_in()
        system.close()
    plain = made_network()
    np.testing.assert_allclose(found["onnx"][0], plain, rtol=1e-4, atol=1e-5)
    assert 1e-4 < np.linalg.norm(found["onnx-int8:16"][0] - plain) / np.linalg.norm(plain) < 0.2
    assert not np.allclose(found["pruned"][0], plain, atol=1e-3)
    assert found["onnx-int8:16"][1].details["quantized_layers"] == "2 of 2"
    assert found["pruned"][1].details["exported_zeros"] == "50.00% of 160 weights of its layers"
    assert [each[2] for each in found.values()] == [None, "int8", None]


def made_network() -> Any:
    system = make_system(SystemSpec(f"{MODELS}:network", "pytorch", input_shape=(16,), device="cpu"))
    system.load()
    return outputs_of(system)


def test_factories_have_the_seed_s_weights() -> None:
    """Variants of several processes are of one model only if their random weights are the same."""
    np.testing.assert_array_equal(made_network(), made_network())
    other = make_system(SystemSpec(f"{MODELS}:network", "pytorch", input_shape=(16,), seed=2, device="cpu"))
    other.load()
    assert not np.allclose(outputs_of(other), made_network())


# --- names, options, refusals --------------------------------------------------------------------


def test_each_recipe_names_what_is_there() -> None:
    assert set(RECIPES) == {
        "fp32", "bf16", "fp16", "autocast-bf16", "autocast-fp16", "compile", "int8-dynamic", "int8-static",
        "pruned", "pruned-int8", "onnx", "onnx-int8", "tensorrt",
    }  # fmt: skip
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert set(recipe.frameworks) <= set(FRAMEWORKS)
        spec = with_recipe(SystemSpec("resnet50"), name)
        assert (spec.recipe, spec.framework) == (name, (*recipe.frameworks, "auto")[0])
        assert with_recipe(spec, name) == spec
        assert decode(encode(spec), SystemSpec) == spec


@pytest.mark.parametrize(
    ("text", "share", "samples", "data"),
    [
        ("pruned", 0.5, 64, None),
        ("pruned:0.25", 0.25, 64, None),
        ("int8-static:128", 0.5, 128, None),
        ("int8-static:data/train", 0.5, 64, "data/train"),
        ("pruned-int8:0.9:16:c:/x.npz", 0.9, 16, "c:/x.npz"),
    ],
)
def test_options_follow_the_name(text: str, share: float, samples: int, data: str | None) -> None:
    assert parse_recipe(text) == RecipeChoice(RECIPES[text.partition(":")[0]], share, samples, data)


def test_calibrations_make_batches_of_as_many_samples_as_asked() -> None:
    assert batch_sizes(20, 16, is_fixed=False) == [16, 4]
    assert batch_sizes(20, 8, is_fixed=True) == [8, 8, 8]
    assert batch_sizes(32, 16, is_fixed=True) == [16, 16]


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("int8_dynamic", "unknown_recipe", ["'int8_dynamic'", "int8-dynamic"]),
        ("zzz", "unknown_recipe", ["'zzz'", "fp32"]),
        ("pruned:1.5", "unknown_recipe_option", ["pruned:1.5", "'1.5'"]),
        ("pruned:0.5:7", "unknown_recipe_option", ["'7'"]),
        ("int8-static:0", "unknown_recipe_option", ["'0'"]),
        ("pruned-int8:8:0.5", "unknown_recipe_option", ["'0.5'"]),
        ("bf16:2", "unknown_recipe_option", ["bf16", "'2'"]),
    ],
)
def test_wrong_recipes_are_one_line(text: str, code: str, values: list[str]) -> None:
    with refused(BenchmarkError, code, *values):
        parse_recipe(text)


@pytest.mark.parametrize(
    ("spec", "recipe", "line"),
    [
        ({"framework": "jax"}, "int8-dynamic", "recipe_framework"),
        ({"dtype": "float16"}, "int8-static", "recipe_dtype"),
        ({"dtype": "float16"}, "bf16", "recipe_dtype"),
    ],
)
def test_a_recipe_does_not_override_what_was_asked(spec: dict[str, Any], recipe: str, line: str) -> None:
    with refused(BenchmarkError, line):
        with_recipe(SystemSpec("resnet50", **spec), recipe)


def test_models_that_do_not_fit_a_recipe_are_refused_with_their_name(tmp_path: Path) -> None:
    def load(module: Any, recipe: str) -> None:
        spec = SystemSpec("net", "pytorch", input_shape=(8,), device="cpu")
        wrap_model(module, with_recipe(spec, recipe)).load()

    with refused(
        BenchmarkError, "nothing_to_quantize", "--recipe", "int8-dynamic", "net", "Conv1d", "1", "int8-static"
    ):
        load(nn.Conv1d(1, 1, 1), "int8-dynamic")
    with refused(BenchmarkError, "nothing_to_quantize", "--recipe", "pruned", "net"):
        load(nn.LayerNorm(8), "pruned")
    with refused(BenchmarkError, "cannot_quantize", "--recipe", "int8-static", "net"):
        load(nn.LayerNorm(8), "int8-static")
    with refused(BenchmarkError, "unsupported_dtype", "float64"):
        load(nn.Linear(8, 4).double(), "int8-dynamic")
    program = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(8, 4).eval(), (torch.zeros(2, 8),)), program)
    spec = with_recipe(SystemSpec(str(program), "torch-export", trust_pickle=True), "pruned")
    with refused(BenchmarkError, "recipe_of_program", "pruned", "model.pt2"):
        make_system(spec).load()


def test_quantized_layers_are_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: a GPU is played."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    spec = with_recipe(SystemSpec("net", "pytorch", input_shape=(8,)), "int8-dynamic")
    with refused(UnavailableError, "quantized_on_cpu_only", "auto", "cuda"):
        wrap_model(nn.Linear(8, 4), spec).load()


def test_builds_without_kernels_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprof.bench.frameworks import recipe_changes as quantization

    monkeypatch.setitem(__import__("sys").modules, "torch.ao.quantization", None)
    with refused(UnavailableError, "no_quantization"):
        quantization.torch_quantization()
    spec = SystemSpec("net", "pytorch", input_shape=(8,), device="cpu")
    with refused(UnavailableError, "no_quantization", "--recipe", "int8-static", "net"):
        wrap_model(nn.Linear(8, 4), with_recipe(spec, "int8-static")).load()
