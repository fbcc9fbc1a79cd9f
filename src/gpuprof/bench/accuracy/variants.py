# SPDX-License-Identifier: Apache-2.0
"""The variants that are compared: called on copies of their inputs, and left as they were.

A module of PyTorch is evaluated in evaluation mode without gradients, on its own device and in its own type;
modes, buffers and random states are put back. Any other callable is called as it is. PyTorch is never
imported here: a module brings it along.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuprof.bench.accuracy.tolerance import coarsest
from gpuprof.bench.failures import place_of, reason_of
from gpuprof.bench.measure.outputs import Outputs, dtype_name, named_arrays
from gpuprof.errors import BenchmarkError
from gpuprof.record.call_arguments import CallArguments, arguments

_SEED = 0
LABELS = "fix the model, or set labels= if batches have labels, or labels were used as inputs"


def is_module(model: Any) -> bool:
    """Whether `model` is a module of PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


class ComparedModel:
    """A model or function with a name for error messages."""

    def __init__(self, name: str, model: Any, hint: str = LABELS) -> None:
        if not callable(model) or isinstance(model, type):
            kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
            raise BenchmarkError(
                "not_callable", f"{name}: {kind} cannot be called", hint="use a model or a function"
            )
        self.name, self.model, self._hint = name, model, hint
        self._output_dtypes: set[str] = set()

    def __call__(self, inputs: Any, batch: int) -> Outputs:
        """Return what the model makes of a copy of `inputs`. Raises BenchmarkError in the model's words."""
        with no_gradients(), kept_random_states(_SEED + batch):
            try:
                args, kwargs = arguments(copied_to(inputs, self.model))
                outputs = named_arrays(self.model(*args, **kwargs))
            except Exception as error:
                where = f"{place_of(error)} in batch {batch}"
                raise BenchmarkError(
                    "model_raised", f"{self.name} raised {reason_of(error)} at {where}", hint=self._hint
                ) from error
        if not outputs.arrays:
            nothing = ", ".join(outputs.skipped) or "nothing"
            raise BenchmarkError(
                "no_outputs",
                f"{self.name} returned {nothing}: no output has plain values to compare",
                hint="return a tensor or an array of numbers",
            )
        self._output_dtypes |= {each.dtype for each in outputs.arrays.values()}
        return outputs

    def dtype(self) -> str | None:
        """Return the coarsest floating-point type of the parameters and of what was returned."""
        names = [dtype_name(each) for each in self.model.parameters()] if is_module(self.model) else []
        return coarsest([each for each in (*names, *sorted(self._output_dtypes)) if "float" in each])


def double_precision(model: Any) -> Any:
    """Return a copy of a module in float64. Raises BenchmarkError."""
    if not is_module(model):
        raise BenchmarkError(
            "not_a_torch_module",
            f"reference=True copies a module of PyTorch, and the baseline is a {type(model).__name__}",
            hint="set reference= to a function of higher precision",
        )
    try:
        # A scripted model's copy warns of gradients that are not used.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.deepcopy(model).double()
    except Exception as error:
        raise BenchmarkError(
            "cannot_copy",
            f"the baseline cannot be copied to float64 ({reason_of(error)})",
            hint="set reference= to a model of higher precision",
        ) from error


# --- inputs --------------------------------------------------------------------------------------


def copied_to(value: Any, model: Any) -> Any:
    """Return a copy of a call's inputs; for a module with its floats on its device, in its type."""
    like = _floating_parameter(model) if is_module(model) else None
    return copied(value, like, to_tensors=is_module(model))


def _floating_parameter(module: Any) -> Any:
    return next((each for each in module.parameters() if each.is_floating_point()), None)


def copied(value: Any, like: Any = None, *, to_tensors: bool = False) -> Any:
    """Return a copy of tensors and arrays in containers; as `like` where that tensor is given."""
    if isinstance(value, CallArguments):
        return CallArguments(
            copied(value.args, like, to_tensors=to_tensors), copied(value.kwargs, like, to_tensors=to_tensors)
        )
    if isinstance(value, Mapping):
        return {key: copied(each, like, to_tensors=to_tensors) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        items = [copied(each, like, to_tensors=to_tensors) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, np.ndarray):
        array = value.copy()
        return _placed(sys.modules["torch"].as_tensor(array), like) if to_tensors else array
    if hasattr(value, "detach") and hasattr(value, "clone"):
        return _placed(value.detach().clone(), like)
    return value


def _placed(tensor: Any, like: Any) -> Any:
    if like is None:
        return tensor
    return tensor.to(device=like.device, dtype=like.dtype if tensor.is_floating_point() else None)


def in_double(value: Any) -> Any:
    """Return a copy with the tensors' floats in float64, each on its device."""
    double = SimpleNamespace(device=None, dtype=sys.modules["torch"].float64)
    return copied(value, double, to_tensors=True)


# --- leaving things as they were -----------------------------------------------------------------


@contextlib.contextmanager
def unharmed(*models: Any) -> Iterator[None]:
    """Evaluate modules in evaluation mode; restore modes and buffers after it."""
    modules = [model for model in models if is_module(model)]
    kept = [_State(each) for each in modules]
    try:
        for each in modules:
            each.eval()
        yield
    finally:
        for state in kept:
            state.restore()


class _State:
    """The training flags and buffers of all modules in a module."""

    def __init__(self, model: Any) -> None:
        self._modes = [(module, module.training) for module in model.modules()]
        self._buffers = [
            (module, name, buffer, None if buffer is None else buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
        ]

    def restore(self) -> None:
        for module, mode in self._modes:
            module.training = mode
        with no_gradients():
            for module, name, buffer, values in self._buffers:
                module._buffers[name] = buffer
                # Only what changed is written: autograd notices every write.
                if buffer is not None and not _is_same(buffer, values):
                    buffer.copy_(values)


def _is_same(buffer: Any, values: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return buffer.shape == values.shape and bool(torch.equal(buffer, values))


@contextlib.contextmanager
def kept_random_states(seed: int) -> Iterator[None]:
    """Seed all generators, so that both variants draw the same, and put their states back."""
    torch: Any = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with contextlib.ExitStack() as stack:
        if torch is not None:
            # Devices that nothing has used yet have no state, and are not started for it.
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            stack.enter_context(torch.random.fork_rng(devices=list(devices)))
            torch.random.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextlib.contextmanager
def no_gradients() -> Iterator[None]:
    """Record nothing for a backward pass."""
    torch: Any = sys.modules.get("torch")
    with contextlib.nullcontext() if torch is None else torch.no_grad():
        yield
