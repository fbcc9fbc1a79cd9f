# SPDX-License-Identifier: Apache-2.0
"""Models of one operator each, for the roofline's known cases, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof  # noqa: F401

# isort: split
import torch
from torch import nn

ModelAndInputs: TypeAlias = tuple[nn.Module, tuple[Any, ...]]


class Call(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Any) -> Any:
        """Call it."""
        return self.function(*values)


def streamed(elements: int, inputs: int, device: str = "cpu") -> ModelAndInputs:
    """Return a copy or a sum into memory that is there already."""
    out = torch.zeros(elements, device=device)
    values = tuple(torch.ones(elements, device=device) for _ in range(inputs))
    if inputs == 1:
        return Call(lambda a: out.copy_(a)), values
    return Call(lambda a, b: torch.add(a, b, out=out)), values


def product(size: int, fill: Callable[..., torch.Tensor] = torch.ones, device: str = "cpu") -> ModelAndInputs:
    """Return a matrix product in bf16, into memory that is there already."""
    a, b, out = (fill(size, size, dtype=torch.bfloat16, device=device) for _ in range(3))
    return Call(lambda x, y: torch.mm(x, y, out=out)), (a, b)


def convolution(
    channels: int, batch: int, fill: Callable[..., torch.Tensor] = torch.ones, **options: Any
) -> ModelAndInputs:
    """Return a convolution such as residual networks are made of, over pictures of 58 x 58."""
    layout = torch.channels_last
    model = nn.Conv2d(channels, channels, 3, bias=False, **options).to(memory_format=layout)
    return model, (fill(batch, channels, 58, 58, **options).to(memory_format=layout),)


def linear(weights_bytes: int, columns: int, dtype: torch.dtype, device: str = "cpu") -> ModelAndInputs:
    """Return a layer whose weights are so large, for one row."""
    options = {"dtype": dtype, "device": device}
    rows = weights_bytes // (columns * dtype.itemsize)
    return nn.Linear(columns, rows, **options), (torch.ones(1, columns, **options),)


def softmax_into(values: torch.Tensor) -> ModelAndInputs:
    """Return a softmax over each row, into memory that is there already."""
    out = torch.zeros_like(values)
    return Call(lambda x: torch._softmax(x, -1, False, out=out)), (values,)


def depthwise(device: str = "cpu") -> ModelAndInputs:
    """Return a convolution with one group for each channel."""
    model = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False, device=device)
    return model, (torch.ones(8, 64, 32, 32, device=device, requires_grad=True),)
