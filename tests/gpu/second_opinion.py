# SPDX-License-Identifier: Apache-2.0
"""CUPTI's records as NVIDIA's own package `cupti-python` reads them, which the user installs."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_BUFFER_BYTES = 8 << 20
_FORCED = 1
# Of CUpti_ActivityFlag: where a marker's range begins.
_MARKER_START = 1 << 1


def why_no_cupti_python() -> str | None:
    """Return why there is no second opinion, or None."""
    if importlib.util.find_spec("cupti") is None:
        return "cupti-python is not installed: pip install cupti-python"
    return None


def recorded_by_cupti_python(work: Callable[[], None]) -> dict[str, Any]:
    """Return names, nanoseconds and bytes of the work: `kernels`, `copies`, and the names of `ranges`."""
    from cupti import cupti

    kinds = (cupti.ActivityKind.CONCURRENT_KERNEL, cupti.ActivityKind.MEMCPY, cupti.ActivityKind.MARKER)
    found: dict[str, list[Any]] = {"kernels": [], "copies": [], "ranges": []}

    def completed(records: list[Any]) -> None:
        for record in records:
            if record.kind == kinds[0]:
                found["kernels"].append([record.start, demangled(record.name), record.end - record.start])
            elif record.kind == kinds[1]:
                found["copies"].append([record.start, int(record.bytes), record.end - record.start])
            elif record.kind == kinds[2] and int(record.flags_) & _MARKER_START:
                found["ranges"].append([record.timestamp, record.name])

    cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), completed)
    for kind in kinds:
        cupti.activity_enable(kind)
    work()
    for kind in kinds:
        cupti.activity_disable(kind)
    cupti.activity_flush_all(_FORCED)
    return {name: [rest for _, *rest in sorted(records)] for name, records in found.items()}


def cupti_for_nvtx() -> str | None:
    """Return the CUPTI that PyTorch loads: NVTX hands its ranges to it."""
    from gpuprof.record.kernels import cupti_folders

    found = (path for folder in cupti_folders() for path in sorted(Path(folder).glob("libcupti.so.1?")))
    return next(map(str, found), None)


@cache
def demangled(name: str) -> str:
    """Return a C++ name as people write it."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not text:
        return name
    try:
        return ctypes.string_at(text).decode()
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))
