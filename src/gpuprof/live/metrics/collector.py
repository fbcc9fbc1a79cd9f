# SPDX-License-Identifier: Apache-2.0
"""From snapshots to metrics. Names have a limited number of series; what has ended has none."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from socket import gethostname
from typing import Any, TypeAlias

from gpuprof.analyze.devices import THROTTLE_REASONS
from gpuprof.live.metrics import definitions
from gpuprof.live.metrics.exposition import TextFormat, exposition
from gpuprof.live.metrics.families import Exemplar, Family, Labels, label_value
from gpuprof.live.snapshot import (
    LiveDeviceFigures,
    LiveRequestFigures,
    LiveStepFigures,
    MachineFigures,
    ProcessFigures,
    RunState,
    Snapshot,
    Unavailable,
)
from gpuprof.live.watched_feeds import LINGER_S

TOP = 20
MOST_PROCESSES = 64
OTHER = "other"
Key: TypeAlias = tuple[str, Labels]
_MOST_MISSED = 5  # readings of a device in succession, then another source counts its energy
_PARTS = ("forward", "backward", "optimizer", "data", "other")
_STATES = ("due", "sent", "ended", "failed")


class MetricsCollector:
    """The metrics of some sources: runs, processes, or the machine alone. Any thread may call the methods.

    `top` is how many layers of a run have series of their own, and as many operators, spans and kernels.
    """

    def __init__(self, version: str, *, top: int = TOP) -> None:
        self._top = top
        self._lock = threading.Lock()
        self._families = {each.name: Family(each) for each in definitions.ALL}
        self._sources: dict[str, _Source] = {}
        self._energy = EnergyReaders()
        self._texts: dict[TextFormat, bytes] = {}
        self._families[definitions.BUILD.name].set((version,), 1, 0)
        self._families[definitions.TARGET.name].set(("gpuprof", label_value(gethostname())), 1, 0)

    def update(self, source: str, snapshot: Snapshot) -> None:
        """Take in the next snapshot of a source."""
        with self._lock:
            self._texts = {}
            own = self._sources.get(source)
            if own is None:
                own = self._sources[source] = _Source(self._families, self._top, self._sources, self._energy)
            own.update(snapshot)

    def forget(self, source: str) -> None:
        """End all series of a source."""
        with self._lock:
            self._texts = {}
            own = self._sources.pop(source, None)
            if own is not None:
                own.end()

    def text(self, text_format: TextFormat) -> bytes:
        """Return all metrics as text."""
        with self._lock:
            if text_format not in self._texts:
                self._texts[text_format] = exposition(self._families.values(), text_format)
            return self._texts[text_format]

    def locked_families(self) -> tuple[threading.Lock, Iterable[Family]]:
        """Return the families, which are to be read under the lock."""
        return self._lock, self._families.values()


class TopNames:
    """The names that have a series of their own, at most `limit`; once chosen, a name remains.

    While all names fit into half of the places, each is chosen. After that a name is chosen once it has a
    tenth of an equal part of the time so far. So the first names of a program do not take all places, and no
    counter decreases: what a name had before remains in `other`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chosen: set[str] = set()
        self._totals: defaultdict[str, int] = defaultdict(int)
        self._whole = 0

    def add(self, amounts: Iterable[tuple[str, int]]) -> None:
        """Add times by name."""
        touched = set()
        for name, amount in amounts:
            self._totals[name] += amount
            self._whole += amount
            touched.add(name)
        room = self._limit - len(self._chosen)
        is_ample = len(self._totals) <= self._limit // 2
        least = 0 if is_ample else self._whole / (10 * max(self._limit, 1))
        if room > 0:
            new = [each for each in touched - self._chosen if self._totals[each] >= least]
            self._chosen.update(sorted(new, key=lambda each: (-self._totals[each], each))[:room])

    def label_of(self, name: str) -> str:
        """Return the label that a name counts for."""
        return label_value(name) if name in self._chosen else OTHER


class EnergyReaders:
    """Which source counts the energy of each device: one at a time, since each counts from its own start.

    When it has no readings any more, another one continues: what that one reads from then on is added.
    """

    def __init__(self) -> None:
        self._readers: dict[str, _Source] = {}
        self._last_j: dict[str, dict[_Source, float]] = {}
        self._missed: defaultdict[tuple[str, _Source], int] = defaultdict(int)

    def increase_j(self, source: _Source, device: str, energy_j: float | Unavailable) -> float | None:
        """Return by how much the counter of a device rises with a source's reading; None without one."""
        if isinstance(energy_j, Unavailable):
            self.missed(source, device)
            return None
        self._missed.pop((device, source), None)
        is_first = device not in self._last_j
        known = self._last_j.setdefault(device, {})
        last_j = known.get(source, 0.0 if is_first else energy_j)
        known[source] = energy_j
        is_reader = self._readers.setdefault(device, source) is source
        return max(energy_j - last_j, 0.0) if is_reader else 0.0

    def missed(self, source: _Source, device: str) -> None:
        """Take in that a source has no reading of a device."""
        self._missed[device, source] += 1
        if self._missed[device, source] >= _MOST_MISSED:
            self._release(source, device)

    def missed_all(self, source: _Source) -> None:
        """Take in that a source has no devices at all."""
        for device in [device for device, reader in self._readers.items() if reader is source]:
            self.missed(source, device)

    def forget(self, source: _Source) -> None:
        """Take in that a source has ended."""
        for device, known in list(self._last_j.items()):
            self._release(source, device)
            known.pop(source, None)
            if not known:
                del self._last_j[device]
        for key in [key for key in self._missed if key[1] is source]:
            del self._missed[key]

    def _release(self, source: _Source, device: str) -> None:
        if self._readers.get(device) is source:
            del self._readers[device]


class _Source:
    """What one feed has set, so that it can be taken back."""

    def __init__(
        self, families: dict[str, Family], top: int, every: dict[str, _Source], energy: EnergyReaders
    ) -> None:
        self._families = families
        self._all = every
        self._energy = energy
        self._run = ""
        self._unix_ns = 0
        self._elapsed_s = 0.0
        self._gauges: set[Key] = set()
        self._gauges_now: set[Key] = set()
        self._counters: defaultdict[int | None, set[Key]] = defaultdict(set)  # None: the run
        self._seen_s: dict[int | None, float] = {}
        self._steps: defaultdict[int, int] = defaultdict(int)
        self._names = {each: TopNames(top) for each in ("layer", "operator", "span", "kernel")}

    def update(self, snapshot: Snapshot) -> None:
        self._unix_ns = snapshot.unix_ns
        self._elapsed_s += snapshot.interval_ns / 1e9
        self._gauges_now = set()
        self._machine(snapshot.machine)
        if snapshot.run is not None:
            self._run = label_value(Path(snapshot.run).name.removesuffix(".gpuprof"))
            self._seen_run(snapshot)
        self._processes(snapshot.processes)
        if isinstance(snapshot.devices, Unavailable):
            self._energy.missed_all(self)
        for device in _tuple(snapshot.devices):
            self._device(device)
        if isinstance(snapshot.requests, LiveRequestFigures):
            self._requests(snapshot.requests)
        former, self._gauges = self._gauges, self._gauges_now
        self._remove(former - self._gauges)
        self._remove_ended()

    def end(self) -> None:
        """Remove all series."""
        held = set(self._gauges).union(*self._counters.values())
        self._gauges, self._counters = set(), defaultdict(set)
        self._energy.forget(self)
        self._remove(held)

    def holds(self, key: Key) -> bool:
        """Whether a series is of this source, and maybe of others: they may read the same device."""
        return key in self._gauges or any(key in own for own in self._counters.values())

    def _remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if not any(each.holds(key) for each in self._all.values()):
                self._families[key[0]].remove(key[1])

    def _gauge(self, name: str, value: float | Unavailable, *labels: str) -> None:
        if not isinstance(value, Unavailable):
            self._families[name].set(labels, value, self._unix_ns)
            self._gauges_now.add((name, labels))

    def _count(self, name: str, amount: float, owner: int | None, *labels: str) -> None:
        self._families[name].add(labels, amount, self._unix_ns)
        self._counters[owner].add((name, labels))

    def _total(self, name: str, total: float | Unavailable, owner: int | None, *labels: str) -> None:
        if not isinstance(total, Unavailable):
            self._families[name].raise_to(labels, total, self._unix_ns)
            self._counters[owner].add((name, labels))

    def _remove_ended(self) -> None:
        for owner in [each for each in self._counters if self._elapsed_s > self._last_seen_s(each)]:
            self._remove(self._counters.pop(owner))
            self._seen_s.pop(owner, None)
            if owner is not None:
                self._steps.pop(owner, None)

    def _last_seen_s(self, owner: int | None) -> float:
        # A machine without a run does not end.
        return self._seen_s.get(owner, float("inf")) + LINGER_S

    def _seen_run(self, snapshot: Snapshot) -> None:
        is_on = snapshot.state is RunState.RECORDING
        if is_on or None not in self._seen_s:
            self._seen_s[None] = self._elapsed_s
        self._gauge("gpuprof_run_recording", int(is_on), self._run)
        self._gauge("gpuprof_run_late", int(snapshot.is_late), self._run)
        self._total("gpuprof_dropped_events_total", snapshot.dropped_events, None, self._run)
        for steps in _tuple(snapshot.steps):
            self._add_steps(steps)
        layers = [(each.name, each.calls, each.self_ns) for each in _tuple(snapshot.layers)]
        self._add_names("layer", layers)
        if snapshot.operators is None:
            found = snapshot.calls_of("operator")
            self._add_names("operator", [(each.name, each.calls, each.self_ns) for each in found])
        spans = [(each.name, each.calls, each.total_ns) for each in snapshot.calls_of("span")]
        self._add_names("span", spans)
        kernels = [(each.name, each.calls, each.total_ns) for each in _tuple(snapshot.kernels)]
        self._add_names("kernel", kernels)

    def _add_names(self, kind: str, rows: list[tuple[str, int, int]]) -> None:
        names = self._names[kind]
        names.add((name, time_ns) for name, _, time_ns in rows)
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for name, calls, time_ns in rows:
            found = sums[names.label_of(name)]
            found[0] += calls
            found[1] += time_ns
        for label, (calls, time_ns) in sums.items():
            self._count(f"gpuprof_{kind}_seconds_total", time_ns / 1e9, None, self._run, label)
            if f"gpuprof_{kind}_calls_total" in self._families:
                self._count(f"gpuprof_{kind}_calls_total", calls, None, self._run, label)

    def _add_steps(self, steps: LiveStepFigures) -> None:
        owner, labels = steps.process_id, (self._run, str(steps.process_id))
        if (
            owner not in self._seen_s
            and sum(each not in (None, -1) for each in self._seen_s) >= MOST_PROCESSES
        ):
            return
        # One that steps is alive, whether or not its other figures are exported.
        self._seen_s[owner] = self._elapsed_s
        first = self._steps[owner]
        self._steps[owner] += len(steps.durations_ns)
        histogram = self._families[definitions.STEPS.name].histogram(labels, self._unix_ns)
        for bucket, index in histogram.observe(steps.durations_ns).items():
            place = (*zip(definitions.STEPS.labels, labels, strict=True), ("step", str(first + index)))
            histogram.exemplars[bucket] = Exemplar(steps.durations_ns[index], place, self._unix_ns)
        self._counters[owner].add((definitions.STEPS.name, labels))
        self._count("gpuprof_steps_total", len(steps.durations_ns), owner, *labels)
        for part in _PARTS:
            time_ns = getattr(steps, f"{part}_ns")
            if time_ns is not None:
                self._count("gpuprof_step_part_seconds_total", time_ns / 1e9, owner, *labels, part)

    def _processes(self, processes: tuple[ProcessFigures, ...]) -> None:
        alive = [each for each in processes if each.is_alive]
        if processes:
            self._gauge("gpuprof_processes", len(alive), self._run)
        # Those that have series keep them.
        alive.sort(key=lambda each: (each.process_id not in self._seen_s, each.process_id))
        for each in alive[:MOST_PROCESSES]:
            self._process(each)
        for each in processes:
            if isinstance(each.spans, int) and each.spans and each.process_id in self._seen_s:
                labels = (self._run, str(each.process_id))
                self._count("gpuprof_spans_total", each.spans, each.process_id, *labels)

    def _process(self, each: ProcessFigures) -> None:
        owner, labels = each.process_id, (self._run, str(each.process_id))
        self._seen_s[owner] = self._elapsed_s
        self._total("process_cpu_seconds_total", each.cpu_s, owner, *labels)
        self._gauge("process_resident_memory_bytes", each.rss_bytes, *labels)
        self._gauge("gpuprof_process_threads", each.threads, *labels)
        self._total("gpuprof_process_read_bytes_total", each.read_bytes, owner, *labels)
        self._total("gpuprof_process_written_bytes_total", each.written_bytes, owner, *labels)

    def _machine(self, machine: MachineFigures) -> None:
        self._gauge("gpuprof_machine_processors", machine.processors)
        self._total("gpuprof_machine_cpu_seconds_total", machine.cpu_s, -1, "busy")
        self._total("gpuprof_machine_cpu_seconds_total", machine.io_wait_s, -1, "iowait")
        self._gauge("gpuprof_machine_memory_used_bytes", machine.memory_used_bytes)
        self._gauge("gpuprof_machine_memory_total_bytes", machine.memory_total_bytes)
        self._gauge("gpuprof_machine_load1", machine.load_1min)
        self._total("gpuprof_machine_received_bytes_total", machine.received_bytes, -1)
        self._total("gpuprof_machine_sent_bytes_total", machine.sent_bytes, -1)

    def _device(self, each: LiveDeviceFigures) -> None:
        key = str(each.device)
        self._gauge("gpuprof_device_info", 1, key, label_value(each.name or ""), label_value(each.uuid or ""))
        self._gauge("gpuprof_device_lost", int(each.is_lost), key)
        if each.is_lost:
            self._energy.missed(self, key)
            return
        self._gauge("gpuprof_device_utilization_ratio", each.utilization_share, key)
        self._gauge("gpuprof_device_memory_utilization_ratio", each.memory_utilization_share, key)
        self._gauge("gpuprof_device_memory_used_bytes", each.memory_used_bytes, key)
        self._gauge("gpuprof_device_memory_total_bytes", each.memory_total_bytes, key)
        self._gauge("gpuprof_device_power_watts", each.power_w, key)
        self._gauge("gpuprof_device_power_limit_watts", each.power_limit_w, key)
        self._gauge("gpuprof_device_temperature_celsius", each.temperature_c, key)
        self._gauge("gpuprof_device_sm_clock_hertz", each.sm_clock_hz, key)
        self._gauge("gpuprof_device_memory_clock_hertz", each.memory_clock_hz, key)
        increase_j = self._energy.increase_j(self, key, each.energy_j)
        if increase_j is not None:
            owner = None if self._run else -1
            self._count("gpuprof_device_energy_joules_total", increase_j, owner, key)
        if not isinstance(each.throttle_reasons, Unavailable):
            for reason in THROTTLE_REASONS.values():
                is_on = int(reason in each.throttle_reasons)
                self._gauge("gpuprof_device_throttled", is_on, key, reason.replace(" ", "_"))

    def _requests(self, each: LiveRequestFigures) -> None:
        owner, labels = each.process_id, (self._run, str(each.process_id))
        if not each.is_over:
            self._seen_s[owner] = self._elapsed_s
            self._gauge("gpuprof_requests_queued", each.queued, *labels)
            self._gauge("gpuprof_requests_in_service", each.in_service, *labels)
        for state in _STATES:
            self._total("gpuprof_requests_total", getattr(each, state), owner, *labels, state)
        latency = self._families[definitions.LATENCY.name].histogram(labels, self._unix_ns)
        latency.raise_to(each.latency_buckets, each.latency_sum_ns)
        self._counters[owner].add((definitions.LATENCY.name, labels))


def _tuple(figures: tuple[Any, ...] | Unavailable) -> tuple[Any, ...]:
    return () if isinstance(figures, Unavailable) else figures
