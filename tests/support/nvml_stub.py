# SPDX-License-Identifier: Apache-2.0
"""A machine whose NVIDIA driver and devices a stub of pynvml plays."""

from __future__ import annotations

import json
import os
import select
import shutil
from pathlib import Path
from typing import Any

import gpuprof
from gpuprof.record import device_samples

STUB = Path(__file__).parent / "stub_nvml" / "pynvml.py"
LONGEST_WAIT_S = 180
ONE = {
    "nvmlDeviceGetUtilizationRates": [{"gpu": 0, "memory": 1}, {"gpu": 50, "memory": 25}],
    "nvmlDeviceGetMemoryInfo": [{"total": 80_000_000_000, "used": 2}],
    "nvmlDeviceGetMemoryInfo_v2": [{"used": 1_000}, {"used": 3_000}, {"used": 2_000}],
    "nvmlDeviceGetPowerUsage": [100_000, 200_000, 300_000],
    "nvmlDeviceGetTotalEnergyConsumption": [7_000_000, 7_001_500, 7_002_000],
    "nvmlDeviceGetClockInfo 1": [1_500],
    "nvmlDeviceGetClockInfo 2": [2_600],
    "nvmlDeviceGetTemperature": [40, 41],
    "nvmlDeviceGetCurrentClocksEventReasons": [1, 4, 4],
    "nvmlDeviceGetMigMode": [[0, 0]],
}


class Stub:
    """A machine whose driver and devices are played."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        shutil.copy(STUB, folder)
        (folder / device_samples.LIBRARY).touch()
        (folder / "calls").touch()
        os.mkfifo(folder / "events")
        self._pipe = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        self._events = b""
        self.play(ONE)

    def close(self) -> None:
        os.close(self._pipe)

    def play(self, *devices: dict[str, list[Any]], **more: Any) -> None:
        (self.folder / "scenario.json").write_text(json.dumps({"devices": devices, **more}))

    def wait_for_reading(self, number: int) -> int:
        """Wait until a device's reading of this number, from 0, has begun; returns the sampler's id."""
        while True:
            *lines, self._events = self._events.split(b"\n")
            for line in lines:
                process_id, seen = map(int, line.split())
                if seen >= number:
                    return process_id
            readable, _, _ = select.select([self._pipe], [], [], LONGEST_WAIT_S)
            assert readable, f"no reading {number} within {LONGEST_WAIT_S} s"
            self._events += os.read(self._pipe, 4096)

    def forget_readings(self) -> None:
        """Wait from now on for readings that begin from now on."""
        self._events = b""
        while select.select([self._pipe], [], [], 0)[0]:
            os.read(self._pipe, 4096)

    def count_calls(self, function: str, device: int = 0) -> int:
        return (self.folder / "calls").read_text().splitlines().count(f"{device} {function}")

    def environment(self) -> dict[str, str]:
        package = str(Path(gpuprof.__file__).parents[1])
        former = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = [str(self.folder), package, *filter(None, former)]
        path = [str(self.folder), *(part for part in path if part != str(self.folder))]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "LD_LIBRARY_PATH": str(self.folder)}
