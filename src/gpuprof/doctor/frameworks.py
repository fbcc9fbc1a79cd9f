# SPDX-License-Identifier: Apache-2.0
"""PyTorch, and the tools that receive its ITT and NVTX ranges."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuprof.doctor import machine_facts
from gpuprof.doctor.check import Check, version_numbers

OLDEST_TORCH = (2, 4)


def torch() -> Iterator[Check]:
    """Check the version of PyTorch, and whether it can be imported."""
    facts = machine_facts.torch()
    if facts is None:
        detail = "not installed: only spans are recorded; layers and operators need it"
        yield Check("torch", "missing", detail, 'pip install "torch>={}.{}"'.format(*OLDEST_TORCH))
    elif "error" in facts:
        yield Check("torch", "problem", f"import torch fails: {facts['error']}", "install torch again")
    elif version_numbers(facts["version"]) < OLDEST_TORCH:
        wanted = "{}.{}".format(*OLDEST_TORCH)
        yield Check("torch", "problem", f"{facts['version']} is too old", f'pip install -U "torch>={wanted}"')
    else:
        build = (
            f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU"
        )
        yield Check("torch", "ok", f"{facts['version']}, {build} build")


def itt() -> Iterator[Check]:
    """Check whether PyTorch announces its operators to gpuprof."""
    facts = machine_facts.torch()
    tool = os.environ.get("INTEL_LIBITTNOTIFY64")
    if tool and not _is_ours(tool):
        hint = "unset INTEL_LIBITTNOTIFY64, or stop the tool that set it, to record operators"
        yield Check("ITT", "problem", f"another tool receives operators: {tool}", hint)
    elif platform.machine().lower() not in ("x86_64", "amd64"):
        yield Check(
            "ITT", "missing", f"unavailable on {platform.machine()}: torch.profiler records operators"
        )
    elif facts is None or "error" in facts or not machine_facts.has_native():
        yield Check("ITT", "info", "not checked: torch or the native core is missing")
    elif not facts["itt"]:
        yield Check(
            "ITT", "missing", "this torch was built without it", "use a torch wheel from pytorch.org or PyPI"
        )
    elif "torch" in sys.modules and not machine_facts.native().itt_attached():
        hint = "import gpuprof before torch, or start the program with gpuprof run"
        yield Check("ITT", "problem", "torch was imported before gpuprof", hint)
    else:
        yield Check("ITT", "ok", "torch announces its operators to gpuprof")


def _is_ours(library: str) -> bool:
    return Path(library).name.startswith("libgpuprof")


def nvtx() -> Iterator[Check]:
    """Check which tool receives NVTX ranges."""
    tool = os.environ.get("NVTX_INJECTION64_PATH")
    if tool and not _is_ours(tool):
        gets = "it receives all ranges, and gpuprof's spans and layers"
        yield Check("NVTX", "info", f"a tool is attached (NVTX_INJECTION64_PATH={tool}): {gets}")
    elif tool == "":
        hint = "unset NVTX_INJECTION64_PATH to record ranges"
        yield Check("NVTX", "info", "NVTX_INJECTION64_PATH is set and empty: ranges are not recorded", hint)
    elif not machine_facts.has_native():
        yield Check("NVTX", "info", "not checked: the native core is missing")
    else:
        version = importlib.metadata.version("nvtx") if importlib.util.find_spec("nvtx") else None
        package = f"package nvtx {version}" if version else "package nvtx not installed"
        yield Check("NVTX", "ok", f"ranges of all libraries are recorded; {package}")
