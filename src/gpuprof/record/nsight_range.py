# SPDX-License-Identifier: Apache-2.0
"""Marking what a capture under Nsight Systems shall hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuprof import _native

RANGE_NAME = "nsight_range"


@contextmanager
def nsight_range() -> Iterator[None]:
    """Mark the part of a program that `gpuprof nsys --range` captures; does nothing without Nsight.

    Begins and ends CUDA's profiler range where the program uses PyTorch with CUDA, and is an NVTX range
    `nsight_range` of the domain `gpuprof` in any case. In a recording of gpuprof it is a span of that name.
    """
    runtime = _cuda_runtime()
    _call(runtime, "cudaProfilerStart")
    try:
        with _native.span(RANGE_NAME):
            yield
    finally:
        _call(runtime, "cudaProfilerStop")


def _cuda_runtime() -> Any:
    """Return PyTorch's handle on the CUDA runtime, None where the program does not use it."""
    torch = sys.modules.get("torch")
    try:
        # Asking for the runtime initialises CUDA, which only a program that uses it may be made to do.
        return torch.cuda.cudart() if torch is not None and torch.cuda.is_available() else None
    except (AttributeError, RuntimeError, AssertionError):
        return None


def _call(runtime: Any, function: str) -> None:
    try:
        if runtime is not None:
            getattr(runtime, function)()
    except (AttributeError, RuntimeError):
        # The program goes on without the mark; Nsight then captures nothing, and says so.
        return
