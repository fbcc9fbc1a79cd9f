# SPDX-License-Identifier: Apache-2.0
"""Replaces nvidia-ml-py: devices with the results in `scenario.json`, next to this file.

A scenario is `{"devices": [{FUNCTION: [first result, second, ...]}], "init": code}`; the last result stays.
A result `{"error": code}` is raised; `"hang"` never returns. A function without results is unsupported.
Each call is logged in `calls`, and each query of the power goes into the pipe `events`.
"""

import contextlib
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

_HERE = Path(__file__).parent
_SCENARIO = json.loads((_HERE / "scenario.json").read_text())
_DEFAULTS = {
    "nvmlDeviceGetName": ["Stub 100"],
    "nvmlDeviceGetUUID": ["GPU-stub"],
    "nvmlDeviceGetMaxClockInfo": [2_000],
    "nvmlDeviceGetEnforcedPowerLimit": [700_000],
}
_counts: dict[tuple[int, str], int] = {}

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, nvmlMemory_v2 = 1, 2, 0, 2


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


def nvmlInit():
    if _SCENARIO.get("init"):
        raise NVMLError(_SCENARIO["init"])


def nvmlDeviceGetCount():
    return len(_SCENARIO["devices"])


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlSystemGetDriverVersion():
    return b"570.stub"


def _result(function, device):
    results = {**_DEFAULTS, **_SCENARIO["devices"][device]}.get(function, [{"error": 3}])
    number = _counts[device, function] = _counts.get((device, function), -1) + 1
    _log(function, device, number)
    result = results[min(number, len(results) - 1)]
    if result == "hang":
        threading.Event().wait()
    if isinstance(result, dict) and "error" in result:
        raise NVMLError(result["error"])
    return SimpleNamespace(**result) if isinstance(result, dict) else result


def _log(function, device, number):
    with (_HERE / "calls").open("a") as calls:
        calls.write(f"{device} {function}\n")
    if function == "nvmlDeviceGetPowerUsage" and (_HERE / "events").exists():
        pipe = os.open(_HERE / "events", os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, f"{os.getpid()} {number}\n".encode())
        if not hasattr(_log, "pipe"):
            _log.pipe = pipe  # kept open, so that what is in the pipe stays
        else:
            os.close(pipe)


def nvmlDeviceGetMemoryInfo(handle, version=None):
    return _result("nvmlDeviceGetMemoryInfo" + ("_v2" if version else ""), handle)


def nvmlDeviceGetClockInfo(handle, kind):
    return _result(f"nvmlDeviceGetClockInfo {kind}", handle)


def nvmlDeviceGetTemperature(handle, sensor):
    return _result("nvmlDeviceGetTemperature", handle)


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return _result("nvmlDeviceGetMaxClockInfo", handle)


def __getattr__(name):
    if not name.startswith("nvmlDeviceGet"):
        raise AttributeError(name)
    return lambda handle: _result(name, handle)
