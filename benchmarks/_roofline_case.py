# SPDX-License-Identifier: Apache-2.0
"""What a case of roofline_cases.py is, what may hold of its row, and the cases that every device has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._roofline_models import ModelAndInputs, depthwise, streamed
from gpuprof.analyze.roofline.rows import RooflineRow

CALLS = 15
_DEPTHWISE_FLOPS = 4 * 8 * 32 * 32 * 64 * 9


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its inputs, the operator that counts, and what must hold of its row."""

    name: str
    make: Callable[[], ModelAndInputs]
    operator: str
    must: str
    holds: Callable[[RooflineRow], bool]
    backward: bool = False
    phase: str = "forward"
    calls: int = CALLS


def memory(least: float) -> Callable[[RooflineRow], bool]:
    """Require a memory-bound row that reaches at least this fraction of its ceiling."""
    return lambda row: row.bound == "memory" and (row.roof_share or 0) >= least


def compute(least: float) -> Callable[[RooflineRow], bool]:
    """Require a compute-bound row that reaches at least this fraction of its ceiling."""
    return lambda row: row.bound == "compute" and (row.roof_share or 0) >= least


def counted(name: str, make: Callable[[], ModelAndInputs], operator: str, flops: int) -> Case:
    """Return a case whose work is known beforehand."""
    return Case(name, make, operator, *_exactly(flops))


def _exactly(flops: int) -> tuple[str, Callable[[RooflineRow], bool]]:
    return f"{flops:,} FLOPs", lambda row: row.flops == flops


def far_cases(elements: int, device: str = "cpu") -> list[Case]:
    """Return a copy and a sum of fp32 numbers, four times as large as the cache."""
    must, holds = "memory, u >= 0.8", memory(0.8)
    return [
        Case("copy, 4x the cache", lambda: streamed(elements, 1, device), "aten::copy_", must, holds),
        Case(
            "add, 4x the cache, preallocated", lambda: streamed(elements, 2, device), "aten::add", must, holds
        ),
    ]


def depthwise_case(device: str = "cpu") -> Case:
    """Return a backward pass whose work depends on its groups."""
    return Case(
        "depthwise convolution, backward",
        lambda: depthwise(device),
        "aten::convolution_backward",
        *_exactly(_DEPTHWISE_FLOPS),
        backward=True,
        phase="backward",
    )
