# SPDX-License-Identifier: Apache-2.0
"""What a user hands over, made ready to be called: the uncompiled model and its arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gpuprof.errors import WorkError


@dataclass(slots=True)
class Target:
    """Something to call. `roots` are named before it runs; `modules`, `optimizers` are kept as they are."""

    call: Callable[..., Any]
    name: str
    roots: list[torch.nn.Module] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)


def resolve(model: Any) -> Target:
    """Return the uncompiled target. Raises WorkError for what cannot be called or has no shapes yet."""
    model = _uncompiled(model)
    if isinstance(model, torch.nn.Module):
        _refuse_lazy(model)
        # A wrapper for several processes waits for the others in its backward pass.
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        return Target(inner, type(inner).__name__, [model], [model])
    if not callable(model) or isinstance(model, type):
        raise WorkError(
            f"count_work() takes a torch.nn.Module or a function, not {_described(model)}: "
            "pass the model itself"
        )
    target = Target(model, getattr(model, "__qualname__", type(model).__name__))
    for value in _reached(model):
        value = _uncompiled(value)
        if isinstance(value, torch.nn.Module):
            target.modules.append(value)
        elif isinstance(value, torch.optim.Optimizer):
            target.optimizers.append(value)
    if isinstance(getattr(model, "__self__", None), torch.nn.Module):
        target.roots.append(model.__self__)
    return target


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _uncompiled(value: Any) -> Any:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(value, dynamo.OptimizedModule):
        return value._orig_mod
    return getattr(value, "_torchdynamo_orig_callable", value) if inspect.isroutine(value) else value


def _refuse_lazy(model: torch.nn.Module) -> None:
    lazy = next((name for name, value in model.named_parameters() if is_lazy(value)), None)
    if lazy is not None:
        raise WorkError(
            f"count_work: the parameter {lazy} of {type(model).__name__} has no shape yet: "
            "call the model once before"
        )


def _reached(function: Any) -> list[Any]:
    """Return the objects that a function uses by name, and the one it is bound to."""
    found = [getattr(function, "__self__", None)]
    inner = getattr(function, "__func__", getattr(function, "func", function))
    found += [getattr(inner, "__self__", None), *getattr(function, "args", ())]
    if inspect.isfunction(inner):
        names = inspect.getclosurevars(inner)
        found += [*names.nonlocals.values(), *names.globals.values(), *(inner.__defaults__ or ())]
    return found


def uncompile_parts(root: torch.nn.Module) -> None:
    """Put the originals in the places of compiled parts of `root`; the caller has kept the attributes."""
    for module in list(root.modules()):
        if vars(module).get("_compiled_call_impl") is not None:
            vars(module)["_compiled_call_impl"] = None
        for name, child in list(module._modules.items()):
            if child is not None and _uncompiled(child) is not child:
                module._modules[name] = _uncompiled(child)
