# SPDX-License-Identifier: Apache-2.0
"""Processor time, memory, disks, network and devices over time, next to a measurement."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuprof.bench.measure.io_counters import IoCounters, read_io
from gpuprof.bench.measure.memory import resident_bytes
from gpuprof.record.device_sampler import METRICS
from gpuprof.record.device_samples import DeviceSampleSource
from gpuprof.record.facts import Reason, SourceStatus

SAMPLE_EVERY_S = 0.1
# Between two timed parts, where a reading disturbs nothing, it is made early.
_EARLY_S = 0.05
_EARLIER = 0.9  # the thread wakes late rather than early
_DEVICE_METRICS = ("utilization_percent", "memory_used_bytes", "power_w", "temperature_c")
Series = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """Readings of one metric of one device: seconds as in `ResourceSeries`, and values."""

    device: int
    metric: str
    time_s: list[float]
    values: list[float]


@dataclass(frozen=True, slots=True)
class ResourceSeries:
    """What this process used over time. A list that is None is unavailable.

    `time_s` is the end of each interval in seconds since the warm-up ended, so it is below 0 before. The
    other lists have a value for each interval: percent of one processor, bytes in use at its end, and bytes
    that were read, written, received and sent in it (see `IoCounters`). `devices_off` is why no device was
    read, as plain data of a `SourceStatus`.
    """

    time_s: list[float]
    cpu_percent: list[float]
    memory_bytes: list[int] | None
    read_bytes: list[int] | None
    written_bytes: list[int] | None
    network_received_bytes: list[int] | None
    network_sent_bytes: list[int] | None
    devices: list[DeviceSeries] = field(default_factory=list)
    devices_off: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    processor_s: float
    memory_bytes: int | None
    io: IoCounters


class ResourceMonitor:
    """Reads processor time, memory, disks and network of this process at intervals, until its block ends.

    `series` has `cpu_usage` in percent of one processor, `memory_usage` in MB and `timestamp` in seconds
    since the start; `resources()` has all that was read. With `devices`, a process of its own reads the GPUs.
    """

    def __init__(
        self,
        every_s: float = SAMPLE_EVERY_S,
        *,
        devices: bool = False,
        clock_s: Callable[[], float] = time.perf_counter,
        processor_s: Callable[[], float] = time.process_time,
        memory_bytes: Callable[[], int | None] = resident_bytes,
        io: Callable[[], IoCounters] = read_io,
    ) -> None:
        self._every_s, self._clock_s = every_s, clock_s
        self._processor_s, self._memory_bytes, self._io = processor_s, memory_bytes, io
        self._devices = _Devices() if devices else None
        self._lock = threading.Lock()
        self._readings = [self._now()]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuprof-monitor", daemon=True)

    def __enter__(self) -> ResourceMonitor:
        if self._devices is not None:
            self._devices.start()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self.read()
        if self._devices is not None:
            self._devices.stop()

    def read(self) -> None:
        """Add one reading."""
        with self._lock:
            now = self._now()
            if now.at_s > self._readings[-1].at_s:
                self._readings.append(now)

    def read_early(self) -> None:
        """Add one reading where half an interval has passed: to be called where it disturbs nothing."""
        if self._clock_s() - self._readings[-1].at_s >= min(_EARLY_S, self._every_s):
            self.read()

    @property
    def series(self) -> Series:
        """Return processor time and memory."""
        first = self._readings[0].at_s
        return {
            "cpu_usage": [*map(_percent, self._readings, self._readings[1:])],
            "memory_usage": [
                float("nan") if each.memory_bytes is None else each.memory_bytes / 1e6
                for each in self._readings[1:]
            ],
            "timestamp": [each.at_s - first for each in self._readings[1:]],
        }

    def resources(self, origin_s: float | None = None) -> ResourceSeries:
        """Return everything, with times since `origin_s` of the clock; None is the first reading."""
        readings = self._readings
        origin_s = readings[0].at_s if origin_s is None else origin_s
        found, off = ([], None) if self._devices is None else self._devices.series(origin_s)
        return ResourceSeries(
            time_s=[round(each.at_s - origin_s, 3) for each in readings[1:]],
            cpu_percent=[round(_percent(*pair), 1) for pair in pairwise(readings)],
            memory_bytes=_all_known([each.memory_bytes for each in readings[1:]]),
            **{
                name: _all_known([getattr(new.io.since(old.io), name) for old, new in pairwise(readings)])
                for name in ("read_bytes", "written_bytes", "network_received_bytes", "network_sent_bytes")
            },
            devices=found,
            devices_off=off,
        )

    def _now(self) -> _Reading:
        return _Reading(self._clock_s(), self._processor_s(), self._memory_bytes(), self._io())

    def _run(self) -> None:
        period_s = _EARLIER * self._every_s
        while not self._is_over.wait(self._readings[-1].at_s + period_s - self._clock_s()):
            if self._clock_s() - self._readings[-1].at_s >= period_s:
                self.read()


def _percent(before: _Reading, after: _Reading) -> float:
    return 100 * (after.processor_s - before.processor_s) / (after.at_s - before.at_s)


def _all_known(values: list[int | None]) -> list[int] | None:
    known = [each for each in values if each is not None]
    return known if len(known) == len(values) else None


class _Devices:
    """Readings of the GPUs by the process that records them for runs too (`record/device_samples.py`)."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._source: DeviceSampleSource | None = None
        self._off: SourceStatus | None = None
        self._rows: list[tuple[int, int, int, float]] = []

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpuprof-series-")
        self._source = DeviceSampleSource(Path(self._folder.name))
        status = self._source.start()
        self._off = None if status.is_on else status

    def stop(self) -> None:
        from gpuprof.run.samples import read_samples

        if self._source is None or self._folder is None:
            return
        with self._folder:
            if self._off is None:
                self._source.stop()
                found = read_samples(Path(self._folder.name), self._add, closed=True)
                self._off = found.off or (None if found.readings else SourceStatus.off(Reason.NO_READING))

    def _add(self, columns: dict[str, Any]) -> None:
        names = ("t_ns", "device", "code", "value")
        self._rows += zip(*(columns[name].tolist() for name in names), strict=True)

    def series(self, origin_s: float) -> tuple[list[DeviceSeries], dict[str, Any] | None]:
        """Return the metrics of each device; times are of the monotonic clock, as those of the monitor."""
        found: dict[tuple[int, str], DeviceSeries] = {}
        for t_ns, device, code, value in self._rows:
            metric = METRICS[code - 1]
            if metric in _DEVICE_METRICS:
                one = found.setdefault((device, metric), DeviceSeries(device, metric, [], []))
                one.time_s.append(round(t_ns / 1e9 - origin_s, 3))
                one.values.append(round(value, 1))
        return list(found.values()), None if self._off is None else self._off.to_plain()
