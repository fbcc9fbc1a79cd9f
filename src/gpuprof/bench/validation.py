# SPDX-License-Identifier: Apache-2.0
"""What is refused before the first process is started: models, frameworks, types, devices, recipes, data.

No framework is imported for what is right, and no code of a model is run. What can only be known inside a
process, such as the layers that a recipe needs, fails there.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import named
from gpuprof.bench.frameworks import FRAMEWORK_OF_KIND, framework_name, system_class, with_recipe
from gpuprof.bench.frameworks.base import FrameworkSystem, Package, choice_of
from gpuprof.bench.models.data import check_source
from gpuprof.bench.models.sources import ModelSource, check_name, no_function, parse_model
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError
from gpuprof.record.device_samples import has_driver

# A GPU of NVIDIA on a machine without NVML, one of AMD, and one below Windows.
_GPU_FILES = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/kfd", "/dev/dxg")


def check_specs(specs: Iterable[tuple[str, SystemSpec]]) -> None:
    """Check the spec of each name. Raises GpuprofError, which names the first one that cannot work."""
    for name, spec in specs:
        try:
            check_spec(spec)
        except GpuprofError as error:
            raise named(error, f"variant {name}") from error


def check_spec(spec: SystemSpec) -> None:
    """Raise GpuprofError where process runs of a spec cannot work, for reasons that are known before."""
    if spec.recipe is not None:
        spec = with_recipe(spec, spec.recipe)
    source = parse_model(spec.model, trust_pickle=spec.trust_pickle)
    framework = framework_name(spec.framework)
    name = FRAMEWORK_OF_KIND.get(source.kind) if framework == "auto" else framework
    if source.kind == "factory":
        _check_factory(source)
    check_source(spec.data, "--data")
    _check_recipe(spec)
    if name is not None:  # else only the factory's result shows it
        system = system_class(name)
        system.check(spec, source)
        _check_packages(system.packages(source.kind))
        _check_device(spec.device, system)
    if source.kind == "name":
        check_name(source.text, name or "pytorch")


def _check_packages(packages: Iterable[Package]) -> None:
    for module, title, install in packages:
        if importlib.util.find_spec(module) is None:
            raise UnavailableError(f"{title} is not installed: pip install {install}")


def _check_device(device: str, system: type[FrameworkSystem]) -> None:
    """Check a device that was named, and of those that a framework needs, that one may be there."""
    there = [each for each in system.devices if _may_be_there(each)]
    if (device == "auto" and there) or device in there:
        return
    hint = f"take --device {' or '.join(there)}" if there else f"it needs {' or '.join(system.devices)}"
    raise BenchmarkError(f"--device {device}: {system.framework} finds no such device here: {hint}")


def _may_be_there(device: str) -> bool:
    if device == "cuda":
        return has_driver() or any(Path(each).exists() for each in _GPU_FILES)
    return device != "mps" or sys.platform == "darwin"


def _check_recipe(spec: SystemSpec) -> None:
    choice = choice_of(spec)
    if choice is None:
        return
    if choice.data is not None:
        check_source(choice.data, "--recipe")
    if choice.recipe.quantizes_module and spec.device not in ("auto", "cpu"):
        raise UnavailableError(
            f"--recipe {choice.recipe.name}: PyTorch has quantized layers for CPUs alone: take --device cpu, "
            "for what it is compared with too"
        )


# --- factories -----------------------------------------------------------------------------------


def _check_factory(source: ModelSource) -> None:
    """Check that the file of a factory is Python that may define it; the file is not run."""
    assert source.path is not None
    try:
        tree = ast.parse(source.path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise BenchmarkError(f"{source.path}: no valid Python ({error}): correct it first") from error
    names = set(_names(tree.body))
    if "*" not in names and source.attribute not in names:
        raise no_function(source, sorted(names))


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield what statements may bind; `*` where that is not known."""
    for each in body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield "*" if each.name == "__getattr__" else each.name
        elif isinstance(each, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in each.names)
        elif isinstance(each, ast.Expr):
            # A call, as of setattr or exec, may bind anything.
            yield from ("*",) if isinstance(each.value, ast.Call) and _may_bind(each.value) else ()
        else:
            yield from (
                node.id
                for node in ast.walk(each)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )
            for block in ("body", "orelse", "finalbody"):
                yield from _names(getattr(each, block, ()))
            for handler in getattr(each, "handlers", ()):
                yield from _names(handler.body)


def _may_bind(call: ast.Call) -> bool:
    names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    return bool(names & {"exec", "setattr", "globals", "vars"})
