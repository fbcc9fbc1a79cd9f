# SPDX-License-Identifier: Apache-2.0
"""Cases of roofline_cases.py for a GPU. Their labels follow from arithmetic; no GPU confirmed them yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.roofline_cases import Call, Case, compute, memory
from gpuprof.analyze.roofline.rows import RooflineRow

DEVICE = "cuda"
_LEAST_FAR_BYTES = 256 << 20


def gpu_cases() -> list[Case]:
    """Return the cases, with sizes that fit the GPU's cache."""
    far = far_elements()
    return [
        Case("copy, 4x the cache", lambda: streamed(far, 1), "aten::copy_", "memory, u >= 0.8", memory(0.8)),
        Case(
            "add, 4x the cache, preallocated",
            lambda: streamed(far, 2),
            "aten::add",
            "memory, u >= 0.8",
            memory(0.8),
        ),
        Case("bf16 product 8192", lambda: product(8192), "aten::mm", "compute, u >= 0.7", compute(0.7)),
        Case(
            "3x3 convolution of bf16, 256 channels",
            convolution,
            "aten::convolution",
            "compute, or nearest to it",
            lambda row: row.nearest == "compute",
        ),
        Case("bf16 linear, batch 1", linear, "aten::addmm", "memory", memory(0.0)),
        Case("softmax, preallocated", softmax, "aten::_softmax", "memory", memory(0.0)),
        Case(
            "adds of 4 elements",
            lambda: streamed(4, 2),
            "aten::add",
            "launch: the host takes longer than the GPU",
            lambda row: row.bound == "launch",
            calls=500,
        ),
        Case(
            "add of 4 elements behind a product",
            behind_a_product,
            "aten::add",
            "latency, and not launch: it waits in line",
            lambda row: row.bound in ("latency", "under-utilised"),
            calls=100,
        ),
        Case(
            "depthwise convolution, backward",
            depthwise,
            "aten::convolution_backward",
            f"{4 * 8 * 32 * 32 * 64 * 9:,} FLOPs",
            lambda row: row.flops == 4 * 8 * 32 * 32 * 64 * 9,
            backward=True,
            phase="backward",
        ),
        attention_case(),
    ]


def far_elements() -> int:
    """Return how many fp32 numbers are four times as large as the cache."""
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
    return max(4 * int(cache), _LEAST_FAR_BYTES) // 4


def streamed(elements: int, inputs: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a copy or a sum into memory that is there already."""
    out = torch.zeros(elements, device=DEVICE)
    values = tuple(torch.ones(elements, device=DEVICE) for _ in range(inputs))
    if inputs == 1:
        return Call(lambda a: out.copy_(a)), values
    return Call(lambda a, b: torch.add(a, b, out=out)), values


def product(size: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a matrix product in bf16, into memory that is there already."""
    a, b, out = (torch.randn(size, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
    return Call(lambda x, y: torch.mm(x, y, out=out)), (a, b)


def convolution() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a convolution with enough to do for every multiprocessor."""
    options = {"dtype": torch.bfloat16, "device": DEVICE}
    model = nn.Conv2d(256, 256, 3, bias=False, **options).to(memory_format=torch.channels_last)
    return model, (torch.randn(64, 256, 58, 58, **options).to(memory_format=torch.channels_last),)


def linear() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a layer whose weights no cache holds, for one row."""
    columns = 8192
    rows = 2 * far_elements() // columns
    options = {"dtype": torch.bfloat16, "device": DEVICE}
    return nn.Linear(columns, rows, **options), (torch.ones(1, columns, **options),)


def softmax() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a softmax over what no cache holds."""
    values = torch.randn(far_elements() // 4096, 4096, device=DEVICE)
    out = torch.zeros_like(values)
    return Call(lambda x: torch._softmax(x, -1, False, out=out)), (values,)


def behind_a_product() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a long product and a short sum after it: the sum waits in line."""
    a, b, out = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
    small, sums = torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.mm(x, y, out=out)
        return torch.add(small, small, out=sums)

    return Call(call), (a, b)


def depthwise() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a convolution with one group for each channel."""
    model = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False, device=DEVICE)
    return model, (torch.ones(8, 64, 32, 32, device=DEVICE, requires_grad=True),)


def attention_case() -> Case:
    """Return scaled dot products of 8 heads, by the flash kernel."""
    flops = 4 * 2 * 8 * 1024 * 1024 * 64

    def make() -> tuple[nn.Module, tuple[Any, ...]]:
        values = tuple(torch.randn(2, 8, 1024, 64, dtype=torch.float16, device=DEVICE) for _ in range(3))
        return Call(_flash), values

    holds: Callable[[RooflineRow], bool] = lambda row: row.flops == flops  # noqa: E731
    return Case("attention", make, "aten::_scaled_dot_product_flash_attention", f"{flops:,} FLOPs", holds)


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)
