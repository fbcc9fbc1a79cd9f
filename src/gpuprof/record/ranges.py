# SPDX-License-Identifier: Apache-2.0
"""NVTX both ways: ranges of other libraries come into the run, our spans and layers go to another tool.

Where the environment names a tool such as Nsight Systems, it gets all ranges and gpuprof collects none.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from gpuprof import _native
from gpuprof.record.collector import NVTX_VARIABLE, nvtx_came_first, other_nvtx_tool


@functools.cache
def attach_tool() -> str | None:
    """Announce spans and layers to the tool that the environment names; harmless where there is none.

    Returns why the tool cannot have them, or None. What fails here stays out of the measured program.
    """
    tool = other_nvtx_tool()
    # Another copy of gpuprof, which a parent process named, records nothing in this process.
    if not tool or Path(tool).name.startswith("libgpuprof"):
        return None
    return _native.attach_nvtx_tool(os.fsencode(tool))


def range_source(*, ended: bool = False) -> str:
    """Say how ranges come into the recording, or why they do not; `ended` at its end."""
    tool = other_nvtx_tool()
    if tool is None:
        if ended and nvtx_came_first() and _native.nvtx_attachments() == 0:
            return "off: nvtx was imported before gpuprof: import gpuprof first, or use `gpuprof run`"
        return "on: collected"
    if not tool:
        return f"off: {NVTX_VARIABLE} is set and empty"
    if Path(tool).name.startswith("libgpuprof"):
        return f"off: another copy of gpuprof is named by {NVTX_VARIABLE}: {tool}"
    gets = "gets spans and layers too" if attach_tool() is None else "could not be attached"
    return f"off: another tool collects, and {gets}: {tool}"


def tool_notes() -> list[str]:
    """Return a line where the tool that the environment names could not be attached."""
    failure = attach_tool()
    return [] if failure is None else [f"the NVTX tool named by {NVTX_VARIABLE} was ignored: {failure}"]
