# SPDX-License-Identifier: Apache-2.0
"""What of gpuprof works on this machine, what is missing, and the mend.

The driver, CUPTI and PyTorch are asked in processes of their own, so that none can take this one down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuprof.doctor import asked, extras, frameworks, host, nvidia, own
from gpuprof.doctor.check import Check, guarded, is_broken

__all__ = ["Check", "examine", "is_broken"]

_CHECKS: tuple[tuple[str, Callable[[], Iterable[Check]]], ...] = (
    ("machine", host.machine),
    ("clock", host.clock),
    ("python", host.python),
    ("gpuprof", own.gpuprof),
    ("namesake", own.namesake),
    ("DuckDB", own.duckdb),
    ("torch", frameworks.torch),
    ("ITT", frameworks.itt),
    ("NVTX", frameworks.nvtx),
    ("NVIDIA driver", nvidia.driver),
    ("GPU", nvidia.gpu),
    ("NVML", nvidia.nvml),
    ("CUPTI", nvidia.cupti),
    ("GPU counters", nvidia.counters),
    ("nsys", nvidia.nsys),
    ("NVRTC", nvidia.nvrtc),
    ("nvcc", nvidia.nvcc),
    ("extras", extras.extras),
    ("Chromium", extras.browser),
    ("permissions", host.permissions),
    ("disk", host.disk),
)


def examine() -> list[Check]:
    """Look at everything that gpuprof stands on; never raises."""
    asked.forget()
    return [check for name, look in _CHECKS for check in guarded(name, look)]
