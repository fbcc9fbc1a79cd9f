# SPDX-License-Identifier: Apache-2.0
"""What tracks are called in a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.render.slices import Track

UNITS = {
    "utilization_percent": "%",
    "memory_utilization_percent": "%",
    "memory_used_bytes": "bytes",
    "power_w": "W",
    "energy_j": "J",
    "sm_clock_hz": "Hz",
    "memory_clock_hz": "Hz",
    "temperature_c": "C",
}


class TrackNames:
    """Names of processes, threads and devices, from a run's meta data."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self._threads = {
            (each.get("process_id"), each.get("thread_id")): str(each.get("name") or "")
            for each in meta.get("threads", [])
        }
        self._processes = {each.get("process_id"): each.get("name") for each in meta.get("processes", [])}
        self._devices = {each.get("index"): each.get("name") for each in meta.get("devices", [])}
        command = meta.get("command") or []
        self._program = Path(str(command[1] if len(command) > 1 else command[0])).name if command else ""
        self._main = meta.get("process_id")

    def process(self, process_id: int) -> str:
        """Return the name of a process: the program's, where it is the one that was started."""
        if process_id == self._main and self._program:
            return self._program
        return str(self._processes.get(process_id) or "process")

    def thread(self, track: Track, *, with_id: bool = False) -> str:
        """Return the name of a thread, with its id where it has no other name or that is asked for."""
        name = self._threads.get((track.process_id, track.thread_id)) or "thread"
        if with_id or name == "thread":
            name = f"{name} {track.thread_id}"
        return f"{name}, Python" if track.is_stacks else name

    def device(self, device: int | None) -> str:
        """Return the name of a device."""
        number = "?" if device is None else str(device)
        name = self._devices.get(device)
        return f"GPU {number} ({name})" if name else f"GPU {number}"

    def stream(self, track: Track) -> str:
        """Return the name of a stream."""
        return f"stream {'?' if track.stream is None else track.stream}"


def lane_name(name: str, lane: int) -> str:
    """Return the name of a lane beside the first: what crosses with what is there."""
    return name if lane == 0 else f"{name} ({lane + 1})"
