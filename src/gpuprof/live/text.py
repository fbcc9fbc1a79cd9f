# SPDX-License-Identifier: Apache-2.0
"""The texts of a snapshot: its header lines, and tables as sections of cells."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuprof.live.snapshot import (
    LiveCallFigures,
    LiveDeviceFigures,
    LiveFunctionFigures,
    LiveKernelFigures,
    LiveLayerFigures,
    LiveRequestFigures,
    LiveStepFigures,
    MissingReason,
    ProcessFigures,
    Snapshot,
    Unavailable,
)
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_quantity,
    format_share,
)

ROWS = 10
_PROCESS_COLUMNS = ("process", "CPU", "RSS", "id", "spans", "threads", "read", "written")
_DEVICE_COLUMNS = ("device", "use", "memory", "power", "temp.", "SM clock", "throttling")
_MISSING = {
    MissingReason.NO_RUN: "not recorded",
    MissingReason.NOT_RECORDED: "not recorded",
    MissingReason.AFTER_THE_END: "available after the end of the program",
}


class SectionKey(str, enum.Enum):
    """The tables of a view."""

    PROCESSES = "processes"
    DEVICES = "devices"
    LAYERS = "layers"
    OPERATORS = "operators"
    SPANS = "spans"
    PYTHON = "python"
    WAITING = "waiting"
    KERNELS = "kernels"


class SortKey(str, enum.Enum):
    """What the rows of a table are sorted by."""

    SELF = "self time"
    TOTAL = "total time"
    CALLS = "calls"
    NAME = "name"


class LiveRow(NamedTuple):
    """A row: what it shows, and the values that it can be sorted by."""

    name: str
    item: Any
    self_ns: float = 0
    total_ns: float = 0
    calls: int = 0
    is_of_other_thread: bool = False

    def order(self, key: SortKey) -> tuple[Any, ...]:
        """Return what sorts the row: main threads first, then the largest value; equal values by name."""
        value = 0.0
        if key is SortKey.SELF:
            value = self.self_ns
        elif key is SortKey.TOTAL:
            value = self.total_ns
        elif key is SortKey.CALLS:
            value = self.calls
        return (self.is_of_other_thread, -value, self.name)


@dataclass(frozen=True, slots=True)
class LiveSection:
    """One table. The last columns are left out first where there is no room.

    `cells_of` returns the cells of a row's item, so that only what is shown is formatted.
    """

    key: SectionKey
    columns: tuple[str, ...]
    rows: tuple[LiveRow, ...]
    cells_of: Callable[[Any], tuple[str, ...]]

    def other_order(self, key: SortKey) -> str | None:
        """Return what the rows are sorted by in place of the chosen order; None where it is that."""
        if self.key is SectionKey.LAYERS and key is SortKey.TOTAL:
            return SortKey.SELF.value
        if self.key in (SectionKey.PYTHON, SectionKey.WAITING) and key is SortKey.CALLS:
            return "samples"
        return None

    def first_rows(self, key: SortKey, most: int | None = None) -> list[tuple[str, ...]]:
        """Return the cells of the first rows in an order. Processes and devices have their own."""
        if self.key in (SectionKey.PROCESSES, SectionKey.DEVICES):
            chosen = list(self.rows[:most])
        elif most is None:
            chosen = sorted(self.rows, key=lambda row: row.order(key))
        else:
            chosen = heapq.nsmallest(most, self.rows, key=lambda row: row.order(key))
        return [self.cells_of(row.item) for row in chosen]


def snapshot_text(snapshot: Snapshot) -> str:
    """Return the figures of an interval; - for an unavailable one."""
    tables = []
    for section in sections(snapshot):
        columns = [Column(section.columns[0], right=False), *map(Column, section.columns[1:])]
        most = None if section.key in (SectionKey.PROCESSES, SectionKey.DEVICES) else ROWS
        tables.append(text_table(columns, section.first_rows(SortKey.SELF, most)))
    head = header_lines(snapshot)
    if snapshot.run is None:
        head += missing_lines(snapshot)
    return "\n\n".join(["\n".join(head), *tables])


def header_lines(snapshot: Snapshot, process_id: int | None = None) -> list[str]:
    """Return lines on the machine, the run, its steps and a load test."""
    machine = snapshot.machine
    used, total = (
        _shown(each, format_bytes) for each in (machine.memory_used_bytes, machine.memory_total_bytes)
    )
    lines = [
        f"machine: CPU {_shown(machine.cpu_share, format_share)}, I/O wait "
        f"{_shown(machine.io_wait_share, format_share)}, memory {used} of {total}, network "
        f"{_rate(machine.received_bytes_per_s)} in, {_rate(machine.sent_bytes_per_s)} out"
    ]
    if snapshot.run is not None and snapshot.state is not None:
        lines.append(f"run: {escape_text(snapshot.run)} ({', '.join(_run_words(snapshot))})")
    if isinstance(snapshot.steps, tuple):
        lines += [
            line
            for each in snapshot.steps
            if process_id in (None, each.process_id)
            for line in _step_lines(each)
        ]
    if isinstance(snapshot.requests, LiveRequestFigures):
        lines += _request_lines(snapshot.requests)
    return lines


def _run_words(snapshot: Snapshot) -> list[str]:
    assert snapshot.state is not None
    words = [snapshot.state.value]
    if snapshot.is_late:
        words.append("reading what was recorded before")
    if snapshot.dropped_events:
        words.append(f"{counted(snapshot.dropped_events, 'event')} dropped")
    if snapshot.missed_spans:
        words.append(f"{counted(snapshot.missed_spans, 'span')} missed")
    return words


def _step_lines(steps: LiveStepFigures) -> list[str]:
    count = len(steps.durations_ns) + steps.earlier_steps
    lines = [
        f"steps of process {steps.process_id}: {format_count(count)}, median "
        f"{format_duration(steps.p50_ns)}, mean {format_duration(steps.mean_ns)}, last "
        f"{format_duration(steps.durations_ns[-1])}"
    ]
    parts = {
        "forward": steps.forward_ns,
        "backward": steps.backward_ns,
        "optimizer": steps.optimizer_ns,
        "data": steps.data_ns,
        "other": steps.other_ns,
    }
    whole = sum(value for value in parts.values() if value is not None)
    if whole:
        shares = (f"{name} {_known_share(value, whole)}" for name, value in parts.items())
        lines.append(f"  {', '.join(shares)}")
    return lines


def _known_share(value: int | None, whole: int) -> str:
    return "-" if value is None else format_share(value / whole)


def _request_lines(requests: LiveRequestFigures) -> list[str]:
    ended = counted(requests.ended, "request")
    if requests.planned is not None:
        ended = f"{format_count(requests.ended)} of {counted(requests.planned, 'request')}"
    state = "ended" if requests.is_over else "running"
    return [
        f"load test: {escape_text(requests.target)}, {escape_text(requests.scenario)} ({state})",
        f"  {ended} ended, {format_count(requests.failed)} failed, "
        f"queue {format_count(requests.queued)}, in service {format_count(requests.in_service)}",
        f"  {_shown(requests.ended_per_s, _per_second)} of {_shown(requests.arrivals_per_s, _per_second)} "
        f"due, latency p50 {_shown(requests.p50_ns, format_duration)}, p90 "
        f"{_shown(requests.p90_ns, format_duration)}, p99 {_shown(requests.p99_ns, format_duration)}",
    ]


def _per_second(rate: float) -> str:
    return f"{rate:,.1f}/s"


def sections(snapshot: Snapshot, process_id: int | None = None) -> list[LiveSection]:
    """Return the tables that have rows. With a process, Python functions are those of that one."""
    processes = tuple(LiveRow(each.name, each) for each in snapshot.processes)
    devices = tuple(LiveRow(each.name or "", each) for each in _tuple_of(snapshot.devices))
    made = [
        LiveSection(SectionKey.PROCESSES, _PROCESS_COLUMNS, processes, _process_cells),
        LiveSection(SectionKey.DEVICES, _DEVICE_COLUMNS, devices, _device_cells),
        _layers(snapshot),
        _calls(SectionKey.OPERATORS, "operator", snapshot, "operator", "backward"),
        _calls(SectionKey.SPANS, "span", snapshot, "span", "nvtx", "compile", "gc"),
        *_functions(snapshot, process_id),
        _kernels(snapshot),
    ]
    return [section for section in made if section.rows]


def missing_lines(snapshot: Snapshot) -> list[str]:
    """Return why tables have no rows, where there is a reason: those of a run, or devices without one."""
    if snapshot.run is None:
        devices = snapshot.devices
        if not isinstance(devices, Unavailable) or devices.reason is not MissingReason.NOT_RECORDED:
            return []
        return ["devices: no GPU" + (f" ({devices.detail})" if devices.detail else "")]
    named = {
        "operators": snapshot.operators,
        "Python": snapshot.python,
        "devices": snapshot.devices,
        "GPU work": snapshot.kernels,
    }
    return [
        f"{name}: {_MISSING[value.reason]}" + (f" ({value.detail})" if value.detail else "")
        for name, value in named.items()
        if isinstance(value, Unavailable) and value.reason in _MISSING
    ]


def _process_cells(process: ProcessFigures) -> tuple[str, ...]:
    rank = "" if process.rank is None else f"rank {process.rank} "
    state = "" if process.is_alive else " (ended)"
    state = " (stopped)" if process.is_stopped else state
    waiting = f" (waiting {format_duration(process.waiting_ns)})" if process.waiting_ns else ""
    return (
        f"{rank}{process.name}{state}{waiting}",
        _shown(process.cpu_cores, "{:.2f}".format),
        _shown(process.rss_bytes, format_bytes),
        str(process.process_id),
        _shown(process.spans, format_count),
        _shown(process.threads, format_count),
        _rate(process.read_bytes_per_s),
        _rate(process.written_bytes_per_s),
    )


def _device_cells(device: LiveDeviceFigures) -> tuple[str, ...]:
    lost = " (lost)" if device.is_lost else ""
    used = _shown(device.memory_used_bytes, format_bytes)
    throttled = device.throttle_reasons
    power, limit = (_shown(each, "{:.0f} W".format) for each in (device.power_w, device.power_limit_w))
    return (
        f"{device.device} {device.name or ''}{lost}",
        _shown(device.utilization_share, format_share),
        f"{used} of {_shown(device.memory_total_bytes, format_bytes)}",
        f"{power} of {limit}",
        _shown(device.temperature_c, "{:.0f} C".format),
        _shown(device.sm_clock_hz, lambda value: f"{format_quantity(value)}Hz"),
        "-" if isinstance(throttled, Unavailable) else ", ".join(throttled) or "no",
    )


def _layers(snapshot: Snapshot) -> LiveSection:
    layers: tuple[LiveLayerFigures, ...] = _tuple_of(snapshot.layers)
    whole = sum(each.self_ns for each in layers) or 1

    def cells(layer: LiveLayerFigures) -> tuple[str, ...]:
        share = format_share(layer.self_ns / whole)
        return layer.name, format_duration(layer.self_ns), share, format_count(layer.calls)

    rows = tuple(LiveRow(each.name, each, each.self_ns, each.self_ns, each.calls) for each in layers)
    return LiveSection(SectionKey.LAYERS, ("layer", "self time", "fraction", "calls"), rows, cells)


def _calls(key: SectionKey, title: str, snapshot: Snapshot, *kinds: str) -> LiveSection:
    calls = snapshot.calls if isinstance(snapshot.calls, tuple) else ()
    rows = tuple(
        LiveRow(each.name, each, each.self_ns, each.total_ns, each.calls)
        for each in calls
        if each.kind in kinds
    )
    return LiveSection(key, (title, "self time", "total time", "calls"), rows, _call_cells)


def _call_cells(call: LiveCallFigures) -> tuple[str, ...]:
    times = format_duration(call.self_ns), format_duration(call.total_ns)
    return call.name, *times, format_count(call.calls)


def _functions(snapshot: Snapshot, process_id: int | None) -> tuple[LiveSection, LiveSection]:
    """Return the functions that run, and those that wait; those of main threads come first."""
    functions: list[LiveFunctionFigures] = [
        each for each in _tuple_of(snapshot.python) if process_id in (None, each.process_id)
    ]

    def section(key: SectionKey, title: str, attribute: str) -> LiveSection:
        def cells(function: LiveFunctionFigures) -> tuple[str, ...]:
            line = str(function.lines[0][0]) if function.lines else "-"
            thread = "main" if function.is_main_thread else "other"
            return function.name, format_duration(getattr(function, attribute)), line, thread

        rows = tuple(
            LiveRow(each.name, each, time_ns, time_ns, each.samples, not each.is_main_thread)
            for each in functions
            if (time_ns := getattr(each, attribute))
        )
        return LiveSection(key, (title, "time", "line", "thread"), rows, cells)

    return (
        section(SectionKey.PYTHON, "Python", "running_ns"),
        section(SectionKey.WAITING, "waiting in", "waiting_ns"),
    )


def _kernels(snapshot: Snapshot) -> LiveSection:
    kernels: tuple[LiveKernelFigures, ...] = _tuple_of(snapshot.kernels)
    rows = tuple(LiveRow(each.name, each, each.total_ns, each.total_ns, each.calls) for each in kernels)
    return LiveSection(SectionKey.KERNELS, ("GPU work", "time", "calls", "device"), rows, _kernel_cells)


def _kernel_cells(kernel: LiveKernelFigures) -> tuple[str, ...]:
    return kernel.name, format_duration(kernel.total_ns), format_count(kernel.calls), str(kernel.device)


def _tuple_of(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _rate(value: float | Unavailable) -> str:
    return _shown(value, lambda rate: f"{format_bytes(rate)}/s")


def _shown(value: float | Unavailable, form: Callable[..., str]) -> str:
    return "-" if isinstance(value, Unavailable) else form(value)
