# SPDX-License-Identifier: Apache-2.0
"""Recipes: ready optimized variants of a model, each a name such as `int8-dynamic` or `pruned:0.5`.

A recipe is a framework, a type, and for some a change of the module that the process run makes right after
reading it. Nothing is imported here that a process run without a recipe would pay for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuprof.errors import BenchmarkError

RecipeChange = Literal["prune", "quantize-dynamic", "quantize-static", "quantize-onnx", "autocast"]
Option = Literal["share", "samples", "data"]

SHARE = 0.5
CALIBRATION_SAMPLES = 64
CALIBRATION_BATCH = 16
_OF_MODULES = ("pytorch", "torch-compile", "torchscript")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One variant that people compare.

    `frameworks` are those that can run it, the first where none is asked for; empty for any. `changes` are
    made in order. `computes_in` is the type whose roundoff the outputs have, None for that of the model.
    """

    name: str
    technique: str
    needs: str
    description: str
    frameworks: tuple[str, ...] = ()
    dtype: str | None = None
    changes: tuple[RecipeChange, ...] = ()
    options: tuple[Option, ...] = ()
    computes_in: str | None = None

    @property
    def changes_module(self) -> bool:
        """Whether it works on the module of PyTorch itself."""
        return any(each != "quantize-onnx" for each in self.changes)

    @property
    def quantizes_module(self) -> bool:
        """Whether it replaces layers by those of PyTorch's CPU kernels for whole numbers."""
        return "quantize-dynamic" in self.changes or "quantize-static" in self.changes


@dataclass(frozen=True, slots=True)
class RecipeChoice:
    """A recipe with its options, as `pruned:0.5` names them. `data` None is the data of the spec."""

    recipe: Recipe
    share: float = SHARE
    samples: int = CALIBRATION_SAMPLES
    data: str | None = None

    @property
    def technique(self) -> str:
        """What it does, with its percentage."""
        share = f" {self.share:.0%}" if "share" in self.recipe.options else ""
        return f"{self.recipe.technique}{share}"


_CALIBRATION: tuple[Option, ...] = ("samples", "data")
_CALIBRATED = "scales from a calibration, before the measurement"
_ALL = (
    Recipe("fp32", "float32", "", "Weights and inputs in 32-bit floats.", dtype="float32"),
    Recipe(
        "bf16",
        "bfloat16",
        "kernels of the device for bfloat16",
        "Half the bytes, the range of float32 and 8 binary digits.",
        dtype="bfloat16",
    ),
    Recipe(
        "fp16",
        "float16",
        "kernels of the device for float16",
        "Half the bytes, 11 binary digits; overflows above 65,504.",
        dtype="float16",
    ),
    *(
        Recipe(
            name,
            f"autocast to {dtype}",
            f"kernels of the device for {dtype}",
            f"Weights stay in float32; matrix products and convolutions compute in {dtype}.",
            ("pytorch", "torch-compile"),
            changes=("autocast",),
            computes_in=dtype,
        )
        for name, dtype in (("autocast-bf16", "bfloat16"), ("autocast-fp16", "float16"))
    ),
    Recipe(
        "compile",
        "torch.compile",
        "a C++ compiler",
        "The model's graphs, compiled for each batch size.",
        ("torch-compile",),
    ),
    Recipe(
        "int8-dynamic",
        "dynamic INT8",
        "a CPU",
        "Linear and recurrent layers in 8 bits; scales of their inputs are found at each call.",
        _OF_MODULES,
        changes=("quantize-dynamic",),
        computes_in="int8",
    ),
    Recipe(
        "int8-static",
        "static INT8",
        "a CPU, data to calibrate with",
        f"Convolutions and linear layers in 8 bits; {_CALIBRATED}.",
        ("pytorch", "torchscript"),
        changes=("quantize-static",),
        options=_CALIBRATION,
        computes_in="int8",
    ),
    Recipe(
        "pruned",
        "magnitude pruning",
        "",
        "The smallest weights of each layer are 0. Dense kernels multiply zeros as fast as other numbers.",
        ("pytorch", "torch-compile", "torchscript", "torch-export", "onnxruntime"),
        changes=("prune",),
        options=("share",),
    ),
    Recipe(
        "pruned-int8",
        "static INT8, magnitude pruning",
        "a CPU, data to calibrate with",
        "Pruned, then quantized as int8-static does.",
        ("pytorch", "torchscript"),
        changes=("prune", "quantize-static"),
        options=("share", *_CALIBRATION),
        computes_in="int8",
    ),
    Recipe(
        "onnx",
        "ONNX Runtime",
        "onnxruntime; for PyTorch models onnx, onnxscript",
        "An .onnx file, or the model exported to one.",
        ("onnxruntime",),
    ),
    Recipe(
        "onnx-int8",
        "ONNX Runtime, static INT8",
        "onnxruntime, onnx, data to calibrate with; for PyTorch models onnxscript",
        f"The same, quantized with QDQ nodes; {_CALIBRATED}.",
        ("onnxruntime",),
        changes=("quantize-onnx",),
        options=_CALIBRATION,
        computes_in="int8",
    ),
    Recipe(
        "tensorrt",
        "TensorRT",
        "tensorrt, a GPU of NVIDIA, an .onnx file or an engine",
        "An engine, built for each batch size.",
        ("tensorrt",),
    ),
)
RECIPES: Mapping[str, Recipe] = {each.name: each for each in _ALL}


def parse_recipe(text: str) -> RecipeChoice:
    """Read `name`, `pruned:0.5`, `int8-static:128` or `int8-static:128:folder`. Raises BenchmarkError."""
    name, *words = text.split(":")
    if name not in RECIPES:
        import difflib

        near = difflib.get_close_matches(name, RECIPES, 2)
        guess = f": did you mean {' or '.join(near)}?" if near else ""
        raise BenchmarkError(
            "unknown_recipe", f"unknown recipe {name!r}{guess}", hint=f"use one of {', '.join(RECIPES)}"
        )
    choice = RecipeChoice(RECIPES[name])
    left = list(choice.recipe.options)
    while words:
        option = _option(text, words[0], left, choice.recipe)
        left = left[left.index(option) + 1 :]
        value = ":".join(words) if option == "data" else words[0]
        words = [] if option == "data" else words[1:]
        parsed = {"share": float, "samples": int, "data": str}[option](value)
        choice = dataclasses.replace(choice, **{option: parsed})
    return choice


def _option(text: str, word: str, left: list[Option], recipe: Recipe) -> Option:
    """Return the option of a word. Raises BenchmarkError for one that the recipe does not take."""
    if "samples" in left and word.isascii() and word.isdigit() and int(word) > 0:
        return "samples"
    if "share" in left and _is_share(word):
        return "share"
    if "data" in left and word and not _is_number(word):
        return "data"
    known = {
        "share": "a number between 0 and 1",
        "samples": "how many samples calibrate",
        "data": "a folder of images or .npz file to calibrate with",
    }
    takes = ", then ".join(known[each] for each in recipe.options)
    raise BenchmarkError(
        "unknown_recipe_option",
        f"--recipe {text}: {word!r} is not an option of {recipe.name}",
        hint=f"{recipe.name} takes {takes}" if takes else f"write {recipe.name} without options",
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_share(word: str) -> bool:
    return _is_number(word) and 0 < float(word) < 1


def batch_sizes(samples: int, largest: int, *, is_fixed: bool) -> list[int]:
    """Return the batches that so many samples make; of a fixed size each is whole."""
    whole, rest = divmod(samples, largest)
    return [largest] * whole + ([largest if is_fixed else rest] if rest else [])


def calibration_text(samples: int, data: str) -> str:
    """Return a description of the calibration data."""
    return f"{samples:,} synthetic samples" if data == "synthetic" else f"{samples:,} samples of {data}"
