# SPDX-License-Identifier: Apache-2.0
"""NVTX both ways: ranges of other libraries come into the run, our spans and layers go to another tool.

Where the environment names a tool such as Nsight Systems, it gets all ranges and gpuprof collects none.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.record.collector import NVTX_VARIABLE, nvtx_came_first, other_nvtx_tool
from gpuprof.record.facts import Method, NativeReason, Note, NoteCode, Reason, SourceStatus, note


@functools.cache
def attach_tool() -> NativeReason | None:
    """Announce spans and layers to the tool that the environment names; harmless where there is none.

    Returns why the tool cannot have them, or None. What fails here stays out of the measured program.
    """
    tool = other_nvtx_tool()
    # Another copy of gpuprof, which a parent process named, records nothing in this process.
    if not tool or Path(tool).name.startswith("libgpuprof"):
        return None
    return _native.attach_nvtx_tool(os.fsencode(tool))


def range_source(*, ended: bool = False) -> SourceStatus:
    """Return whether ranges come into the recording; `ended` at its end."""
    tool = other_nvtx_tool()
    if tool is None:
        if ended and nvtx_came_first() and _native.nvtx_attachments() == 0:
            return SourceStatus.off(Reason.NVTX_IMPORTED_FIRST)
        return SourceStatus.on(Method.COLLECTED)
    if not tool:
        return SourceStatus.off(Reason.NVTX_VARIABLE_EMPTY, variable=NVTX_VARIABLE)
    if Path(tool).name.startswith("libgpuprof"):
        return SourceStatus.off(Reason.NVTX_OTHER_GPUPROF, variable=NVTX_VARIABLE, tool=tool)
    gets_all = attach_tool() is None
    return SourceStatus.off(
        Reason.NVTX_TOOL_COLLECTS if gets_all else Reason.NVTX_TOOL_NOT_ATTACHED, tool=tool
    )


def tool_notes() -> list[Note]:
    """Return a note where the tool that the environment names could not be attached."""
    failure = attach_tool()
    if failure is None:
        return []
    return [note(NoteCode.NVTX_TOOL_IGNORED, variable=NVTX_VARIABLE, error=failure)]


# ---- what a capture under Nsight Systems contains -------------------------------------------

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
        # A query for the runtime initializes CUDA, which only a program that uses it may be made to do.
        return torch.cuda.cudart() if torch is not None and torch.cuda.is_available() else None
    except (AttributeError, RuntimeError, AssertionError):
        return None


def _call(runtime: Any, function: str) -> None:
    try:
        if runtime is not None:
            getattr(runtime, function)()
    except (AttributeError, RuntimeError):
        # The program continues without the mark; Nsight then captures nothing, and reports that.
        return
