# SPDX-License-Identifier: Apache-2.0
"""What a user hands over, made ready to be called: the uncompiled model, with values or with shapes alone."""

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
            "not_callable",
            f"count_work() takes a torch.nn.Module or a function, not {_described(model)}",
            hint="pass the model itself",
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
            "lazy_parameter",
            f"count_work: the parameter {lazy} of {type(model).__name__} has no shape yet",
            hint="call the model once before",
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


# ---- shapes alone -----------------------------------------------------------------------------


def fake_mode() -> Any:
    """Return a mode in which operators give shapes and no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_values(mode: Any, value: Any) -> Any:
    """Return `value` with the tensors in it, inside lists, tuples and dictionaries, replaced."""
    return with_tensors(mode.from_tensor, value)


def with_tensors(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return `value` with what `change` makes of the tensors in it, inside lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: with_tensors(change, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_tensors(change, each) for each in value)
    return value


def fake_parts(mode: Any, root: torch.nn.Module) -> None:
    """Replace the tensors that are attributes of modules; the caller has kept the attributes."""
    for module in root.modules():
        for holder in (vars(module), module._parameters, module._buffers):
            for name, value in list(holder.items()):
                if isinstance(value, torch.Tensor):
                    holder[name] = mode.from_tensor(value)
        for value in vars(module).values():
            if type(value) is list and any(isinstance(each, torch.Tensor) for each in value):
                value[:] = fake_values(mode, value)
