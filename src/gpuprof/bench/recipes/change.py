# SPDX-License-Identifier: Apache-2.0
"""Changing a module of PyTorch as a recipe says, in the launch that is to measure it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.recipes import RecipeChoice
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


Batches = Callable[[], Sequence[tuple[Any, ...]]]


def _prune(changed: Changed, choice: RecipeChoice, _batches: Batches) -> None:
    from gpuprof.bench.recipes.pruning import prune

    told = prune(changed.module, choice.share)
    if not told:
        raise BenchmarkError(
            "no convolution, linear, attention or recurrent layer is in it: leave the recipe out"
        )
    changed.details |= told


def _quantize_dynamic(changed: Changed, _choice: RecipeChoice, _batches: Batches) -> None:
    from gpuprof.bench.recipes.quantization import quantize_dynamic

    _refuse_other_types(changed.module)
    changed.module, told = quantize_dynamic(changed.module)
    changed.details |= told


def _quantize_static(changed: Changed, _choice: RecipeChoice, batches: Batches) -> None:
    from gpuprof.bench.recipes.quantization import quantize_static

    _refuse_other_types(changed.module)
    changed.module, told = quantize_static(changed.module, batches())
    changed.details |= told


def _nothing(_changed: Changed, _choice: RecipeChoice, _batches: Batches) -> None:
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
