# SPDX-License-Identifier: Apache-2.0
"""Prints the machine and its software as JSON: `python -m benchmarks.gpu._describe`.

In a process of its own, since a query for the device initializes CUDA. What cannot be read is None.
"""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks._machine import describe_machine

_PACKAGES = ("torch", "triton", "numpy", "duckdb", "nvidia-cuda-cupti", "nvidia-cuda-runtime", "nvidia-ml-py")
_ASKED = (
    "name",
    "driver_version",
    "memory.total",
    "power.limit",
    "clocks.max.sm",
    "persistence_mode",
    "mig.mode.current",
)


def main() -> None:
    """Print what is known."""
    machine = describe_machine()
    machine["packages"] = {name: _version(name) for name in _PACKAGES}
    machine["compiler"] = _first_line("c++", "--version")
    machine["nvcc"] = _last_line("nvcc", "--version")
    machine["gpu"] = _gpu()
    print(json.dumps(machine))


def _gpu() -> dict[str, Any] | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    asked = _first_line("nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader")
    answers = [answer.strip() for answer in asked.split(",")] if asked else []
    smi = dict(zip(_ASKED, answers, strict=False))
    return {
        "name": properties.name,
        "driver": smi.get("driver_version"),
        "cuda": torch.version.cuda,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "nvidia_smi": smi,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_line(*words: str) -> str | None:
    lines = _lines(*words)
    return lines[0] if lines else None


def _last_line(*words: str) -> str | None:
    lines = _lines(*words)
    return lines[-1] if lines else None


def _lines(*words: str) -> list[str]:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


if __name__ == "__main__":
    main()
