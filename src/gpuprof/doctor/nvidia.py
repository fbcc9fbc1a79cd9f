# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver and the libraries that stand on it.

CUPTI is loaded only where the driver works, since some of its versions crash without one.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuprof.doctor import asked
from gpuprof.doctor.check import Check, Status
from gpuprof.doctor.probes import counters_are_restricted


def driver() -> Iterator[Check]:
    """Tell whether the driver works."""
    facts = asked.driver()
    if "missing" in facts:
        mend = "with an NVIDIA GPU in this machine, install its driver; without one nothing is to be done"
        yield Check("NVIDIA driver", "missing", facts["missing"], mend)
    elif "error" in facts:
        yield Check("NVIDIA driver", "problem", f"it fails when loaded: {facts['error']}", "install it again")
    elif facts["init"] != 0:
        mend = "see that nvidia-smi works, and that a container was given the GPU"
        yield Check("NVIDIA driver", "problem", f"cuInit answers error {facts['init']}", mend)
    else:
        supports = f"CUDA {facts['version'] // 1000}.{facts['version'] % 1000 // 10}"
        yield Check("NVIDIA driver", "ok", f"supports up to {supports}")


def gpu() -> Iterator[Check]:
    """Name the devices."""
    devices = asked.driver().get("devices", [])
    for ordinal, (name, memory_bytes, capability) in enumerate(devices):
        detail = f"{name}, {memory_bytes / 1e9:.1f} GB, compute capability {capability}"
        yield Check(f"GPU {ordinal}", "info", detail)
    if not devices:
        yield Check("GPU", "info", "none found: the CPU side is recorded")


def nvml() -> Iterator[Check]:
    """Tell whether device samples can be taken."""
    facts = asked.nvml()
    if "missing" in facts:
        yield Check("NVML", "missing", f"no device samples: {facts['missing']}", "it comes with the driver")
    elif "package" in facts:
        detail = "no device samples: nvidia-ml-py is not installed"
        yield Check("NVML", "missing", detail, 'pip install "nvidia-ml-py>=12"')
    elif "driver" in facts:
        devices = ", ".join(facts["devices"]) or "no device"
        yield Check("NVML", "ok", f"driver {facts['driver']}: {devices}; device samples are taken")
    else:
        detail = f"no device samples: it fails: {facts.get('nvml') or facts.get('error')}"
        yield Check("NVML", "problem", detail, "see that nvidia-smi works here")


def cupti() -> Iterator[Check]:
    """Tell whether kernels and copies can be traced."""
    found = list(dict.fromkeys(path.resolve() for path in _cupti_libraries()))
    listed = ", ".join([*_distribution_versions("nvidia-cuda-cupti"), *map(str, found)]) or "not found"
    if asked.driver().get("init") != 0:
        # Some versions of CUPTI crash without a driver.
        yield Check("CUPTI", "info", f"{listed}; not loaded, since it needs the NVIDIA driver")
        return
    facts = asked.cupti()
    reason = facts.get("error") or facts.get("reason")
    if reason:
        detail, _, mend = reason.rpartition(": ")
        status: Status = "problem" if found else "missing"
        yield Check("CUPTI", status, f"{detail or mend}; GPU records are off", mend if detail else "")
    else:
        yield Check("CUPTI", "ok", f"{facts['version']} at {facts['path']}; it traces kernels and copies")


def counters() -> Iterator[Check]:
    """Tell whether `--counters` can have what it wants, as far as that shows without a kernel."""
    if asked.driver().get("init") != 0:
        yield Check("GPU counters", "info", "none: they need a GPU and the NVIDIA driver")
        return
    facts = asked.cupti()
    reason = facts.get("error") or facts.get("reason") or facts.get("no_counters")
    restricted = counters_are_restricted()
    if reason:
        detail, _, mend = reason.rpartition(": ")
        yield Check("GPU counters", "missing", f"none: {detail or mend}", mend if detail else "")
    elif restricted:
        mend = (
            "run as root or with CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
        yield Check("GPU counters", "missing", "for administrators only; tracing needs no permission", mend)
    else:
        told = "the driver does not say who may" if restricted is None else "this process may"
        yield Check("GPU counters", "ok", f"gpuprof run --counters reads them; {told}")


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
    """Tell whether Nsight Systems is here."""
    path = shutil.which("nsys")
    yield Check(
        "nsys", "info", path or "Nsight Systems not found: gpuprof nsys prints the command to run elsewhere"
    )


def nvrtc() -> Iterator[Check]:
    """Tell whether kernels can be compiled that measure the ceilings of GPUs, where there are any."""
    if not asked.driver().get("devices"):
        return
    facts = asked.nvrtc()
    reason = facts.get("error") or facts.get("reason")
    if reason:
        detail, _, mend = reason.rpartition(": ")
        what = f"{detail or mend}; GPU ceilings are worked out from clocks and not measured"
        yield Check("NVRTC", "missing", what, mend if detail else "")
    else:
        yield Check(
            "NVRTC", "ok", f"{facts['version']} at {facts['path']}; it compiles what measures ceilings"
        )


def nvcc() -> Iterator[Check]:
    """Tell where NVIDIA's compiler is."""
    path = shutil.which("nvcc")
    yield Check("nvcc", "info", path or "not found and not needed: NVRTC compiles our kernels")
