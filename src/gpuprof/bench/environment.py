# SPDX-License-Identifier: Apache-2.0
"""Where and when something was measured: what a figure is worth nothing without."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuprof.run.machine import describe_machine

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_DISTRIBUTIONS = ("gpuprof-native", "numpy", "torch", "onnxruntime", "jax", "jaxlib", "tensorrt")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_GIT_LIMIT_S = 10


def describe_environment() -> dict[str, Any]:
    """Return machine, versions, threads, revision of the working directory and date; None is unavailable."""
    torch = sys.modules.get("torch")
    return {
        **describe_machine(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": _governor(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: found for name in _DISTRIBUTIONS if (found := _version(name)) is not None},
        "threads": None if torch is None else torch.get_num_threads(),
        "variables": {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        "revision": _git("rev-parse", "HEAD"),
        "changed_files": _changed_files(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _changed_files() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _git(*words: str) -> str | None:
    """Return what git says of the working directory; None without git, and outside a repository."""
    command = ["git", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
