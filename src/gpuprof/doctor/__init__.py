# SPDX-License-Identifier: Apache-2.0
"""Checks of an installation: what works on this machine, what is missing, and how to fix it.

The driver, CUPTI and PyTorch are checked in separate processes, so that a crash does not end this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuprof.doctor import extras, frameworks, host, machine_facts, nvidia, own
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
    """Run all checks; never raises."""
    machine_facts.forget()
    return [check for name, look in _CHECKS for check in guarded(name, look)]
