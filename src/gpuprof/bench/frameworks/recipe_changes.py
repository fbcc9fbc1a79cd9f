# SPDX-License-Identifier: Apache-2.0
"""Changes of a PyTorch module by a recipe, made in the worker process: dtype, pruning, sizes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.models.recipes import RecipeChoice
from gpuprof.errors import BenchmarkError, GpuprofError


@dataclass(slots=True)
class Changed:
    """A changed module, how many parameters it had before, and what to say of it."""

    module: Any
    parameters: int
    details: dict[str, str] = field(default_factory=dict)


def change_module(
    module: Any, choice: RecipeChoice, model: str, batches: Callable[[], Sequence[tuple[Any, ...]]]
) -> Changed:
    """Apply a recipe's changes. `batches` makes what static quantization calibrates with.

    Raises BenchmarkError that names the recipe and the model.
    """
    changed = Changed(module.eval(), sum(int(each.numel()) for each in module.parameters()))
    try:
        with warnings.catch_warnings():
            # PyTorch announces the end of what this builds on at each call.
            warnings.simplefilter("ignore")
            for change in choice.recipe.changes:
                _CHANGES[change](changed, choice, batches)
    except GpuprofError as error:
        raise type(error)(f"--recipe {choice.recipe.name}: {model}: {error}") from error
    except Exception as error:
        raise BenchmarkError(
            f"--recipe {choice.recipe.name}: {model} cannot be changed so ({reason_of(error)}): "
            "take another recipe"
        ) from error
    return changed


MakeBatches = Callable[[], Sequence[tuple[Any, ...]]]


def _prune(changed: Changed, choice: RecipeChoice, _batches: MakeBatches) -> None:

    told = prune(changed.module, choice.share)
    if not told:
        raise BenchmarkError(
            "no convolution, linear, attention or recurrent layer is in it: leave the recipe out"
        )
    changed.details |= told


def _quantize_dynamic(changed: Changed, _choice: RecipeChoice, _batches: MakeBatches) -> None:
    from gpuprof.bench.frameworks.quantization import quantize_dynamic

    _refuse_other_types(changed.module)
    changed.module, told = quantize_dynamic(changed.module)
    changed.details |= told


def _quantize_static(changed: Changed, _choice: RecipeChoice, batches: MakeBatches) -> None:
    from gpuprof.bench.frameworks.quantization import quantize_static

    _refuse_other_types(changed.module)
    changed.module, told = quantize_static(changed.module, batches())
    changed.details |= told


def _nothing(_changed: Changed, _choice: RecipeChoice, _batches: MakeBatches) -> None:
    """Leave the module as it is: the .onnx file is what is changed."""


_CHANGES = {
    "prune": _prune,
    "quantize-dynamic": _quantize_dynamic,
    "quantize-static": _quantize_static,
    "quantize-onnx": _nothing,
}


def _refuse_other_types(module: Any) -> None:
    torch: Any = sys.modules["torch"]
    for each in module.parameters():
        if each.is_floating_point() and each.dtype != torch.float32:
            name = str(each.dtype).removeprefix("torch.")
            raise BenchmarkError(
                f"its weights are {name}, and it is float32 that is quantized: convert it first"
            )


def prune(module: Any, share: float) -> dict[str, str]:
    """Prune a module of PyTorch in place; returns what to say of it."""
    torch: Any = sys.modules["torch"]
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
        return {}
    return {"zeros": f"{zeros / total:.2%} of {total:,} weights of its layers"}


def _weights(module: Any) -> Iterator[Any]:
    """Yield the weights of convolutions, linear, attention and recurrent layers, each once."""
    nn: Any = sys.modules["torch"].nn
    seen: set[int] = set()
    for layer in module.modules():
        for name, weight in layer.named_parameters(recurse=False):
            if _is_pruned(nn, layer, name) and weight.is_floating_point() and id(weight) not in seen:
                seen.add(id(weight))
                yield weight


def _is_pruned(nn: Any, layer: Any, name: str) -> bool:
    if isinstance(layer, nn.MultiheadAttention):
        return name.endswith("proj_weight")
    if isinstance(layer, nn.RNNBase):
        return name.startswith("weight_")
    return name == "weight" and isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))


def module_bytes(module: Any) -> int | None:
    """Return the bytes of all weights and buffers, None where some are packed in an unknown form."""
    total, seen = 0, set()
    try:
        for tensor in (*_tensors(module.state_dict()), *module.buffers()):
            # Tied weights stand there under several names.
            key = None if tensor.is_quantized else (tensor.data_ptr(), tensor.numel())
            if key is None or key not in seen:
                seen.add(key)
                total += _bytes_of(tensor)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return total


def _bytes_of(tensor: Any) -> int:
    torch: Any = sys.modules["torch"]
    count = int(tensor.numel() * tensor.element_size())
    if tensor.is_quantized and tensor.qscheme() in (
        torch.per_channel_affine,
        torch.per_channel_symmetric,
        torch.per_channel_affine_float_qparams,
    ):
        parts = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        count += sum(int(each.numel() * each.element_size()) for each in parts)
    return count


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state; packed weights tell what is in them as their own state."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, torch.ScriptObject):
        yield from _tensors(value.__getstate__())
    elif value is not None and not isinstance(value, (bool, int, float, str, torch.dtype)):
        raise TypeError(f"{type(value).__name__} is nothing that weights are packed in")
