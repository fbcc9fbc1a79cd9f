# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver and the libraries that need it.

CUPTI is loaded only if the driver works, because some versions crash without a driver.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuprof.doctor import machine_facts
from gpuprof.doctor.check import Check, Status
from gpuprof.doctor.probes import counters_are_restricted
from gpuprof.run.native_messages import NATIVE, hint_text


def driver() -> Iterator[Check]:
    """Check whether the driver works."""
    facts = machine_facts.driver()
    if "missing" in facts:
        hint = "install the driver if this machine has an NVIDIA GPU"
        yield Check("NVIDIA driver", "missing", facts["missing"], hint)
    elif "error" in facts:
        yield Check("NVIDIA driver", "problem", f"loading it fails: {facts['error']}", "install it again")
    elif facts["init"] != 0:
        hint = "check that nvidia-smi works, and that the container has access to the GPU"
        yield Check("NVIDIA driver", "problem", f"cuInit returns error {facts['init']}", hint)
    else:
        supports = f"CUDA {facts['version'] // 1000}.{facts['version'] % 1000 // 10}"
        yield Check("NVIDIA driver", "ok", f"supports up to {supports}")


def gpu() -> Iterator[Check]:
    """Report the devices."""
    devices = machine_facts.driver().get("devices", [])
    for ordinal, (name, memory_bytes, capability) in enumerate(devices):
        detail = f"{name}, {memory_bytes / 1e9:.1f} GB, compute capability {capability}"
        yield Check(f"GPU {ordinal}", "info", detail)
    if not devices:
        yield Check("GPU", "info", "none found: only the CPU is recorded")


def nvml() -> Iterator[Check]:
    """Check whether devices can be sampled."""
    facts = machine_facts.nvml()
    if "missing" in facts:
        yield Check(
            "NVML", "missing", f"GPUs are not sampled: {facts['missing']}", "NVML is part of the driver"
        )
    elif "package" in facts:
        detail = "GPUs are not sampled: nvidia-ml-py is not installed"
        yield Check("NVML", "missing", detail, 'pip install "nvidia-ml-py>=12"')
    elif "driver" in facts:
        devices = ", ".join(facts["devices"]) or "no device"
        yield Check("NVML", "ok", f"driver {facts['driver']}: {devices}; devices are sampled")
    else:
        detail = f"GPUs are not sampled: NVML fails: {facts.get('nvml') or facts.get('error')}"
        yield Check("NVML", "problem", detail, "check that nvidia-smi works")


def cupti() -> Iterator[Check]:
    """Check whether kernels and copies can be traced."""
    found = list(dict.fromkeys(path.resolve() for path in _cupti_libraries()))
    listed = ", ".join([*_distribution_versions("nvidia-cuda-cupti"), *map(str, found)]) or "not found"
    if machine_facts.driver().get("init") != 0:
        # Some versions of CUPTI crash without a driver.
        yield Check("CUPTI", "info", f"{listed}; not loaded, because it needs the NVIDIA driver")
        return
    facts = machine_facts.cupti()
    if why := _refused(facts):
        status: Status = "problem" if found else "missing"
        yield Check("CUPTI", status, f"GPU records are off: {why[0]}", why[1])
    else:
        yield Check("CUPTI", "ok", f"{facts['version']} at {facts['path']}; traces kernels and copies")


def counters() -> Iterator[Check]:
    """Check whether `--counters` works, as far as possible without a kernel."""
    if machine_facts.driver().get("init") != 0:
        yield Check("GPU counters", "info", "unavailable: they need a GPU and the NVIDIA driver")
        return
    facts = machine_facts.cupti()
    why = _refused(facts) or _refused({"reason": facts["no_counters"]})
    restricted = counters_are_restricted()
    if why:
        yield Check("GPU counters", "missing", f"unavailable: {why[0]}", why[1])
    elif restricted:
        hint = (
            "run as root or with CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
        yield Check(
            "GPU counters", "missing", "restricted to administrators; tracing needs no permission", hint
        )
    else:
        access = "permission unknown" if restricted is None else "this process has permission"
        yield Check("GPU counters", "ok", f"gpuprof run --counters reads them; {access}")


def _refused(facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return why a probe or its library failed, and the hint; None if it did not."""
    if "error" in facts:
        return facts["error"], ""
    reason = facts["reason"]
    return None if reason is None else (NATIVE.text(reason["code"], reason), hint_text(reason))


def _cupti_libraries() -> Iterator[Path]:
    """Yield the files in the wheels' folders, then the toolkits'."""
    for entry in dict.fromkeys(sys.path):
        for folder in ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib"):
            yield from sorted(Path(entry, folder).glob("libcupti.so*"))
    toolkits = [os.environ.get(key) for key in ("CUDA_HOME", "CUDA_PATH")] + sorted(
        map(str, Path("/usr/local").glob("cuda*"))
    )
    for toolkit in filter(None, toolkits):
        for folder in ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib"):
            yield from sorted(Path(toolkit, folder).glob("libcupti.so*"))


def _distribution_versions(prefix: str) -> list[str]:
    names = (prefix, f"{prefix}-cu13", f"{prefix}-cu12", f"{prefix}-cu11")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def nsys() -> Iterator[Check]:
    """Report whether Nsight Systems is installed."""
    path = shutil.which("nsys")
    yield Check(
        "nsys",
        "info",
        path or "Nsight Systems not found: gpuprof nsys prints the command lines for another machine",
    )


def nvrtc() -> Iterator[Check]:
    """Check whether the kernels that measure GPU ceilings can be compiled, if there is a GPU."""
    if not machine_facts.driver().get("devices"):
        return
    facts = machine_facts.nvrtc()
    if why := _refused(facts):
        yield Check("NVRTC", "missing", f"GPU ceilings are calculated from clocks: {why[0]}", why[1])
    else:
        yield Check(
            "NVRTC",
            "ok",
            f"{facts['version']} at {facts['path']}; compiles the kernels that measure ceilings",
        )


def nvcc() -> Iterator[Check]:
    """Report the path of NVIDIA's compiler."""
    path = shutil.which("nvcc")
    yield Check("nvcc", "info", path or "not found and not needed: NVRTC compiles the kernels of gpuprof")
