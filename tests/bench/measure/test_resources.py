# SPDX-License-Identifier: Apache-2.0
"""Resources over time, from readings that a test makes."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import gpuprof
from gpuprof.bench.measure.io_counters import IoCounters
from gpuprof.bench.measure.resources import DeviceSeries, ResourceMonitor, ResourceSeries
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.record import device_sampler as layout
from gpuprof.record.facts import Method, SourceStatus


class Machine:
    """Each reading is 2 s, 1 s of processor time, 1 MB of memory and 100 bytes read after the one before."""

    def __init__(self) -> None:
        self.clock, self.processor = itertools.count(100.0, 2.0), itertools.count(5.0, 1.0)
        self.memory, self.read = itertools.count(1_000_000, 1_000_000), itertools.count(0, 100)

    def monitor(self) -> ResourceMonitor:
        return ResourceMonitor(
            3600.0,
            clock_s=lambda: next(self.clock),
            processor_s=lambda: next(self.processor),
            memory_bytes=lambda: next(self.memory),
            io=lambda: IoCounters(read_bytes=next(self.read)),
        )


def test_a_series_has_what_passed_in_each_interval() -> None:
    monitor = Machine().monitor()
    for _ in range(3):
        monitor.read()
    found = monitor.resources(origin_s=103.0)
    assert found == ResourceSeries(
        time_s=[-1.0, 1.0, 3.0],
        cpu_percent=[50.0, 50.0, 50.0],
        memory_bytes=[2_000_000, 3_000_000, 4_000_000],
        read_bytes=[100, 100, 100],
        written_bytes=None,
        network_received_bytes=None,
        network_sent_bytes=None,
    )
    assert from_plain(json.loads(json.dumps(to_plain(found))), ResourceSeries) == found


def test_a_benchmark_has_its_resources_over_time() -> None:
    result = gpuprof.benchmark(lambda: time.sleep(0.4), iterations=2, warmup=1)
    found = from_plain(result.launches[0].extra["series"], ResourceSeries)
    assert found.time_s == sorted(found.time_s)
    assert found.time_s[0] < 0 < found.time_s[-1]  # the warm-up is in it
    assert len(found.time_s) == len(found.cpu_percent) >= 3
    assert found.devices == []


def test_devices_without_a_driver_are_a_reason(monkeypatch: Any) -> None:
    monkeypatch.setattr("gpuprof.record.device_samples.has_driver", lambda: False)
    with ResourceMonitor(devices=True) as monitor:
        pass
    assert monitor.resources().devices_off is not None


class WrittenSamples:
    """A replacement of the process that samples: one device, two readings of it, at known times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> SourceStatus:
        return SourceStatus.on(Method.NVML)

    def stop(self) -> None:
        parts = [layout.pack_head({"devices": [{"index": 0, "name": "made"}], "period_ns": 50_000_000})]
        for second, value in ((11, 40.0), (12, 60.0)):
            parts.append(layout.pack_record(second * 10**9, 0, 1, value))  # of the processor's use
            parts.append(layout.pack_record(second * 10**9, 0, 9, 1.0))  # of throttling, which is left out
        parts.append(layout.pack_record(13 * 10**9, 0, layout.END, 0.0))
        (self._folder / "made.samples").write_bytes(b"".join(parts))


def test_devices_are_read_by_the_sampler_of_recordings(monkeypatch: Any) -> None:
    monkeypatch.setattr("gpuprof.bench.measure.resources.DeviceSampleSource", WrittenSamples)
    with ResourceMonitor(devices=True) as monitor:
        pass
    found = monitor.resources(origin_s=10.0)
    assert found.devices_off is None
    assert found.devices == [DeviceSeries(0, "utilization_percent", [1.0, 2.0], [40.0, 60.0])]
