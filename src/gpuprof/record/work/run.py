# SPDX-License-Identifier: Apache-2.0
"""The counting pass: run the model once under the counting mode, then leave everything as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from gpuprof.errors import WorkError
from gpuprof.record.call_arguments import arguments
from gpuprof.record.work.call import tensors_in
from gpuprof.record.work.layer_stack import LayerStack
from gpuprof.record.work.mode import CountingMode
from gpuprof.record.work.observe import Observer
from gpuprof.record.work.preserve import Preserved
from gpuprof.record.work.rows import CountedPass
from gpuprof.record.work.target import (
    Target,
    fake_mode,
    fake_parts,
    fake_values,
    resolve,
    uncompile_parts,
    with_tensors,
)


class PassError(Exception):
    """The model failed; `counted` is what was counted until then, `reason` one line, the cause is chained."""

    def __init__(self, reason: str, counted: CountedPass, *, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.counted = counted


def count_operators(
    model: Any,
    inputs: Any,
    *,
    backward: bool,
    fake: bool,
    observer: Observer | None = None,
    names: Mapping[torch.nn.Module, str] | None = None,
) -> CountedPass:
    """Run `model` once and count its operators. Raises PassError, and WorkError for a wrong argument.

    What `observer` sees of each operator is recorded too. `names` are those of layers that were recorded.
    """
    target = resolve(model)
    counted = CountedPass(observed=None if observer is None else [])
    preserved = Preserved()
    names = names or {}
    try:
        _run(target, inputs, counted, preserved, names, backward=backward, fake=fake, observer=observer)
    except (WorkError, PassError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # A model may try to end the program when it is called once more, which is not the program's wish.
        reason, hint = _reason(target, error, counted, fake=fake)
        raise PassError(reason, counted, hint=hint) from error
    finally:
        preserved.restore()
    return counted


def _run(
    target: Target,
    inputs: Any,
    counted: CountedPass,
    preserved: Preserved,
    names: Mapping[torch.nn.Module, str],
    *,
    backward: bool,
    fake: bool,
    observer: Observer | None,
) -> None:
    shapes_only = fake_mode() if fake else None

    def adopt(module: torch.nn.Module) -> None:
        """Prepare a module that the target called and that has no name yet."""
        preserved.keep_module(module)
        uncompile_parts(module)
        if shapes_only is not None:
            fake_parts(shapes_only, module)

    for module in target.modules:
        adopt(module)
    for optimizer in target.optimizers:
        preserved.keep_optimizer(optimizer)
    layers = LayerStack(discovered=adopt, recorded=names)
    for root in target.roots:
        layers.add_root(root)
    args, kwargs = _arguments(target, inputs)
    if shapes_only is not None:
        args, kwargs = fake_values(shapes_only, args), fake_values(shapes_only, kwargs)
    if backward:
        args, kwargs = with_tensors(_cut, args), with_tensors(_cut, kwargs)
    mode = CountingMode(counted, layers, None if fake else preserved, observer)
    with ExitStack() as stack:
        stack.enter_context(_uncompiled_functions())
        stack.enter_context(_optimizer_steps(mode, preserved))
        stack.enter_context(layers.watching(mode.is_active))
        if shapes_only is not None:
            stack.callback(torch.clear_autocast_cache)
            stack.enter_context(shapes_only)
        stack.enter_context(torch.enable_grad() if backward else nullcontext())
        with mode:
            outputs = target.call(*args, **kwargs)
        if backward:
            _run_backward(target, outputs, mode, counted, preserved)


def _arguments(target: Target, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return arguments(inputs)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "without a message")
        raise WorkError(
            "inputs_raised",
            f"count_work: inputs() for {target.name} failed: {type(error).__name__}: {reason}",
            hint="call inputs() yourself to see where",
        ) from error


def _run_backward(
    target: Target, outputs: Any, mode: CountingMode, counted: CountedPass, preserved: Preserved
) -> None:
    results = [tensor for tensor in _differentiable(outputs) if tensor.requires_grad]
    if not results:
        raise PassError(
            f"count_work: {target.name}: backward=True needs an output that depends on something with "
            "requires_grad; there is none",
            counted,
            hint="leave backward out, or unfreeze a parameter",
        )
    # Gradients as the sum of all outputs gives them; the sum itself is not the model's work.
    gradients = [torch.ones_like(tensor) for tensor in results]
    leaves = list(_leaves(results))
    preserved.keep_gradients(leaves)
    for leaf in leaves:
        leaf.grad = None
    with mode:
        torch.autograd.backward(results, gradients)


def _differentiable(outputs: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(outputs)
    # What is no known container may still hold tensors, as the outputs of many model libraries do.
    leaves = [
        each for leaf in leaves for each in ([leaf] if isinstance(leaf, torch.Tensor) else _attributes(leaf))
    ]
    unique = {id(tensor): tensor for tensor in tensors_in(leaves)}
    return list(unique.values())


def _attributes(value: Any) -> list[Any]:
    return list(vars(value).values()) if hasattr(value, "__dict__") and not callable(value) else []


def _leaves(results: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield every tensor that the backward pass will give a gradient to."""
    nodes = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    yield from (tensor for tensor in results if tensor.grad_fn is None)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without what led to it, which a backward pass would run into."""
    return tensor.detach().requires_grad_() if tensor.requires_grad and not tensor.is_leaf else tensor


def _uncompiled_functions() -> AbstractContextManager[Any]:
    """Run compiled functions as written: compiled under a dispatch mode, they would stay uncompiled."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def _optimizer_steps(mode: CountingMode, preserved: Preserved) -> Iterator[None]:
    """Separate the steps of optimizers from the rest, and keep what they change."""
    known: set[int] = set()

    def begin(optimizer: Any, _: object, __: object) -> None:
        if mode.is_active():
            if id(optimizer) not in known:
                known.add(id(optimizer))
                preserved.keep_optimizer(optimizer)
            mode.in_optimizer = True

    def end(_: object, __: object, ___: object) -> None:
        if mode.is_active():
            mode.in_optimizer = False

    with ExitStack() as hooks:
        hooks.callback(optimizer_hooks.register_optimizer_step_pre_hook(begin).remove)
        hooks.callback(optimizer_hooks.register_optimizer_step_post_hook(end).remove)
        yield


def _reason(target: Target, error: BaseException, counted: CountedPass, *, fake: bool) -> tuple[str, str]:
    """Return why a pass failed, and a hint."""
    message = next(iter(str(error).strip().splitlines()), "")
    hint = "call it with the same inputs to see where it fails"
    if fake and type(error).__module__.startswith("torch._subclasses"):
        hint = "leave fake out: the model reads values, which fake=True does not have"
    reason = (
        f"count_work: {target.name} failed after {_calls(len(counted.rows))}: "
        f"{type(error).__name__}: {message or 'without a message'}"
    )
    return reason, hint


def _calls(number: int) -> str:
    return "1 operator call" if number == 1 else f"{number:,} operator calls"
