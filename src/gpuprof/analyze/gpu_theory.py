# SPDX-License-Identifier: Apache-2.0
"""What a GPU could do at best by its clocks and its kind, for where nothing can be measured.

By compute capability, never by a name, and dense: what sparse matrices gain is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprof.analyze.ceiling_rows import Ceiling

THEORETICAL = "theoretical"
# Operations of each multiprocessor in each clock cycle, by compute capability: multiply-adds of fp32 and fp64
# (tensor cores too, where they have fp64), and dense products of fp16 by tensor cores. The smaller kinds of
# 8.6, 8.9 and 12.0 do half of the last where sums are kept in fp32.
_OPERATIONS: dict[int, tuple[int, int, int]] = {
    70: (128, 64, 1024),
    75: (128, 4, 1024),
    80: (128, 128, 2048),
    86: (256, 4, 1024),
    89: (256, 4, 1024),
    90: (256, 256, 4096),
    100: (256, 128, 8192),
    120: (256, 4, 1024),
}
_FIRST_WITH_BF16, _FIRST_WITH_INT8, _FIRST_WITH_FP8 = 80, 75, 89


def is_theoretical(ceiling: Ceiling) -> bool:
    """Tell whether a ceiling was worked out and not measured."""
    return THEORETICAL in ceiling.method


def theoretical_ceilings(device: str, facts: dict[str, Any]) -> Iterator[Ceiling]:
    """Yield a row for each type and for memory; nothing of what the driver does not tell."""
    cycles = 1000.0 * facts["clock_khz"] * facts["multiprocessors"]
    clocks = f"{facts['multiprocessors']} multiprocessors at {facts['clock_khz'] / 1000:,.0f} MHz"
    for dtype, operations in _by_type(facts["capability"]).items():
        if cycles > 0:
            method = f"{THEORETICAL}: {operations:,} a clock, {clocks}"
            yield Ceiling(
                device, f"compute.{THEORETICAL}", dtype, operations * cycles, "flop_per_s", None, method
            )
    bandwidth = 2000.0 * facts["memory_clock_khz"] * facts["memory_bus_bits"] / 8
    if bandwidth > 0:
        bus = f"{facts['memory_bus_bits']:,} bits at 2 x {facts['memory_clock_khz'] / 1000:,.0f} MHz"
        method = f"{THEORETICAL}: {bus}"
        yield Ceiling(device, f"memory.dram.{THEORETICAL}", None, bandwidth, "bytes_per_s", None, method)


def _by_type(capability: int) -> dict[str, int]:
    if capability not in _OPERATIONS:
        return {}
    fp32, fp64, fp16 = _OPERATIONS[capability]
    found = {"fp64": fp64, "fp32": fp32, "fp16": fp16}
    if capability >= _FIRST_WITH_BF16:
        found |= {"bf16": fp16, "tf32": fp16 // 2}
    if capability >= _FIRST_WITH_INT8:
        found["int8"] = 2 * fp16
    if capability >= _FIRST_WITH_FP8:
        found["fp8"] = 2 * fp16
    return found
