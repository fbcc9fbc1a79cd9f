# SPDX-License-Identifier: Apache-2.0
"""A Python callable or a torch.nn.Module with its inputs, as a system that is loaded and prepared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gpuprof.bench.frameworks.protocol import System, SystemDescription
from gpuprof.bench.measure.outputs import fingerprint
from gpuprof.bench.measure.streaming import EndOfDataError
from gpuprof.bench.models.loaders import LoaderBatches
from gpuprof.errors import BenchmarkError
from gpuprof.record.call_arguments import arguments
from gpuprof.record.collector import is_collecting


class CallableSystem(System):
    """Calls `target` with `inputs`; None is no argument at all (see `gpuprof.benchmark`)."""

    def __init__(self, target: Any, inputs: Any = None, *, name: str | None = None) -> None:
        if not callable(target) or isinstance(target, type):
            described = f"the class {target.__name__}" if isinstance(target, type) else type(target).__name__
            raise BenchmarkError(
                "not_callable",
                f"benchmark() calls what it measures, and {described} cannot be called",
                hint="use a model or a function",
            )
        self._args, self._kwargs = ((), {}) if inputs is None else arguments(inputs)
        self._target = target
        self._name = name or str(getattr(target, "__qualname__", type(target).__name__))
        # Without arguments the callable itself: nothing is between it and the loop.
        self.run = partial(target, *self._args, **self._kwargs) if self._args or self._kwargs else target

    def describe(self) -> SystemDescription:
        """Return the callable's name and where it runs."""
        tensor = self._tensor()
        details = {}
        if self._is_module():
            torch = sys.modules["torch"]
            details["mode"] = "training" if self._target.training else "evaluation"
            details["gradients"] = "recorded" if torch.is_grad_enabled() else "off"
            details["threads"] = str(torch.get_num_threads())
            if is_collecting():
                details["operators"] = "announced to gpuprof's collector, as after any `import gpuprof`"
        device = "cpu" if tensor is None else str(tensor.device)
        return SystemDescription(
            framework="pytorch" if tensor is not None else "python",
            model=self._name,
            device=device,
            device_type=device.partition(":")[0],
            dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
            details=details,
        )

    def load(self) -> None:
        """Do nothing: a callable is loaded."""

    def prepare(self, batch_size: int) -> None:
        """Do nothing: the inputs were given."""

    def synchronize(self) -> None:
        """Wait for the device on which the parameters and inputs are."""
        wait = self.waiting()
        if wait is not None:
            wait()

    def waiting(self) -> Callable[[], object] | None:
        """Return what waits for the device, None where a call is done when it returns."""
        tensor = self._tensor()
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        if tensor is not None and tensor.device.type == "cuda":
            return partial(torch.cuda.synchronize, tensor.device)
        if tensor is not None and tensor.device.type == "mps":
            return partial(torch.mps.synchronize)
        # A function may hide its model: wait for CUDA where it has been used.
        return partial(torch.cuda.synchronize) if torch.cuda.is_initialized() else None

    def inputs_fingerprint(self) -> int:
        """Return a checksum of the inputs' values."""
        return fingerprint([list(self._args), self._kwargs])

    def _is_module(self) -> bool:
        torch: Any = sys.modules.get("torch")
        return torch is not None and isinstance(self._target, torch.nn.Module)

    def _tensor(self) -> Any:
        """Return a parameter of the model or a tensor of the inputs; None where there is none."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        values = [*self._target.parameters()] if self._is_module() else []
        values += [*self._args, *self._kwargs.values()]
        return next((value for value in values if isinstance(value, torch.Tensor)), None)


class StreamedCallable(CallableSystem):
    """Calls `target` with the batches of an iterable, one after the other; the first one is there at once."""

    def __init__(self, target: Any, batches: Iterable[Any], *, name: str | None = None) -> None:
        self._batches = LoaderBatches(batches, "inputs")
        try:
            first = self._batches.next()
        except EndOfDataError as error:
            raise BenchmarkError(
                "no_samples", "inputs: the iterator gave no batch", hint="give at least two batches"
            ) from error
        super().__init__(target, first, name=name)
        self.run = self._call

    @property
    def passes(self) -> int:
        """How often the iterable was read to its end."""
        return self._batches.passes

    def next_inputs(self) -> int:
        """Take the next batch; returns its samples, 1 where it has no length."""
        batch = self._batches.next()
        self._args, self._kwargs = arguments(batch)
        first: Any = next(iter((*self._args, *self._kwargs.values())), None)
        return len(first) if getattr(first, "shape", ()) or isinstance(first, (list, tuple)) else 1

    def _call(self) -> object:
        return self._target(*self._args, **self._kwargs)


def callable_system(target: Any, inputs: Any, name: str | None, *, stream: bool = False) -> CallableSystem:
    """Return the system of a callable. Raises BenchmarkError for inputs that cannot be streamed."""
    if not stream:
        return CallableSystem(target, inputs, name=name)
    if not isinstance(inputs, Iterable) or isinstance(inputs, (dict, str)) or hasattr(inputs, "shape"):
        raise BenchmarkError(
            "invalid_loader",
            f"stream=True: inputs of type {type(inputs).__name__} are one batch",
            hint="give an iterable of batches, such as a DataLoader",
        )
    return StreamedCallable(target, inputs, name=name)
