# SPDX-License-Identifier: Apache-2.0
"""Operators held against the roofs of what they ran on."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuprof.analyze.ceilings.ceiling import Ceiling, relative_spread
from gpuprof.analyze.roofline.device_work import Execution, HostDelay, host_delay
from gpuprof.analyze.roofline.evidence import WORK_UNKNOWN, evidence, roof_name
from gpuprof.analyze.roofline.join import Join, Joined
from gpuprof.analyze.roofline.labels import Doubts, Label, Resource, confidence, label
from gpuprof.analyze.roofline.machine import Machine
from gpuprof.analyze.roofline.machines import Machines
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.analyze.roofline.timed import Timed
from gpuprof.analyze.roofline.use import Use, use_of

NOTHING_KNOWN = Label("unknown", None, None, None, None, 0.0)
LOST = "it ran on a GPU, and none of its kernels was recorded"
CROSSES = "it copies between host and GPU, and nobody measured that way"
# Where it is not known whether a product could use TF32, whose peak is several times that of fp32.
_UNSURE_PEAK = 1.0


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of an operator on one device: their times, and on a GPU what was run for them."""

    machine: Machine
    times_ns: Sequence[int]
    executions: Sequence[Execution] = ()

    @property
    def time_ns(self) -> float:
        """The median time of a call."""
        return float(statistics.median(self.times_ns))

    @property
    def launches(self) -> float:
        """How many kernels, copies and fills a call has done."""
        return (
            float(statistics.median(len(each.pieces) for each in self.executions)) if self.executions else 1
        )

    @property
    def crosses(self) -> bool:
        """Whether calls copy between host and GPU."""
        return any(each.crosses for each in self.executions)

    @property
    def delay(self) -> HostDelay | None:
        """How often the GPU waited for the host before them; None on the host."""
        return _delay(self.executions, self.machine) if self.executions else None

    def fields(self, whole_ns: int) -> dict[str, Any]:
        """Return the times as fields of a row; `whole_ns` is all the time of the device."""
        total_ns = sum(self.times_ns)
        return {
            "calls": len(self.times_ns),
            "time_ns": self.time_ns,
            "total_ns": total_ns,
            "time_share": total_ns / whole_ns if whole_ns else None,
            "timing_spread": relative_spread(self.times_ns),
            "launches": self.launches if self.executions else None,
        }


def calls_of(joined: Joined, machines: Machines) -> Iterator[Calls]:
    """Yield the timed calls of an operator for each device: the host's times count where no GPU was used."""
    for device, executions in joined.executions.items():
        yield Calls(machines.of(device), [each.time_ns for each in executions], executions)
    if joined.durations_ns and not joined.executions:
        yield Calls(machines.host, joined.durations_ns)


def _delay(executions: Sequence[Execution], machine: Machine) -> HostDelay:
    floor, period = machine.find("launch"), machine.find("launch.period")
    floor_ns = 0.0 if floor is None else floor.value
    return host_delay(executions, floor_ns, floor_ns if period is None else period.value)


def launch_bound(found: Label, delay: HostDelay | None) -> Label:
    """Return the label with the second fact: besides doing next to nothing, it waited for the host."""
    if found.bound == "latency" and delay is not None and delay.is_usual:
        return replace(found, bound="launch")
    return found


def usage_fields(found: Label, use: Use, shares: dict[Resource, float | None]) -> dict[str, Any]:
    """Return what is used of which roof as fields of a row; where nothing is known, no roof is near."""
    is_known = found.bound != "unknown"
    return {
        "bound": found.bound,
        "nearest": found.nearest if is_known else None,
        "roof": roof_name(found.nearest, use) if is_known else None,
        "roof_share": found.used if is_known else None,
        "used": shares,
        "memory_level": None if use.traffic is None else use.traffic.level.name,
        "memory_bytes": None if use.traffic is None else use.traffic.bytes,
    }


def operator_rows(
    joined: Join, machines: Machines, timed: Timed, lost: Collection[str]
) -> Iterator[RooflineRow]:
    """Yield a row for each operator and device; what roots in `lost` did on a GPU was not recorded."""
    for each in joined.rows:
        for calls in calls_of(each, machines):
            device = calls.machine.device
            whole_ns = timed.device_ns[device] if calls.machine.is_gpu else timed.total_ns
            is_lost = each.row.root in lost and bool(each.row.bytes)
            yield _operator_row(each, calls, whole_ns, LOST if is_lost else None)


def _operator_row(joined: Joined, calls: Calls, whole_ns: int, unknown: str | None) -> RooflineRow:
    row, machine, time_ns = joined.row, calls.machine, calls.time_ns
    unknown = CROSSES if calls.crosses else unknown
    use = use_of(row, machine, time_ns, calls.launches)
    shares = use.shares(time_ns)
    found = NOTHING_KNOWN if unknown else launch_bound(label(shares), calls.delay)
    if row.exactness == "unknown" and found.bound == "under-utilised":
        found, unknown = NOTHING_KNOWN, WORK_UNKNOWN  # what is not known may be what binds
    return RooflineRow(
        kind="operator",
        name=f"{row.operator.removeprefix('aten::')} @ {row.layer or '(outside)'}",
        root=row.root,
        layer=row.layer,
        operator=row.operator,
        ordinal=row.ordinal,
        phase=row.phase,
        dtype=row.dtype,
        **calls.fields(whole_ns),
        flops=row.flops,
        bytes=row.bytes,
        exactness=row.exactness,
        **usage_fields(found, use, shares),
        confidence=confidence(found, _doubts(joined, found, use, calls)),
        evidence=unknown or _evidence(joined, found, use, calls),
        device=machine.device,
    )


def _evidence(joined: Joined, found: Label, use: Use, calls: Calls) -> str:
    line = evidence(
        found,
        use,
        flops=joined.row.flops,
        faults=None if calls.machine.is_gpu else joined.row.page_faults,
        time_ns=calls.time_ns,
        delay=calls.delay,
    )
    return f"{calls.machine.device}: {line}" if calls.machine.is_gpu else line


def _doubts(joined: Joined, found: Label, use: Use, calls: Calls) -> Doubts:
    ceiling = ceiling_of(found, use, calls.machine)
    return Doubts(
        exactness=joined.row.exactness,
        ceiling_spread=ceiling_spread(found, use, calls.machine) + _excess(found, use, calls.time_ns),
        drift=0.0 if ceiling is None else calls.machine.drift(ceiling),
        timing_spread=relative_spread(calls.times_ns),
        join=joined.quality,
        unsure_bytes=use.unsure_bytes,
    )


def ceiling_spread(found: Label, use: Use, machine: Machine) -> float:
    """Return how far the ceiling that a label rests on may be off."""
    ceiling = ceiling_of(found, use, machine)
    unsure = _UNSURE_PEAK if found.nearest == "compute" and not use.peak_is_sure else 0.0
    return unsure + (0.0 if ceiling is None else machine.spread(ceiling))


def _excess(found: Label, use: Use, time_ns: float) -> float:
    """Return by how much memory was faster than its ceiling, which then says little."""
    if found.nearest != "memory" or use.memory_ns is None or time_ns <= 0:
        return 0.0
    return max(0.0, use.memory_ns / time_ns - 1)


def ceiling_of(found: Label, use: Use, machine: Machine) -> Ceiling | None:
    """Return the ceiling that a label rests on."""
    if found.nearest == "compute":
        return use.peak
    if found.nearest == "memory":
        return None if use.traffic is None else use.traffic.level.ceiling
    return machine.find("launch" if found.nearest == "latency" else "page_fault")
