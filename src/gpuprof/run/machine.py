# SPDX-License-Identifier: Apache-2.0
"""The machine of a run, as far as the system reports it without special rights."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Return system, processor, cores and memory; what cannot be read is None."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
    }


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, None)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
