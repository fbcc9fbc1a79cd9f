# SPDX-License-Identifier: Apache-2.0
"""Follows the readings of devices, which a process next to the program writes (`record/device_sampler.py`).

Without a run, that process is started here, for as long as the view lasts.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof.analyze.devices import THROTTLE_REASONS
from gpuprof.live.snapshot import LiveDeviceFigures, MissingReason, Unavailable
from gpuprof.live.tails import GrowingFolder, Tail
from gpuprof.record import device_sampler as layout
from gpuprof.record.device_samples import DeviceSampleSource
from gpuprof.run.samples import described_devices, is_sound, read_description, record_type

PERIOD_NS = 500_000_000  # of readings without a run
_RECORD = record_type()
_NO_READING = Unavailable(MissingReason.NO_READING)
_MOST_RECORDS = 1 << 20  # of one interval; a day of one device at 20 readings a second has 16 million
Records = npt.NDArray[np.void]

_UTILIZATION, _MEMORY_UTILIZATION, _MEMORY, _POWER, _ENERGY, _SM, _MEMORY_CLOCK, _TEMPERATURE, _THROTTLE = (
    range(1, len(layout.METRICS) + 1)
)


class DeviceFollower:
    """Reads the samples in a folder as they are written."""

    def __init__(self, segments: Path) -> None:
        self._files = GrowingFolder(segments, ".samples", _SampleTail)

    def take(self) -> tuple[LiveDeviceFigures, ...] | Unavailable:
        """Return the devices with the readings since the last time."""
        found: list[LiveDeviceFigures] = []
        off = ""
        for file in self._files.readers():
            found += file.take()
            off = file.off or off
        if found:
            return tuple(found)
        return Unavailable(MissingReason.NOT_RECORDED, off) if off else _NO_READING


class _SampleTail:
    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._offset = 0
        self._devices: list[dict[str, Any]] = []
        self._lost: set[int] = set()
        self.off = ""

    def take(self) -> list[LiveDeviceFigures]:
        if self._offset == 0:
            self._read_head()
        if not self._devices:
            return []
        records = self._records()
        lost = records["device"][records["code"] == layout.DEVICE_LOST]
        self._lost.update(lost.tolist())
        return [
            _figures(number, device, records[records["device"] == number], is_lost=number in self._lost)
            for number, device in enumerate(self._devices)
        ]

    def _read_head(self) -> None:
        # The file has its name only when its head is whole.
        description, self._offset = read_description(self._tail.read(0, self._tail.size))
        if description is None:
            self._offset = -1
            return
        off = description.get("off")
        self.off = off if isinstance(off, str) else ""
        self._devices = described_devices(description)

    def _records(self) -> Records:
        size = layout.RECORD.size
        count = (self._tail.size - self._offset) // size
        skipped = max(count - _MOST_RECORDS, 0)
        content = self._tail.read(self._offset + skipped * size, (count - skipped) * size)
        content = content[: len(content) // size * size]
        self._offset += skipped * size + len(content)
        records = np.frombuffer(content, _RECORD)
        return records[is_sound(records)]


def _figures(number: int, device: dict[str, Any], records: Records, *, is_lost: bool) -> LiveDeviceFigures:
    def values(code: int) -> Any:
        return records["value"][records["code"] == code]

    def mean(code: int, scale: float = 1.0) -> float | Unavailable:
        found = values(code)
        return float(found.mean()) * scale if len(found) else _NO_READING

    def latest(code: int) -> float | Unavailable:
        found = values(code)
        return float(found[-1]) if len(found) else _NO_READING

    memory = latest(_MEMORY)
    total, limit = device["memory_bytes"], device["power_limit_w"]
    readings = np.bincount(records["code"][records["code"] <= len(layout.METRICS)], minlength=1)
    return LiveDeviceFigures(
        device=number,
        name=device["name"],
        uuid=device["uuid"],
        is_lost=is_lost,
        readings=int(readings.max()),
        utilization_share=mean(_UTILIZATION, 0.01),
        memory_utilization_share=mean(_MEMORY_UTILIZATION, 0.01),
        memory_used_bytes=memory if isinstance(memory, Unavailable) else int(memory),
        memory_total_bytes=_NO_READING if total is None else total,
        power_w=mean(_POWER),
        power_limit_w=_NO_READING if limit is None else limit,
        energy_j=latest(_ENERGY),
        sm_clock_hz=latest(_SM),
        memory_clock_hz=latest(_MEMORY_CLOCK),
        temperature_c=latest(_TEMPERATURE),
        throttle_reasons=_reasons(values(_THROTTLE)),
    )


def _reasons(masks: Any) -> tuple[str, ...] | Unavailable:
    if not len(masks):
        return _NO_READING
    within = masks[(masks >= 0) & (masks < 1 << 53)].astype(np.int64)
    seen = int(np.bitwise_or.reduce(within)) if len(within) else 0
    return tuple(text for bit, text in THROTTLE_REASONS.items() if seen & bit)


class DeviceWatch:
    """Reads this machine's devices for a view without a run, in a process of its own that ends with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpuprof-top-"))
        self._source = DeviceSampleSource(self._folder, period_ns=PERIOD_NS)
        status = self._source.start()
        detail = "" if status.reason is None else status.reason.value
        self._off = None if status.is_on else Unavailable(MissingReason.NOT_RECORDED, detail)
        self._follower = DeviceFollower(self._folder)
        if self._off is not None:
            self.close()

    def take(self) -> tuple[LiveDeviceFigures, ...] | Unavailable:
        """Return the devices with the readings since the last time."""
        return self._follower.take() if self._off is None else self._off

    def close(self) -> None:
        """End the process that reads."""
        with contextlib.suppress(OSError):
            self._source.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
