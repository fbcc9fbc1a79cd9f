# SPDX-License-Identifier: Apache-2.0
"""The figures of one interval of a program, its run and the machine; an unknown one has a reason."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any


class MissingReason(str, enum.Enum):
    """Why a figure is unavailable."""

    FIRST_INTERVAL = "first_interval"
    NO_RUN = "no_run"
    NOT_RECORDED = "not_recorded"
    AFTER_THE_END = "after_the_end"  # recorded, but written when the program ends
    NO_STEPS = "no_steps"
    NOT_PERMITTED = "not_permitted"
    NO_PROCFS = "no_procfs"
    PROCESS_ENDED = "process_ended"
    NO_LOAD_TEST = "no_load_test"
    NO_READING = "no_reading"  # the device or its driver reported none in the interval
    NOT_UPDATED = "not_updated"  # nothing was published in the interval


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Takes the place of a figure that is unknown; never 0."""

    reason: MissingReason
    detail: str = ""


_NO_PROCFS = Unavailable(MissingReason.NO_PROCFS)


class RunState(str, enum.Enum):
    """What is left to read of a run."""

    RECORDING = "recording"
    ENDED = "ended"  # all processes have ended, and all of their events were read
    GONE = "gone"  # the folder was removed or moved


@dataclass(frozen=True, slots=True)
class LiveCallFigures:
    """Calls of one name that ended in the interval. `self_ns` is without the calls inside."""

    kind: str
    name: str
    calls: int
    total_ns: int
    self_ns: int


@dataclass(frozen=True, slots=True)
class LiveLayerFigures:
    """The time of a layer in the interval without the layers inside; operators are included."""

    name: str
    calls: int
    self_ns: int


@dataclass(frozen=True, slots=True)
class LiveStepFigures:
    """Steps of one process that ended in the interval, in the order of their end.

    Parts are those of the table `steps`, summed over the steps; None where operators were not recorded.
    """

    process_id: int
    source: str
    durations_ns: tuple[int, ...]
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    data_ns: int | None = None
    other_ns: int | None = None
    earlier_steps: int = 0  # of a sum: steps whose durations are not retained

    @property
    def mean_ns(self) -> float:
        """Mean duration of the steps."""
        return sum(self.durations_ns) / len(self.durations_ns)

    @property
    def p50_ns(self) -> float:
        """Median duration of the steps."""
        ordered = sorted(self.durations_ns)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process: rates are of the interval. `cpu_cores` of 1.0 is one processor for all of it.

    `cpu_s`, `read_bytes` and `written_bytes` are sums since the process began.
    """

    process_id: int
    parent_process_id: int | None
    name: str
    is_alive: bool
    threads: int | Unavailable
    rss_bytes: int | Unavailable
    cpu_cores: float | Unavailable
    read_bytes_per_s: float | Unavailable
    written_bytes_per_s: float | Unavailable
    spans: int | Unavailable
    waiting_ns: int = 0  # how long a compilation or a garbage collection has lasted; 0: none does
    rank: int | None = None  # of a launcher, as the process was started with
    is_stopped: bool = False  # by a signal or a debugger
    cpu_s: float | Unavailable = _NO_PROCFS
    read_bytes: int | Unavailable = _NO_PROCFS
    written_bytes: int | Unavailable = _NO_PROCFS


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """The whole machine, in an interval; 1.0 is the time of all its processors.

    `cpu_s`, `io_wait_s`, `received_bytes` and `sent_bytes` are sums since it was started.
    """

    processors: int
    cpu_share: float | Unavailable
    io_wait_share: float | Unavailable
    memory_used_bytes: int | Unavailable
    memory_total_bytes: int | Unavailable
    load_1min: float | Unavailable
    received_bytes_per_s: float | Unavailable
    sent_bytes_per_s: float | Unavailable
    cpu_s: float | Unavailable = _NO_PROCFS
    io_wait_s: float | Unavailable = _NO_PROCFS
    received_bytes: int | Unavailable = _NO_PROCFS
    sent_bytes: int | Unavailable = _NO_PROCFS


@dataclass(frozen=True, slots=True)
class LiveFunctionFigures:
    """Samples of the interval in which a Python function was innermost, on one kind of thread.

    A thread runs on a processor or is ready to; where that is unknown, it counts as running. `lines` are
    those of the function with their time, running and waiting, the most first; empty where lines are unknown.
    """

    process_id: int
    name: str
    is_main_thread: bool
    samples: int
    running_ns: int
    waiting_ns: int
    lines: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LiveDeviceFigures:
    """Readings of one device in the interval.

    Utilization and power are means of the readings, `throttle_reasons` those of any reading, the others are
    of the latest reading. `energy_j` counts from the device's first reading. A device that `is_lost` does not
    respond any more.
    """

    device: int
    name: str | None
    uuid: str | None
    is_lost: bool
    readings: int
    utilization_share: float | Unavailable
    memory_utilization_share: float | Unavailable  # fraction of time in which memory was read or written
    memory_used_bytes: int | Unavailable
    memory_total_bytes: int | Unavailable
    power_w: float | Unavailable
    power_limit_w: float | Unavailable
    energy_j: float | Unavailable
    sm_clock_hz: float | Unavailable
    memory_clock_hz: float | Unavailable
    temperature_c: float | Unavailable
    throttle_reasons: tuple[str, ...] | Unavailable


@dataclass(frozen=True, slots=True)
class LiveKernelFigures:
    """GPU work of one name, recorded in the interval. `kind` is kernel, copy, fill, layer or graph."""

    kind: str
    name: str
    device: int
    calls: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class LiveRequestFigures:
    """A running load test. Counts, `latency_sum_ns` and `latency_buckets` are since its start.

    `latency_buckets` are upper bounds in nanoseconds with the number of requests up to them and above the
    former bound, without empty ones. Latencies are from the planned arrival to the end. `queued` requests are
    due and not sent. Rates and quantiles are of the interval; a quantile is the bound of its bucket, at most
    5% above the value.
    """

    process_id: int
    target: str
    scenario: str
    is_over: bool
    planned: int | None  # None for a closed loop, which ends by time
    due: int
    sent: int
    ended: int
    failed: int
    queued: int
    in_service: int
    latency_sum_ns: int
    latency_buckets: tuple[tuple[int, int], ...]
    arrivals_per_s: float | Unavailable
    ended_per_s: float | Unavailable
    p50_ns: int | Unavailable
    p90_ns: int | Unavailable
    p99_ns: int | Unavailable


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of one interval. `unix_ns` is its end; calls and steps are those that ended in it.

    The first snapshot of a run has all calls and steps that were recorded before.
    `is_late` is True if the reader has not read all events of the interval. `missed_spans` are spans of the
    closed run that were removed before they could be read.
    """

    unix_ns: int
    interval_ns: int
    machine: MachineFigures
    processes: tuple[ProcessFigures, ...] = ()
    run: str | None = None
    state: RunState | None = None
    steps: tuple[LiveStepFigures, ...] | Unavailable = Unavailable(MissingReason.NO_RUN)
    layers: tuple[LiveLayerFigures, ...] | Unavailable = Unavailable(MissingReason.NO_RUN)
    calls: tuple[LiveCallFigures, ...] | Unavailable = Unavailable(MissingReason.NO_RUN)
    operators: Unavailable | None = Unavailable(MissingReason.NO_RUN)  # why `calls` has none of them
    allocator: Unavailable = Unavailable(MissingReason.NO_RUN)
    requests: LiveRequestFigures | Unavailable = Unavailable(MissingReason.NO_LOAD_TEST)
    is_late: bool = False
    dropped_events: int = 0
    missed_spans: int = 0
    python: tuple[LiveFunctionFigures, ...] | Unavailable = Unavailable(MissingReason.NO_RUN)
    devices: tuple[LiveDeviceFigures, ...] | Unavailable = Unavailable(MissingReason.NO_RUN)
    kernels: tuple[LiveKernelFigures, ...] | Unavailable = Unavailable(MissingReason.NO_RUN)

    def calls_of(self, *kinds: str) -> list[LiveCallFigures]:
        """Return the calls of some kinds, those with the most self time first."""
        if isinstance(self.calls, Unavailable):
            return []
        chosen = [each for each in self.calls if each.kind in kinds]
        return sorted(chosen, key=lambda each: (-each.self_ns, each.name))

    def to_plain(self) -> dict[str, Any]:
        """Return values for JSON; an unavailable figure is an object with its reason."""
        plain: dict[str, Any] = _plain(self)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Unavailable):
        shown = {"unavailable": value.reason.value}
        return {**shown, "detail": value.detail} if value.detail else shown
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
