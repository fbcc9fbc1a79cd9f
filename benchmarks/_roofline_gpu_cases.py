# SPDX-License-Identifier: Apache-2.0
"""Cases of roofline_cases.py for a GPU. Their labels follow from arithmetic; no GPU confirmed them yet."""

from __future__ import annotations

from benchmarks._roofline_case import Case, compute, counted, depthwise_case, far_cases, memory
from benchmarks._roofline_models import (
    Call,
    ModelAndInputs,
    convolution,
    linear,
    product,
    softmax_into,
    streamed,
)

# isort: split
import torch

DEVICE = "cuda"
_LEAST_FAR_BYTES = 1 << 30


def gpu_cases() -> list[Case]:
    """Return the cases, with sizes that fit the GPU's cache."""
    return [
        *far_cases(far_elements(), DEVICE),
        Case(
            "bf16 product 8192",
            lambda: product(8192, torch.randn, DEVICE),
            "aten::mm",
            "compute, u >= 0.7",
            compute(0.7),
        ),
        Case(
            "3x3 convolution of bf16, 256 channels",
            lambda: convolution(256, 64, torch.randn, dtype=torch.bfloat16, device=DEVICE),
            "aten::convolution",
            "compute, or nearest to it",
            lambda row: row.nearest == "compute",
        ),
        Case("bf16 linear, batch 1", far_linear, "aten::addmm", "memory", memory(0.0)),
        Case("softmax, preallocated", softmax, "aten::_softmax", "memory", memory(0.0)),
        *_small_cases(),
        depthwise_case(DEVICE),
        counted(
            "attention", attention, "aten::_scaled_dot_product_flash_attention", 4 * 2 * 8 * 1024 * 1024 * 64
        ),
    ]


def _small_cases() -> list[Case]:
    """Return sums with almost no work for the GPU: their bottleneck is the launch."""
    return [
        Case(
            "adds of 4 elements",
            lambda: streamed(4, 2, DEVICE),
            "aten::add",
            "launch: the host takes longer than the GPU",
            lambda row: row.bound == "launch",
            calls=500,
        ),
        Case(
            "add of 4 elements after a product",
            after_a_product,
            "aten::add",
            "latency, and not launch: it waits in line",
            lambda row: row.bound in ("latency", "underutilized"),
            calls=100,
        ),
    ]


def far_elements() -> int:
    """Return how many fp32 numbers no cache holds."""
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
    return max(4 * int(cache), _LEAST_FAR_BYTES) // 4


def far_linear() -> ModelAndInputs:
    """Return a layer whose weights no cache holds, for one row."""
    return linear(4 * far_elements(), 8192, torch.bfloat16, DEVICE)


def softmax() -> ModelAndInputs:
    """Return a softmax over what no cache holds."""
    return softmax_into(torch.randn(far_elements() // 4096, 4096, device=DEVICE))


def after_a_product() -> ModelAndInputs:
    """Return a long product and a short sum after it: the sum waits in line."""
    a, b, out = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
    small, sums = torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.mm(x, y, out=out)
        return torch.add(small, small, out=sums)

    return Call(call), (a, b)


def attention() -> ModelAndInputs:
    """Return scaled dot products of 8 heads, by the flash kernel."""
    values = tuple(torch.randn(2, 8, 1024, 64, dtype=torch.float16, device=DEVICE) for _ in range(3))
    return Call(_flash), values


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)
