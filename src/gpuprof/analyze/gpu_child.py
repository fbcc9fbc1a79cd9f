# SPDX-License-Identifier: Apache-2.0
"""Measuring a GPU in a process of its own: a kernel that fails there spoils nothing of the program's.

What the process answers is JSON in the last line that it prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from gpuprof.analyze.ceiling_rows import Ceilings, from_dict

_PROGRAM = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from gpuprof.analyze.gpu_child import answer
answer(sys.argv[1:])
"""
LIST_SECONDS, MEASURE_SECONDS = 60, 180
# What would have the child recorded, by us or by another tool.
_NOT_FOR_THE_CHILD = ("INTEL_LIBITTNOTIFY64", "NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")


class ChildError(Exception):
    """One line that says why there is no answer."""


def list_devices() -> list[dict[str, Any]]:
    """Return what the driver tells of each GPU that CUDA shows here. Raises ChildError."""
    devices: list[dict[str, Any]] = _ask(["devices"], LIST_SECONDS)
    return devices


def measure_device(ordinal: int, facts: dict[str, Any], quick: bool) -> Ceilings:
    """Return the ceilings of one GPU. Raises ChildError."""
    found = _ask(["measure", str(ordinal), json.dumps(facts), "quick" if quick else "full"], MEASURE_SECONDS)
    try:
        return from_dict(found)
    except (ValueError, TypeError, KeyError) as error:
        raise ChildError(f"cuda:{ordinal}: its ceilings make no sense: {error}") from error


def answer(words: list[str]) -> None:
    """Be the child: print the answer to one question."""
    from gpuprof import _native

    try:
        if words[0] == "devices":
            values: Any = _native.cuda_devices()
        else:
            from gpuprof.analyze.gpu_ceilings import measure_gpu

            values = measure_gpu(int(words[1]), json.loads(words[2]), words[3] == "quick").as_dict()
    except RuntimeError as error:
        values = {"error": str(error)}
    print(json.dumps(values), flush=True)


def _ask(words: list[str], seconds: float) -> Any:
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_THE_CHILD}
    command = [sys.executable, "-c", _PROGRAM, *words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"the GPU was not measured: no answer within {seconds:.0f} s") from None
    except OSError as error:
        raise ChildError(f"the GPU was not measured: no process: {error.strerror}") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = next(reversed(done.stderr.strip().splitlines()), "no message")
        raise ChildError(f"the GPU was not measured: exit code {done.returncode}: {last[:200]}")
    try:
        found = json.loads(lines[-1])
    except ValueError as error:
        raise ChildError(f"the GPU was not measured: no answer but {lines[-1][:100]!r}") from error
    if isinstance(found, dict) and "error" in found:
        raise ChildError(f"the GPU was not measured: {found['error']}")
    return found
