# SPDX-License-Identifier: Apache-2.0
"""Reads what the process that samples devices has written; the layout is in `record/device_sampler.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuprof.record import device_sampler as layout
from gpuprof.record.facts import Note, NoteCode, Reason, SourceStatus, note
from gpuprof.run.damage import Damage, DamageCode

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Records = npt.NDArray[np.void]

BATCH_RECORDS = 65_536
LONGEST_DESCRIPTION_BYTES = 1 << 20

# The facts of a device, and the type of each where it is known.
_DEVICE_FACTS: dict[str, type] = {
    "index": int,
    "name": str,
    "uuid": str,
    "driver_version": str,
    "memory_bytes": int,
    "power_limit_w": float,
    "max_sm_clock_hz": float,
    "max_memory_clock_hz": float,
    "mig_mode": bool,
}
# Called with columns `t_ns` (of the monotonic clock), `device`, `code`, `value`.
Sink = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class SampledDevices:
    """What was found besides the readings. `off` is the status where there are none, if it is known."""

    devices: list[dict[str, Any]] = field(default_factory=list)
    off: SourceStatus | None = None
    readings: int = 0
    damage: list[Damage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def read_samples(segments: Path, sink: Sink, *, closed: bool) -> SampledDevices:
    """Hand all readings to `sink` in batches. `closed` is True where the recording was ended in order.

    Files that are cut off or are no samples are damage, not errors. Raises OSError of the disk.
    """
    found = SampledDevices()
    for path in sorted(segments.glob("*.samples")):
        with path.open("rb") as file:
            description, begin = read_description(file.read(layout.HEAD.size + LONGEST_DESCRIPTION_BYTES))
            file.seek(begin)
            if description is None:
                found.damage.append(Damage(DamageCode.SAMPLES_NO_FILE, path.name))
                continue
            _read_file(file, path.name, description, found, sink, closed=closed)
    return found


def _read_file(
    file: IO[bytes],
    name: str,
    description: dict[str, Any],
    found: SampledDevices,
    sink: Sink,
    *,
    closed: bool,
) -> None:
    if isinstance(description.get("off"), str):
        found.off = SourceStatus.off(Reason.NVML_FAILED, error=description["off"])
        return
    devices = described_devices(description)
    found.devices += devices
    reader = _FileReader(devices, description.get("period_ns"), sink)
    reader.read(file)
    found.readings += reader.readings
    found.notes += reader.notes
    found.damage += reader.damage(name, closed=closed)


def read_description(content: bytes) -> tuple[dict[str, Any] | None, int]:
    """Return the description of the devices that a file begins with, and where its records begin.

    The description is None if the file is none of samples.
    """
    if len(content) < layout.HEAD.size:
        return None, 0
    magic, version, size = layout.HEAD.unpack_from(content)
    begin = layout.HEAD.size + size
    if (magic, version) != (layout.MAGIC, layout.VERSION) or size > LONGEST_DESCRIPTION_BYTES:
        return None, 0
    try:
        description = json.loads(content[layout.HEAD.size : begin])
    except (ValueError, RecursionError):
        return None, 0
    return (description if isinstance(description, dict) else None), begin


def described_devices(description: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the devices with the facts that a reader may rely on; what is not as it should be is None."""
    devices = description.get("devices")
    described = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    return [
        {fact: _typed(each.get(fact), kind) for fact, kind in _DEVICE_FACTS.items()} for each in described
    ]


def _typed(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is kind else None


class _FileReader:
    """Sorts the records of one file into readings, marks and damage."""

    def __init__(self, devices: list[dict[str, Any]], period_ns: Any, sink: Sink) -> None:
        self.readings = 0
        self.notes: list[Note] = []
        self._names = [f"device {number} ({each['name']})" for number, each in enumerate(devices)]
        self._period_ns = period_ns if isinstance(period_ns, (int, float)) else None
        self._sink = sink
        self._damaged = 0
        self._rest = 0
        self._ended = False

    def read(self, file: IO[bytes]) -> None:
        for records in self._batches(file):
            sound = is_sound(records)
            is_mark = records["code"] > len(layout.METRICS)
            is_known = (records["code"] > 0) & (records["device"] < len(self._names))
            is_reading = sound & ~is_mark & is_known
            known = [self._note_mark(record) for record in records[sound & is_mark]]
            readings = records[is_reading]
            self._damaged += len(records) - len(readings) - sum(known)
            self.readings += len(readings)
            if len(readings):
                # Copies, since DuckDB takes contiguous columns.
                self._sink({key: readings[key].copy() for key in ("t_ns", "device", "code", "value")})

    def damage(self, name: str, *, closed: bool) -> Iterator[Damage]:
        if self._damaged:
            yield Damage(DamageCode.RECORDS, name, self._damaged)
        if self._rest:
            yield Damage(DamageCode.RECORD_CUT, name)
        elif closed and not self._ended:
            yield Damage(DamageCode.SAMPLES_END_EARLY, name)

    def _batches(self, file: IO[bytes]) -> Iterator[Records]:
        import numpy as np

        size = layout.RECORD.size
        while content := file.read(BATCH_RECORDS * size):
            self._rest = len(content) % size
            yield np.frombuffer(content[: len(content) - self._rest], dtype=record_type())

    def _note_mark(self, record: Any) -> bool:
        """Take in one mark; returns whether it is one."""
        code, value = int(record["code"]), float(record["value"])
        if code == layout.END:
            self._ended = True
        elif code == layout.SLOW_READINGS:
            self.notes.append(note(NoteCode.SLOW_READINGS, count=int(value), period_ns=self._period_ns))
        elif code == layout.DEVICE_LOST and int(record["device"]) < len(self._names):
            device = self._names[record["device"]]
            self.notes.append(note(NoteCode.DEVICE_LOST, device=device, error=int(value)))
        else:
            return False
        return True


def record_type() -> np.dtype[np.void]:
    """Return the type of a record of the file."""
    import numpy as np

    kinds = [("t_ns", "<i8"), ("device", "<u2"), ("code", "<u2"), ("check", "<u4"), ("value", "<f8")]
    return np.dtype(kinds)


def is_sound(records: Records) -> npt.NDArray[np.bool_]:
    """Return for each record whether its check is correct and its time and value are usable."""
    import numpy as np

    words = records.view("<u4").reshape(-1, layout.RECORD.size // 4)
    check = records["check"]
    expected = words.sum(axis=1, dtype=np.uint32) - check + np.uint32(layout.CHECK_SALT)
    is_instant = (records["t_ns"] >= 0) & (records["t_ns"] < 1 << 61)
    return np.asarray((expected == check) & np.isfinite(records["value"]) & is_instant, dtype=np.bool_)
