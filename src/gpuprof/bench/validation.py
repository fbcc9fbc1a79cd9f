# SPDX-License-Identifier: Apache-2.0
"""What is refused before the first process is started: models, frameworks, types, devices, recipes, data.

No framework is imported for what is right, and no code of a model is run. What can only be known inside a
process, such as the layers that a recipe needs, fails there.
"""

from __future__ import annotations

import ast
import importlib.util
import symtable
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuprof.bench.config import Combination, SystemSpec
from gpuprof.bench.failures import named
from gpuprof.bench.frameworks import FRAMEWORK_OF_KIND, framework_name, system_class, with_recipe
from gpuprof.bench.frameworks.base import Package, choice_of
from gpuprof.bench.frameworks.combined import check_any_batch_size
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
    if spec.combination is not None:
        _check_combination(spec.combination)
        return
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
        system.chosen_device(spec.device, available_devices(name))
    if source.kind == "name":
        check_name(source.text, name or "pytorch")


def available_devices(framework: str) -> list[str]:
    """Return the devices of a framework that this machine may have, as far as is known without it."""
    return [each for each in system_class(framework).devices if _may_be_there(each)]


def _check_combination(combination: Combination) -> None:
    for part in combination.parts:
        check_spec(part)
    if combination.kind == "cascade":
        large = combination.parts[1]
        source = parse_model(large.model, trust_pickle=large.trust_pickle)
        framework = framework_name(large.framework)
        name = FRAMEWORK_OF_KIND.get(source.kind) if framework == "auto" else framework
        if name is not None:  # else only the factory's result shows it
            check_any_batch_size(source, system_class(name))


def _check_packages(packages: Iterable[Package]) -> None:
    for module, title, install in packages:
        if importlib.util.find_spec(module) is None:
            raise UnavailableError(
                "not_installed", f"{title} is not installed", hint=f"pip install {install}"
            )


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
            "quantized_on_cpu_only",
            f"--recipe {choice.recipe.name}: PyTorch has quantized layers for CPUs alone",
            hint="use --device cpu for all variants",
        )


# --- factories -----------------------------------------------------------------------------------


def _check_factory(source: ModelSource) -> None:
    """Check that the file of a factory is Python that may define it; the file is not run."""
    assert source.path is not None
    try:
        text = importlib.util.decode_source(source.path.read_bytes())
        tree, symbols = ast.parse(text), symtable.symtable(text, str(source.path), "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        raise BenchmarkError(
            "invalid_python", f"{source.path}: not valid Python ({error})", hint="correct it first"
        ) from error
    defined = {each.get_name() for each in symbols if each.is_assigned()}
    imported = {each.get_name() for each in symbols if each.is_imported()}
    is_bound = source.attribute in defined | imported or "__getattr__" in defined | imported
    if not is_bound and not _may_bind_more(tree):
        raise no_function(source, sorted(defined - imported - _constants(tree)))


def _may_bind_more(tree: ast.Module) -> bool:
    """Whether a module imports all names of another, or mentions what may bind any name."""
    nodes = list(_outside_functions(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = {each.name for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names}
    return "*" in imported or bool(names & {"exec", "setattr", "globals", "vars"})


def _constants(tree: ast.Module) -> set[str]:
    """Return the names of a module that are numbers, texts and the like, which are no models."""
    constant = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.JoinedStr, ast.BinOp, ast.UnaryOp)
    assigned = [node for node in _outside_functions(tree) if isinstance(node, (ast.Assign, ast.AnnAssign))]
    pairs = [
        (target, node.value)
        for node in assigned
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {to.id for to, value in pairs if isinstance(to, ast.Name) and isinstance(value, constant)}


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield each
            yield from _outside_functions(each)
