# SPDX-License-Identifier: Apache-2.0
"""Probes that run in separate interpreters, because a broken library may crash them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuprof.record.helper_process import WITHOUT_CURRENT_FOLDER

PROBE_TIMEOUT_S = 120

TORCH_PROBE = """
import json
import torch
itt = getattr(getattr(torch, "profiler", None), "itt", None)
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "itt": bool(itt and itt.is_available()), "file": torch.__file__,
}))
"""

DRIVER_PROBE = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"missing": str(error)}))
    raise SystemExit
def number(function, *arguments):
    value = ctypes.c_int(-1)
    return value.value if getattr(cuda, function)(ctypes.byref(value), *arguments) else value.value
def describe(ordinal):
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, 256, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = [number("cuDeviceGetAttribute", attribute, device) for attribute in (75, 76)]
    return [name.value.decode(errors="replace"), memory.value, "%d.%d" % tuple(capability)]
result = cuda.cuInit(0)
count = number("cuDeviceGetCount") if result == 0 else 0
print(json.dumps({
    "init": result, "version": number("cuDriverGetVersion"), "devices": [describe(i) for i in range(count)],
}))
"""

NVML_PROBE = """
import ctypes, json
try:
    ctypes.CDLL("libnvidia-ml.so.1")
except OSError as error:
    print(json.dumps({"missing": str(error)}))
    raise SystemExit
try:
    import pynvml
except ImportError:
    print(json.dumps({"package": False}))
    raise SystemExit
def text(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else value
try:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    names = [text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    print(json.dumps({"driver": text(pynvml.nvmlSystemGetDriverVersion()), "devices": names}))
except pynvml.NVMLError as error:
    print(json.dumps({"nvml": str(error)}))
"""

CUPTI_PROBE = """
import ctypes, json, os
from gpuprof import _native
from gpuprof.record.kernels import cupti_folders
ctypes.CDLL("libcuda.so.1").cuInit(0)
folders = [os.fsencode(folder) for folder in cupti_folders()]
print(json.dumps({**_native.cupti_probe(folders), "no_counters": _native.counters_probe(folders)}))
"""

# It needs no driver.
NVRTC_PROBE = """
import json, os
from gpuprof import _native
from gpuprof.record.kernels import nvrtc_folders
print(json.dumps(_native.nvrtc_probe([os.fsencode(folder) for folder in nvrtc_folders()])))
"""


# The capability that the driver requires if counters are restricted.
_CAP_SYS_ADMIN = 21


def counters_are_restricted(
    parameters: Path = Path("/proc/driver/nvidia/params"), status: Path = Path("/proc/self/status")
) -> bool | None:
    """Return whether the driver denies counters to this process; None if that is unknown."""
    if not parameters.is_file():
        return None
    if "RmProfilingAdminOnly: 1" not in parameters.read_text(errors="replace"):
        return False
    lines = status.read_text(errors="replace").splitlines() if status.is_file() else []
    held = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return not int(held, 16) >> _CAP_SYS_ADMIN & 1


def probe(program: str) -> dict[str, Any]:
    """Run `program` in a fresh interpreter and return the JSON of its last line, or {"error": ...}."""
    # Without the collector, because the probe must see torch without gpuprof.
    environment = {key: value for key, value in os.environ.items() if key != "INTEL_LIBITTNOTIFY64"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_CURRENT_FOLDER + program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no response within {PROBE_TIMEOUT_S} s"}
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return {"error": f"exit code {done.returncode}: {last[:200]}"}
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts
