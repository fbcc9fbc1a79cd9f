# SPDX-License-Identifier: Apache-2.0
"""The frameworks: which there are, which suits a model, and how its system is made.

A framework's package is imported when its system is loaded, not before.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.models.sources import ModelKind, call_factory, parse_model
from gpuprof.errors import BenchmarkError

# Name: (module, class).
FRAMEWORKS: dict[str, tuple[str, str]] = {
    "pytorch": ("torch", "TorchSystem"),
    "torch-compile": ("torch", "TorchCompileSystem"),
    "torchscript": ("torch", "TorchScriptSystem"),
    "torch-export": ("torch", "TorchExportSystem"),
    "onnxruntime": ("onnx", "OnnxRuntimeSystem"),
    "jax": ("jax", "JaxSystem"),
    "tensorrt": ("tensorrt", "TensorRtSystem"),
    "python": ("python", "PythonSystem"),
}
ALIASES = {
    "torch": "pytorch",
    "eager": "pytorch",
    "torch.compile": "torch-compile",
    "torch_compile": "torch-compile",
    "torch.export": "torch-export",
    "torch_export": "torch-export",
    "onnx": "onnxruntime",
    "ort": "onnxruntime",
    "flax": "jax",
    "trt": "tensorrt",
    "callable": "python",
}
FRAMEWORK_OF_KIND: dict[ModelKind, str] = {
    "name": "pytorch",
    "pickle": "pytorch",
    "torchscript": "torchscript",
    "torch-export": "torch-export",
    "onnx": "onnxruntime",
    "tensorrt": "tensorrt",
}


def framework_name(text: str) -> str:
    """Return a framework's own name, or "auto". Raises BenchmarkError with names that are near."""
    name = ALIASES.get(text.lower(), text.lower())
    if name in FRAMEWORKS or name == "auto":
        return name
    import difflib

    near = difflib.get_close_matches(name, [*FRAMEWORKS, *ALIASES], 2)
    guess = f": did you mean {' or '.join(near)}?" if near else ""
    raise BenchmarkError(
        "unknown_framework", f"unknown framework {text!r}{guess}", hint=f"use one of {', '.join(FRAMEWORKS)}"
    )


def with_recipe(spec: SystemSpec, text: str) -> SystemSpec:
    """Return the spec of a variant. Raises BenchmarkError where the recipe contradicts the spec."""
    from gpuprof.bench.models.recipes import parse_recipe

    recipe = parse_recipe(text).recipe
    framework = framework_name(spec.framework)
    if framework == "auto" and recipe.frameworks:
        framework = recipe.frameworks[0]
    if recipe.frameworks and framework not in recipe.frameworks:
        raise BenchmarkError(
            "recipe_framework",
            f"--recipe {text} runs in {' or '.join(recipe.frameworks)}, not in {framework}",
            hint="omit --framework",
        )
    wanted = recipe.dtype if recipe.computes_in is None else "float32"
    if wanted is not None and spec.dtype not in (None, wanted):
        raise BenchmarkError(
            "recipe_dtype", f"--recipe {text} takes {wanted} inputs, not {spec.dtype}", hint="omit --dtype"
        )
    dtype = spec.dtype if recipe.dtype is None else recipe.dtype
    return dataclasses.replace(spec, framework=framework, dtype=dtype, recipe=text)


def make_system(spec: SystemSpec, *, data: Any = None) -> FrameworkSystem:
    """Make the system of a spec; runs a factory, loads nothing else. Raises BenchmarkError."""
    if spec.combination is not None:
        from gpuprof.bench.frameworks.combined import combined_system

        return combined_system(spec, [make_system(part) for part in spec.combination.parts])
    if spec.recipe is not None:
        spec = with_recipe(spec, spec.recipe)
    source = parse_model(spec.model, trust_pickle=spec.trust_pickle)
    framework = framework_name(spec.framework)
    model = call_factory(source, spec.seed) if source.kind == "factory" else None
    if framework == "auto":
        framework = FRAMEWORK_OF_KIND.get(source.kind) or framework_of(model)
    return system_class(framework)(spec, source, model=model, data=data)


def system_class(framework: str) -> type[FrameworkSystem]:
    """Return a framework's class."""
    module, name = FRAMEWORKS[framework]
    found: type[FrameworkSystem] = getattr(
        importlib.import_module(f"gpuprof.bench.frameworks.{module}"), name
    )
    return found


def framework_of(model: Any) -> str:
    """Return the framework of an object; `python` for any other callable."""
    if isinstance(model, tuple) and len(model) == 2:
        model = model[0]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torchscript" if isinstance(model, torch.jit.ScriptModule) else "pytorch"
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(model, linen.Module):
        return "jax"
    return "python"
