# SPDX-License-Identifier: Apache-2.0
"""The metrics: their names for Prometheus and for OpenTelemetry, with types, units and labels.

OpenTelemetry's conventions for devices (`hw.gpu`) are in development; their names are in this file alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class MetricKind(str, Enum):
    """The type of a metric, as Prometheus has it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


# With powers of 2, histogram_quantile(0.99) of steps of one duration is below 3 times their median, wherever
# the duration is between the bounds.
STEP_BOUNDS_NS = tuple(1_000_000 << power for power in range(17))
# From 65 us to 69 s, two an octave. These are among the bounds that a load test publishes, so no request is
# in a wrong bucket.
REQUEST_BOUNDS_NS = tuple(math.ceil(math.pow(2.0, half / 2)) for half in range(32, 73))


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric. `name` is that of Prometheus; `otel` that of OpenTelemetry, with `otel_unit` in UCUM.

    A histogram has `bounds_ns`, the upper bounds of its buckets but the last.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    otel: str = ""
    otel_unit: str = "1"
    bounds_ns: tuple[int, ...] = ()

    @property
    def family(self) -> str:
        """The name in OpenMetrics, which is without the suffix of counters and infos."""
        suffix = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)

    @property
    def unit(self) -> str:
        """The unit as OpenMetrics has it: the end of the family's name."""
        last = self.family.rpartition("_")[2]
        return last if last in _UNITS else ""


_UNITS = ("seconds", "bytes", "ratio", "celsius", "watts", "joules", "hertz")
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_RUN, _PROCESS, _DEVICE = ("run",), ("run", "process"), ("device",)


def _define(*rows: tuple[str, MetricKind, str, tuple[str, ...], str, str]) -> tuple[MetricDefinition, ...]:
    return tuple(MetricDefinition(*row) for row in rows)


STEPS = MetricDefinition(
    "gpuprof_step_duration_seconds",
    MetricKind.HISTOGRAM,
    "Duration of the steps that ended.",
    _PROCESS,
    "gpuprof.step.duration",
    "s",
    STEP_BOUNDS_NS,
)
LATENCY = MetricDefinition(
    "gpuprof_request_latency_seconds",
    MetricKind.HISTOGRAM,
    "Latency of the successful requests of a load test, from their planned arrival.",
    _PROCESS,
    "gpuprof.request.latency",
    "s",
    REQUEST_BOUNDS_NS,
)
BUILD = MetricDefinition(
    "gpuprof_build_info", MetricKind.INFO, "Version of gpuprof that exports the metrics.", ("version",)
)
TARGET = MetricDefinition(
    "target_info", MetricKind.INFO, "Resource of the metrics.", ("service_name", "host_name")
)
RUN = _define(
    (
        "gpuprof_run_recording",
        _GAUGE,
        "1 while the run is recorded, 0 after its end.",
        _RUN,
        "gpuprof.run.recording",
        "1",
    ),
    ("gpuprof_run_late", _GAUGE, "1 if events wait to be read.", _RUN, "gpuprof.run.late", "1"),
    ("gpuprof_steps_total", _COUNTER, "Steps that ended.", _PROCESS, "gpuprof.steps", "{step}"),
    (
        "gpuprof_step_part_seconds_total",
        _COUNTER,
        "Time of steps by part.",
        (*_PROCESS, "part"),
        "gpuprof.step.part.time",
        "s",
    ),
    ("gpuprof_spans_total", _COUNTER, "Spans that ended.", _PROCESS, "gpuprof.spans", "{span}"),
    (
        "gpuprof_dropped_events_total",
        _COUNTER,
        "Events that could not be recorded.",
        _RUN,
        "gpuprof.dropped_events",
        "{event}",
    ),
    (
        "gpuprof_layer_seconds_total",
        _COUNTER,
        "Time of a layer without the layers inside.",
        (*_RUN, "layer"),
        "gpuprof.layer.time",
        "s",
    ),
    (
        "gpuprof_layer_calls_total",
        _COUNTER,
        "Calls of a layer.",
        (*_RUN, "layer"),
        "gpuprof.layer.calls",
        "{call}",
    ),
    (
        "gpuprof_operator_seconds_total",
        _COUNTER,
        "Self time of an operator.",
        (*_RUN, "operator"),
        "gpuprof.operator.time",
        "s",
    ),
    (
        "gpuprof_operator_calls_total",
        _COUNTER,
        "Calls of an operator.",
        (*_RUN, "operator"),
        "gpuprof.operator.calls",
        "{call}",
    ),
    (
        "gpuprof_span_seconds_total",
        _COUNTER,
        "Time of a named span, calls inside included.",
        (*_RUN, "span"),
        "gpuprof.span.time",
        "s",
    ),
    (
        "gpuprof_kernel_seconds_total",
        _COUNTER,
        "Time of GPU work by name.",
        (*_RUN, "kernel"),
        "gpuprof.kernel.time",
        "s",
    ),
)
PROCESS = _define(
    (
        "process_cpu_seconds_total",
        _COUNTER,
        "Processor time of a process.",
        _PROCESS,
        "process.cpu.time",
        "s",
    ),
    (
        "process_resident_memory_bytes",
        _GAUGE,
        "Resident memory of a process.",
        _PROCESS,
        "process.memory.usage",
        "By",
    ),
    (
        "gpuprof_process_threads",
        _GAUGE,
        "Threads of a process.",
        _PROCESS,
        "process.thread.count",
        "{thread}",
    ),
    (
        "gpuprof_process_read_bytes_total",
        _COUNTER,
        "Bytes that a process read from disks.",
        _PROCESS,
        "gpuprof.process.read",
        "By",
    ),
    (
        "gpuprof_process_written_bytes_total",
        _COUNTER,
        "Bytes that a process wrote to disks.",
        _PROCESS,
        "gpuprof.process.written",
        "By",
    ),
    (
        "gpuprof_processes",
        _GAUGE,
        "Processes that run, with and without series of their own.",
        _RUN,
        "gpuprof.processes",
        "{process}",
    ),
)
MACHINE = _define(
    (
        "gpuprof_machine_processors",
        _GAUGE,
        "Processors of the machine.",
        (),
        "system.cpu.logical.count",
        "{cpu}",
    ),
    (
        "gpuprof_machine_cpu_seconds_total",
        _COUNTER,
        "Processor time of the machine: busy, or waiting for I/O.",
        ("mode",),
        "system.cpu.time",
        "s",
    ),
    (
        "gpuprof_machine_memory_used_bytes",
        _GAUGE,
        "Memory of the machine that is not available.",
        (),
        "system.memory.usage",
        "By",
    ),
    ("gpuprof_machine_memory_total_bytes", _GAUGE, "Memory of the machine.", (), "system.memory.limit", "By"),
    ("gpuprof_machine_load1", _GAUGE, "Load average of one minute.", (), "gpuprof.machine.load", "1"),
    (
        "gpuprof_machine_received_bytes_total",
        _COUNTER,
        "Bytes received from networks.",
        (),
        "gpuprof.machine.received",
        "By",
    ),
    (
        "gpuprof_machine_sent_bytes_total",
        _COUNTER,
        "Bytes sent to networks.",
        (),
        "gpuprof.machine.sent",
        "By",
    ),
)
DEVICE = _define(
    (
        "gpuprof_device_info",
        MetricKind.INFO,
        "Name and UUID of a device.",
        ("device", "name", "uuid"),
        "",
        "1",
    ),
    ("gpuprof_device_lost", _GAUGE, "1 if a device does not respond any more.", _DEVICE, "hw.gpu.lost", "1"),
    (
        "gpuprof_device_utilization_ratio",
        _GAUGE,
        "Fraction of time in which a kernel ran.",
        _DEVICE,
        "hw.gpu.utilization",
        "1",
    ),
    (
        "gpuprof_device_memory_utilization_ratio",
        _GAUGE,
        "Fraction of time in which memory was read or written.",
        _DEVICE,
        "hw.gpu.memory.utilization",
        "1",
    ),
    (
        "gpuprof_device_memory_used_bytes",
        _GAUGE,
        "Memory of a device that all processes use.",
        _DEVICE,
        "hw.gpu.memory.usage",
        "By",
    ),
    (
        "gpuprof_device_memory_total_bytes",
        _GAUGE,
        "Memory of a device.",
        _DEVICE,
        "hw.gpu.memory.limit",
        "By",
    ),
    ("gpuprof_device_power_watts", _GAUGE, "Power of a device.", _DEVICE, "hw.gpu.power", "W"),
    (
        "gpuprof_device_power_limit_watts",
        _GAUGE,
        "Power limit of a device.",
        _DEVICE,
        "hw.gpu.power.limit",
        "W",
    ),
    (
        "gpuprof_device_energy_joules_total",
        _COUNTER,
        "Energy of a device since its first reading.",
        _DEVICE,
        "hw.gpu.energy",
        "J",
    ),
    (
        "gpuprof_device_temperature_celsius",
        _GAUGE,
        "Temperature of a device.",
        _DEVICE,
        "hw.gpu.temperature",
        "Cel",
    ),
    ("gpuprof_device_sm_clock_hertz", _GAUGE, "Clock of the multiprocessors.", _DEVICE, "hw.gpu.clock", "Hz"),
    (
        "gpuprof_device_memory_clock_hertz",
        _GAUGE,
        "Clock of the device's memory.",
        _DEVICE,
        "hw.gpu.memory.clock",
        "Hz",
    ),
    (
        "gpuprof_device_throttled",
        _GAUGE,
        "1 while a reason lowers the clocks.",
        (*_DEVICE, "reason"),
        "hw.gpu.throttled",
        "1",
    ),
)
REQUESTS = _define(
    (
        "gpuprof_requests_total",
        _COUNTER,
        "Requests of a load test: due, sent, ended, or failed.",
        (*_PROCESS, "state"),
        "gpuprof.requests",
        "{request}",
    ),
    (
        "gpuprof_requests_queued",
        _GAUGE,
        "Requests that are due and not sent.",
        _PROCESS,
        "gpuprof.requests.queued",
        "{request}",
    ),
    (
        "gpuprof_requests_in_service",
        _GAUGE,
        "Requests that were sent and have not ended.",
        _PROCESS,
        "gpuprof.requests.in_service",
        "{request}",
    ),
)
ALL = (TARGET, BUILD, STEPS, *RUN, *PROCESS, *MACHINE, *DEVICE, *REQUESTS, LATENCY)
_ATTRIBUTES = {
    "process": "process.pid",
    "device": "hw.id",
    "mode": "cpu.mode",
    "service_name": "service.name",
    "host_name": "host.name",
}


def attribute_of(label: str) -> str:
    """Return the attribute in OpenTelemetry that a label is."""
    return _ATTRIBUTES.get(label, f"gpuprof.{label}")
