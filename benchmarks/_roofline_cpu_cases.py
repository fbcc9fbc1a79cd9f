# SPDX-License-Identifier: Apache-2.0
"""Cases of roofline_cases.py for the processors, with sizes that fit their caches."""

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
from torch import nn

from gpuprof import _native
from gpuprof.analyze.roofline.labels import Resource
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.record.processor import data_caches, usable_processors

ABOVE_ROOF = 1.05
# A library that takes this many times as long as reading alone is slow, and one that takes so little is not.
_SURELY_SLOW, _SURELY_FAST = 0.5, 0.8
_AS_THE_LIBRARY_READS = "memory where the library reads as fast as memory delivers, else underutilized"


def cpu_cases() -> list[Case]:
    """Return the cases, with sizes that fit this machine's caches."""
    return [
        *far_cases(4 * last_cache_bytes() // 4),  # elements of fp32
        Case("bf16 product 2048", lambda: product(2048), "aten::mm", "compute, u >= 0.7", compute(0.7)),
        Case(
            "3x3 convolution, 64 channels",
            lambda: convolution(64, 8),
            "aten::convolution",
            "compute",
            compute(0.0),
        ),
        _linear_case("bf16 linear, batch 1", torch.bfloat16),
        _linear_case("fp32 linear, batch 1", torch.float32),
        Case("add of 3 MB", lambda: streamed(250_000, 2), "aten::add", "a cache, at most 105%", cached),
        Case("add of 12 MB", lambda: streamed(1_000_000, 2), "aten::add", "a cache, at most 105%", cached),
        *_page_cases(),
        Case(
            "add of 4 elements",
            lambda: streamed(4, 2),
            "aten::add",
            "latency",
            lambda row: row.bound == "latency",
            calls=200,
        ),
        depthwise_case(),
        *_counted_cases(),
    ]


def _linear_case(name: str, dtype: torch.dtype) -> Case:
    """Return a layer whose weights are four times as large as the cache."""
    return Case(
        name,
        lambda: linear(4 * last_cache_bytes(), 4096, dtype),
        "aten::addmm",
        _AS_THE_LIBRARY_READS,
        as_the_library_reads,
    )


def _page_cases() -> list[Case]:
    """Return the same work into memory that the system has yet to hand out, and into memory that is there."""
    return [
        Case(
            "softmax into fresh 134 MB", lambda: softmax(fresh=True), "aten::_softmax", "page faults", faults
        ),
        Case("softmax, preallocated", lambda: softmax(fresh=False), "aten::_softmax", "memory", memory(0.0)),
        Case("relu into fresh 256 MB", lambda: relu(fresh=True), "aten::relu", "page faults", faults),
        Case("relu in place, 256 MB", lambda: relu(fresh=False), "aten::relu_", "memory", memory(0.0)),
    ]


def _counted_cases() -> list[Case]:
    return [
        counted(
            "attention",
            attention,
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            4 * 2 * 8 * 256 * 256 * 64,
        ),
        counted("LSTM", lstm, "LSTM", 2 * 8 * 32 * 4 * 128 * (64 + 128)),
    ]


def last_cache_bytes() -> int:
    """Return the size of the last-level cache, or a common size where it is unknown."""
    caches = data_caches(usable_processors())
    last = max((cache.level for cache in caches), default=0)
    return sum(cache.bytes for cache in caches if cache.level == last) or 32 << 20


def cached(row: RooflineRow) -> bool:
    """Return whether a cache served the row, at no more than the cache's bandwidth."""
    return row.memory_level in ("l1", "l2", "l3") and (row.used[Resource.MEMORY] or 0) <= ABOVE_ROOF


def as_the_library_reads(row: RooflineRow) -> bool:
    """Hold the label against the time that the same bytes need when they are only read, right now."""
    array_bytes = 4 * last_cache_bytes()
    rates = _native.measure_streams(["read"], array_bytes, usable_processors(), 0.01, 8)["read"]["per_second"]
    share = (row.bytes or 0) / max(rates) * 1e9 / row.time_ns
    may_be = ({"memory"} if share > _SURELY_SLOW else set()) | (
        {"underutilized"} if share < _SURELY_FAST else set()
    )
    return row.bound in may_be


def faults(row: RooflineRow) -> bool:
    """Bound by the pages that the system hands out."""
    return row.bound == "page faults"


def softmax(*, fresh: bool) -> ModelAndInputs:
    """Return a softmax over 134 MB."""
    values = torch.ones(8192, 4096)
    if fresh:
        return nn.Softmax(dim=-1), (values,)
    return softmax_into(values)


def relu(*, fresh: bool) -> ModelAndInputs:
    """Return a relu of 256 MB."""
    return nn.ReLU(inplace=not fresh), (torch.ones(64_000_000),)


def attention() -> ModelAndInputs:
    """Return scaled dot products of 8 heads."""
    values = tuple(torch.ones(2, 8, 256, 64) for _ in range(3))
    return Call(torch.nn.functional.scaled_dot_product_attention), values


def lstm() -> ModelAndInputs:
    """Return one layer, for 8 sequences of 32 steps."""
    return nn.LSTM(64, 128, batch_first=True, bias=False), (torch.ones(8, 32, 64),)
