# SPDX-License-Identifier: Apache-2.0
"""Changes of a PyTorch module by a recipe, made in the worker process: pruning, and quantization on CPUs.

`torch.ao.quantization` is deprecated and is used until its successor, the package torchao, covers it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gpuprof.bench.failures import named, reason_of
from gpuprof.bench.measure.outputs import named_arrays
from gpuprof.bench.models.recipes import RecipeChoice
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

Batches = Sequence[tuple[Any, ...]]
MakeBatches = Callable[[], Batches]
Details = dict[str, str]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_FOLDED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.ReLU)
_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)  # with weights to multiply by


@dataclass(slots=True)
class Changed:
    """A changed module, how many parameters it had before, and its description."""

    module: Any
    parameters: int
    details: Details = field(default_factory=dict)


def change_module(module: Any, choice: RecipeChoice, model: str, batches: MakeBatches) -> Changed:
    """Apply a recipe's changes. `batches` makes what static quantization calibrates with.

    Raises BenchmarkError that names the recipe and the model.
    """
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in module.parameters()):
        raise BenchmarkError(
            "lazy_model",
            f"--recipe {choice.recipe.name}: {model} has lazy layers, whose weights have no shape yet",
            hint="call the model once in its factory",
        )
    changed = Changed(module.eval(), sum(int(each.numel()) for each in module.parameters()))
    try:
        with warnings.catch_warnings():
            # PyTorch announces the end of what this builds on at each call.
            warnings.simplefilter("ignore")
            for change in choice.recipe.changes:
                changed.module, details = _CHANGES[change](changed.module, choice, batches)
                changed.details |= details
    except GpuprofError as error:
        raise named(error, f"--recipe {choice.recipe.name}: {model}") from error
    except Exception as error:
        raise BenchmarkError(
            "recipe_failed",
            f"--recipe {choice.recipe.name}: {model} cannot be changed ({reason_of(error)})",
            hint="use another recipe",
        ) from error
    return changed


def prune(module: Any, share: float) -> tuple[Any, Details]:
    """Set the smallest weights of each layer to 0, in place. Raises BenchmarkError where there are none."""
    zeros = total = 0
    with torch.no_grad():
        for weight in _weights(module):
            flat = weight.view(-1) if weight.is_contiguous() else weight.flatten()
            count = round(share * flat.numel())
            if count:
                flat[flat.abs().topk(count, largest=False, sorted=False).indices] = 0
                weight.copy_(flat.view(weight.shape))
            zeros += int((weight == 0).sum())
            total += weight.numel()
    if not total:
        raise BenchmarkError(
            "nothing_to_quantize",
            "no convolution, linear, attention or recurrent layer is in it",
            hint="omit the recipe",
        )
    return module, {"zeros": f"{zeros / total:.2%} of {total:,} weights of its layers"}


def autocast(module: Any, dtype: str) -> tuple[Any, Details]:
    """Let the calls of a module choose the type of each operator, as `torch.autocast` does.

    The module stays itself, so that its layers keep their names.
    """
    forward = module.forward

    @functools.wraps(forward)
    def in_autocast(*arguments: Any, **named: Any) -> Any:
        device = next((each.device.type for each in module.parameters()), "cpu")
        with torch.autocast(device, dtype=getattr(torch, dtype)):
            return forward(*arguments, **named)

    module.forward = in_autocast
    return module, {}


def _weights(module: Any) -> Iterator[Any]:
    """Yield the weights of convolutions, linear, attention and recurrent layers, each once."""
    seen: set[int] = set()
    for layer in module.modules():
        for name, weight in layer.named_parameters(recurse=False):
            if _is_pruned(layer, name) and weight.is_floating_point() and id(weight) not in seen:
                seen.add(id(weight))
                yield weight


def _is_pruned(layer: Any, name: str) -> bool:
    if isinstance(layer, nn.MultiheadAttention):
        return name.endswith("proj_weight")
    if isinstance(layer, nn.RNNBase):
        return name.startswith("weight_")
    return name == "weight" and isinstance(layer, _LAYERS)


# --- quantization --------------------------------------------------------------------------------


def torch_quantization() -> Any:
    """Import `torch.ao.quantization` and check its kernels. Raises UnavailableError."""
    try:
        found = importlib.import_module("torch.ao.quantization")
    except ImportError as error:
        raise UnavailableError(
            "no_quantization",
            f"PyTorch {torch.__version__} has no torch.ao.quantization",
            hint="pip install 'torch<2.14', or use onnx-int8",
        ) from error
    if _engine() == "none":
        raise UnavailableError(
            "no_quantized_kernels",
            "this build of PyTorch has no kernels for quantized layers on this processor",
            hint="use onnx-int8",
        )
    return found


def _engine() -> str:
    return str(torch.backends.quantized.engine)


def quantize_dynamic(module: Any) -> tuple[Any, Details]:
    """Replace linear and recurrent layers by ones that quantize their inputs at each call.

    Raises BenchmarkError where the module has none.
    """
    _refuse_other_types(module)
    quantization = torch_quantization()
    total, kinds = _layer_count(module), _kinds(module)
    usual = quantization.default_dynamic_qconfig
    # A scale for each channel of the weights; the kernels for ARM take one a layer.
    linear = usual if _engine() == "qnnpack" else quantization.per_channel_dynamic_qconfig
    wanted = {nn.Linear: linear, nn.LSTM: usual, nn.GRU: usual}
    # In a container, since a layer is replaced in what holds it.
    holder = nn.Sequential(module)
    quantization.quantize_dynamic(holder, wanted, dtype=torch.qint8, inplace=True)
    quantized = holder[0]
    count = _quantized_count(quantized)
    if not count:
        hint = "use int8-static" if "Conv" in kinds else "omit the recipe"
        raise BenchmarkError(
            "nothing_to_quantize", f"no Linear, LSTM or GRU layer is in it (it has {kinds})", hint=f"{hint}"
        )
    return quantized, {"quantized_layers": f"{count} of {total}", **without_fast_path(quantized)}


def quantize_static(module: Any, batches: Batches) -> tuple[Any, Details]:
    """Quantize convolutions and linear layers with scales that the batches give.

    The whole graph where it can be traced and holds no layer norms, else the layers with their batch norms
    folded in, else each layer by itself. Raises BenchmarkError where none of it works.
    """
    _refuse_other_types(module)
    quantization = torch_quantization()
    total = _layer_count(module)
    failures = []
    for how, way in _WAYS.items():
        try:
            # A traced module prints where it failed; another way may do.
            with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
                quantized = way(quantization, copy.deepcopy(module), batches)
                details = without_fast_path(quantized)
                for batch in (batches[0], _first_sample(batches[0])):
                    _check_alike(module(*batch), quantized(*batch))
        except Exception as error:
            # Tracing and lowering fail in many ways, with every kind of exception.
            failures.append(f"{how}: {reason_of(error)}")
            continue
        count = _quantized_count(quantized)
        if count:
            return quantized, {"quantized_layers": f"{count} of {total}", "quantized_by": how, **details}
        failures.append(f"{how}: no layer became one of 8 bits")
    raise BenchmarkError(
        "cannot_quantize",
        f"no way to quantize it works (it has {_kinds(module)}; {failures[-1]})",
        hint="use int8-dynamic",
    )


def _whole_graph(quantization: Any, module: Any, batches: Batches) -> Any:
    if any(isinstance(each, nn.LayerNorm) for each in module.modules()):
        raise ValueError("layer norms and attention lose too much in 8 bits")
    return _traced(module, quantization.get_default_qconfig_mapping(_engine()), batches)


def _layers_in_graph(quantization: Any, module: Any, batches: Batches) -> Any:
    """Fold batch norms and activations into the layers.

    What is between them stays in floats, but for what PyTorch lowers where both its neighbors are in 8 bits.
    """
    config, mapping = quantization.get_default_qconfig(_engine()), quantization.QConfigMapping()
    for kind in (nn.Linear, *_CONVOLUTIONS, *_FOLDED):
        mapping = mapping.set_object_type(kind, config)
    return _traced(module, mapping, batches)


def _traced(module: Any, mapping: Any, batches: Batches) -> Any:
    graph = importlib.import_module("torch.ao.quantization.quantize_fx")
    prepared = graph.prepare_fx(module, mapping, batches[0])
    for batch in batches:
        prepared(*batch)
    return graph.convert_fx(prepared)


def _each_layer(quantization: Any, module: Any, batches: Batches) -> Any:
    config = quantization.get_default_qconfig(_engine())
    for layer in module.modules():
        if type(layer) in (nn.Linear, *_CONVOLUTIONS):
            layer.qconfig = config
    module = quantization.add_quant_dequant(module)
    # Calibrating goes through the layers, which the fast path of attention passes by.
    without_fast_path(module)
    quantization.prepare(module, inplace=True)
    for batch in batches:
        module(*batch)
    return quantization.convert(module, inplace=True)


_WAYS: dict[str, Callable[[Any, Any, Batches], Any]] = {
    "whole graph": _whole_graph,
    "layers, batch norms folded in": _layers_in_graph,
    "each layer": _each_layer,
}
_CHANGES: dict[str, Callable[[Any, RecipeChoice, MakeBatches], tuple[Any, Details]]] = {
    "prune": lambda module, choice, _batches: prune(module, choice.share),
    "autocast": lambda module, choice, _batches: autocast(module, str(choice.recipe.computes_in)),
    "quantize-dynamic": lambda module, _choice, _batches: quantize_dynamic(module),
    "quantize-static": lambda module, _choice, batches: quantize_static(module, batches()),
}


def _refuse_other_types(module: Any) -> None:
    for each in module.parameters():
        if each.is_floating_point() and each.dtype != torch.float32:
            name = str(each.dtype).removeprefix("torch.")
            raise BenchmarkError(
                "unsupported_dtype",
                f"its weights are {name}, and only float32 can be quantized",
                hint="convert it to float32 first",
            )


def _first_sample(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a batch of one: some kernels take larger ones alone."""
    return tuple(each[:1] if getattr(each, "ndim", 0) else each for each in batch)


def _check_alike(expected: Any, found: Any) -> None:
    old, new = named_arrays(expected).shapes, named_arrays(found).shapes
    if not old or old != new:
        raise ValueError(f"it returns {new} instead of {old}")


def without_fast_path(module: Any) -> Details:
    """Switch off the fused encoder layer, which reads weights that quantized layers do not have."""
    if not any(isinstance(each, nn.TransformerEncoderLayer) for each in module.modules()):
        return {}
    torch.backends.mha.set_fastpath_enabled(False)
    return {"encoder_fast_path": "off: it has no quantized form"}


def _layer_count(module: Any) -> int:
    return sum(isinstance(each, _LAYERS) for each in module.modules())


def _quantized_count(module: Any) -> int:
    """Return how many layers hold weights of 8 bits."""
    return sum(map(_is_quantized, module.modules()))


def _is_quantized(layer: Any) -> bool:
    name = type(layer).__name__
    is_there = ".quantized." in type(layer).__module__ and name != "LinearPackedParams"
    return is_there and (hasattr(type(layer), "_weight_bias") or name in ("LSTM", "GRU"))


def _kinds(module: Any) -> str:
    """Return the kinds of layers that hold parameters, as Conv2d x 3."""
    counts = Counter(type(each).__name__ for each in module.modules() if [*each.parameters(recurse=False)])
    return ", ".join(f"{name} x {count}" for name, count in counts.most_common(5)) or "no layers"
