# SPDX-License-Identifier: Apache-2.0
"""Models and inputs on a device of PyTorch, where it is imported, and its statistics of memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from gpuprof.bench.measure.memory import reset_host_peak
from gpuprof.errors import BenchmarkError


def torch_module() -> Any:
    """Return PyTorch where the program has imported it; None otherwise."""
    return sys.modules.get("torch")


def on_device(model: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return a module in evaluation mode on the device; other callables as they are.

    Raises BenchmarkError where PyTorch finds no such device.
    """
    torch = torch_module()
    if device.startswith("cuda") and (torch is None or not torch.cuda.is_available()):
        raise BenchmarkError(
            "no_such_device", f"device {device!r}: PyTorch finds none", hint="use device='cpu'"
        )
    if torch is None or not isinstance(model, torch.nn.Module):
        return model
    placed: Callable[..., Any] = model.to(device).eval()
    return placed


def moved(inputs: Any, device: str) -> Any:
    """Return inputs whose tensors are on the device."""
    torch = torch_module()
    if isinstance(inputs, tuple):
        return tuple(moved(each, device) for each in inputs)
    if isinstance(inputs, dict):
        return {name: moved(each, device) for name, each in inputs.items()}
    return inputs.to(device) if torch is not None and isinstance(inputs, torch.Tensor) else inputs


def without_gradients() -> contextlib.AbstractContextManager[Any]:
    """Return the context of a call without gradients."""
    torch = torch_module()
    return contextlib.nullcontext() if torch is None else torch.inference_mode()


def reset_memory_stats() -> None:
    """Reset the peaks of memory: of PyTorch's allocator on CUDA, and of this process on Linux."""
    torch = torch_module()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    reset_host_peak()
