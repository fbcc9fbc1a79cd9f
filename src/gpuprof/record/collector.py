# SPDX-License-Identifier: Apache-2.0
"""Naming our collector to PyTorch, which looks for one while it is imported, and to NVTX.

This is all that `import gpuprof` does by itself, so nothing else is imported here.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

COLLECTOR_VARIABLE = "INTEL_LIBITTNOTIFY64"
# Read by each library that announces ranges with NVTX, at its first range.
NVTX_VARIABLE = "NVTX_INJECTION64_PATH"

_offered = False
_nvtx_came_first = False


@functools.cache  # until the end of the program, which may have changed what finds it
def collector_path() -> Path:
    """Return the shared library that PyTorch's ITT loader is to open."""
    suffix = ".dylib" if sys.platform == "darwin" else ".so"
    beside = Path(__file__).resolve().parent.parent / f"libgpuprof_core{suffix}"
    if beside.exists():
        return beside
    # An editable install keeps what was compiled apart from these files.
    import importlib.util

    native = importlib.util.find_spec("gpuprof._native")
    return beside if native is None or native.origin is None else Path(native.origin).with_name(beside.name)


def offer_collector() -> None:
    """Name our library to PyTorch and to NVTX.

    Nothing is changed where torch was imported before, or where another tool, such as VTune or Nsight
    Systems, is named. Child processes inherit both names; in one that records nothing they do nothing.
    """
    global _offered, _nvtx_came_first
    if NVTX_VARIABLE not in os.environ:
        os.environ[NVTX_VARIABLE] = str(collector_path())
        _nvtx_came_first = "nvtx" in sys.modules
    if "torch" not in sys.modules:
        os.environ.setdefault(COLLECTOR_VARIABLE, str(collector_path()))
        _offered = _is_ours(os.environ[COLLECTOR_VARIABLE])


def is_collecting() -> bool:
    """Whether PyTorch's announcements reach our library."""
    return _offered


def other_collector() -> str | None:
    """Return the library that the environment names as PyTorch's collector, or None where it is ours."""
    named = os.environ.get(COLLECTOR_VARIABLE)
    return None if named is None or _is_ours(named) else named


def other_nvtx_tool() -> str | None:
    """Return the library of another tool that NVTX ranges go to, or None where they come to us."""
    named = os.environ.get(NVTX_VARIABLE)
    return None if named is None or _is_ours(named) else named


def nvtx_came_first() -> bool:
    """Return whether the package nvtx was imported before it could find our library."""
    return _nvtx_came_first


def _is_ours(path: str) -> bool:
    return Path(path) == collector_path()
