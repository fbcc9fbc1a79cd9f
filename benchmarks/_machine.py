# SPDX-License-Identifier: Apache-2.0
"""What a reader must know of the machine and the code before comparing figures."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def describe_machine() -> dict[str, Any]:
    """Return the current state of the machine; None where a value cannot be read."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "governor": _read(_GOVERNOR),
        "load_average": load_average(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "nvtx": _version("nvtx"),
        "nvtx_tool": os.environ.get("NVTX_INJECTION64_PATH"),
    }


def load_average() -> float | None:
    """Return the mean number of runnable processes over the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def describe_code() -> dict[str, Any]:
    """Return gpuprof's version and the revision that the repository is at."""
    import gpuprof

    status = _git("status", "--porcelain")
    return {
        "version": gpuprof.__version__,
        "revision": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
    }


def _cpu_model() -> str | None:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
