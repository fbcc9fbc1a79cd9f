# SPDX-License-Identifier: Apache-2.0
"""Operators, and the kernels, copies and fills that they launch, compared with the ceilings of their device.

The work of an operator is never split: its kernel has it where there was no other. Else only what hardware
counters measured of a kernel is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.kernel_labels import kernel_labels
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.device_activity import (
    Executions,
    HostDelay,
    changes,
    host_delay,
    single_executions,
)
from gpuprof.analyze.roofline.evidence import CallFigures, Evidence, NoLabel, evidence_of
from gpuprof.analyze.roofline.join import Join, Joined
from gpuprof.analyze.roofline.labels import Bound, Doubts, Label, Resource, confidence, label
from gpuprof.analyze.roofline.measured_spans import MeasuredSpans, taken_or_none
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.analyze.roofline.utilization import Machine, Machines, Utilization, utilization_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

NO_LABEL = Label(Bound.UNKNOWN, None, None, None, None, 0.0)
# Where it is unknown whether a product may use TF32, whose peak is several times that of fp32.
_UNCERTAIN_PEAK = 1.0


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """The calls of an operator on one device: their times, and on a GPU what was run for them."""

    machine: Machine
    times_ns: Ints
    executions: Executions | None = None

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self.times_ns)

    @property
    def time_ns(self) -> float:
        """The median time of a call."""
        return float(np.median(self.times_ns))

    @property
    def total_ns(self) -> int:
        """The time of all calls."""
        return int(self.times_ns.sum())

    @property
    def relative_iqr(self) -> float | None:
        """The interquartile range of the times over their median; None of fewer than three calls."""
        if len(self.times_ns) < 3:
            return None
        first, median, third = np.quantile(self.times_ns, (0.25, 0.5, 0.75))
        return float((third - first) / median) if median > 0 else None

    @property
    def launches(self) -> float:
        """How many kernels, copies and fills a call has; 1 on the host."""
        return 1 if self.executions is None else float(np.median(self.executions.launches))

    @property
    def crosses(self) -> bool:
        """Whether calls copy between host and GPU."""
        return self.executions is not None and bool(self.executions.crosses.any())

    @property
    def delay(self) -> HostDelay | None:
        """How often the GPU waited for the host before them; None on the host."""
        if self.executions is None:
            return None
        floor, period = self.machine.find("launch"), self.machine.find("launch.period")
        floor_ns = 0.0 if floor is None else floor.value
        return host_delay(self.executions, floor_ns, floor_ns if period is None else period.value)

    def fields(self, whole_ns: int) -> dict[str, Any]:
        """Return the times as fields of a row; `whole_ns` is all the time of the device."""
        return {
            "calls": self.count,
            "time_ns": self.time_ns,
            "total_ns": self.total_ns,
            "time_share": self.total_ns / whole_ns if whole_ns else None,
            "timing_spread": self.relative_iqr,
            "launches": None if self.executions is None else self.launches,
            "device": self.machine.device,
        }


def calls_of(joined: Joined, machines: Machines) -> Iterator[TimedCalls]:
    """Yield the timed calls of an operator for each device: the host's times count where no GPU was used."""
    for device, executions in joined.executions.items():
        yield TimedCalls(machines.of(device), executions.time_ns, executions)
    if len(joined.durations_ns) and not joined.executions:
        yield TimedCalls(machines.host, joined.durations_ns)


def usage_fields(found: Label, use: Utilization, shares: dict[Resource, float | None]) -> dict[str, Any]:
    """Return the utilization as fields of a row; without a label, no ceiling is the nearest."""
    is_known = found.bound != Bound.UNKNOWN
    return {
        "bound": found.bound,
        "nearest": found.nearest if is_known else None,
        "roof": ceiling_name(found.nearest, use) if is_known else None,
        "roof_share": found.used if is_known else None,
        "used": shares,
        "memory_level": None if use.traffic is None else use.traffic.level.name,
        "memory_bytes": None if use.traffic is None else use.traffic.bytes,
    }


def ceiling_name(resource: Resource | None, use: Utilization) -> str | None:
    """Return the ceiling that a utilization is of, as the table `ceilings` names it."""
    if resource == Resource.COMPUTE and use.peak is not None:
        return f"compute {use.peak.dtype}"
    if resource == Resource.MEMORY and use.traffic is not None:
        return f"memory.{use.traffic.level.name}"
    return (
        {Resource.LATENCY: "launch", Resource.PAGE_FAULTS: "page_fault"}.get(resource) if resource else None
    )


# ---- operators -------------------------------------------------------------------------------


def operator_rows(
    joined: Join, machines: Machines, timed: MeasuredSpans, lost: Collection[str]
) -> Iterator[RooflineRow]:
    """Yield a row for each operator and device; of the roots in `lost` no GPU work was recorded."""
    for each in joined.operators:
        is_lost = each.row.root in lost and bool(each.row.bytes)
        for calls in calls_of(each, machines):
            whole_ns = timed.whole_ns(calls.machine.device)
            yield _operator_row(each, calls, whole_ns, NoLabel.KERNELS_NOT_RECORDED if is_lost else None)


def _operator_row(joined: Joined, calls: TimedCalls, whole_ns: int, reason: NoLabel | None) -> RooflineRow:
    row, time_ns = joined.row, calls.time_ns
    reason = NoLabel.HOST_COPY if calls.crosses else reason
    use = utilization_of(row, calls.machine, time_ns, calls.launches)
    shares = use.fractions(time_ns)
    found = label(shares, calls)
    if reason is None and row.exactness == "unknown" and found.bound == Bound.UNDERUTILIZED:
        reason = NoLabel.WORK_UNKNOWN  # the unknown work may be the bottleneck
    gpu = calls.machine.device if calls.machine.is_gpu else None
    if reason is not None:
        found, evidence = NO_LABEL, Evidence(reason=reason, gpu=gpu)
    else:
        call = CallFigures(time_ns, row.flops, None if gpu else row.page_faults, calls.delay)
        evidence = evidence_of(found, use, call, gpu)
    doubts = _doubts(joined, found, use, calls)
    excess = _excess(found, use, time_ns)
    what = row.operator.removeprefix("aten::")
    return RooflineRow(
        kind="operator",
        name=f"{what} @ {row.layer or '(outside)'}",
        what=what,
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
        confidence=confidence(
            found, replace(doubts, ceiling_uncertainty=doubts.ceiling_uncertainty + excess)
        ),
        evidence=evidence,
    )


def _doubts(joined: Joined | None, found: Label, use: Utilization, calls: TimedCalls) -> Doubts:
    ceiling = ceiling_of(found, use, calls.machine)
    return Doubts(
        exactness="exact" if joined is None else joined.row.exactness,
        ceiling_uncertainty=ceiling_uncertainty(found, use, calls.machine),
        drift=0.0 if ceiling is None else calls.machine.drift(ceiling),
        timing_spread=calls.relative_iqr,
        join=1.0 if joined is None else joined.quality,
        uncertain_bytes=use.uncertain_bytes,
    )


def ceiling_uncertainty(found: Label, use: Utilization, machine: Machine) -> float:
    """Return the uncertainty of the ceiling that a label uses."""
    ceiling = ceiling_of(found, use, machine)
    is_uncertain = found.nearest == Resource.COMPUTE and not use.is_peak_certain
    return (_UNCERTAIN_PEAK if is_uncertain else 0.0) + (
        0.0 if ceiling is None else machine.uncertainty(ceiling)
    )


def _excess(found: Label, use: Utilization, time_ns: float) -> float:
    """Return by how much memory was faster than its ceiling, which is doubtful then."""
    if found.nearest != Resource.MEMORY or use.memory_ns is None or time_ns <= 0:
        return 0.0
    return max(0.0, use.memory_ns / time_ns - 1)


def ceiling_of(found: Label, use: Utilization, machine: Machine) -> Ceiling | None:
    """Return the ceiling that a label uses."""
    if found.nearest == Resource.COMPUTE:
        return use.peak
    if found.nearest == Resource.MEMORY:
        return None if use.traffic is None else use.traffic.level.ceiling
    return machine.find("launch" if found.nearest == Resource.LATENCY else "page_fault")


# ---- kernels ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kernel:
    """All launches of a kernel for one operator, or in one layer outside of counted operators.

    `together` is how many kernels, copies and fills a call of the operator has at most.
    """

    name: str
    root: str
    layer: str
    operator: str | None
    joined: Joined | None
    which: Ints
    together: int = 1


def kernel_rows(joined: Join, timed: MeasuredSpans, machines: Machines) -> list[RooflineRow]:
    """Return a row for each kernel of each operator, the longest first."""
    kernels = (*_joined_kernels(joined, timed), *_other_kernels(joined, timed))
    labels = kernel_labels(kernel.name for kernel in kernels)
    rows = [_kernel_row(kernel, labels[kernel.name], machines, timed) for kernel in kernels]
    return sorted(rows, key=lambda row: -row.total_ns)


def _joined_kernels(joined: Join, timed: MeasuredSpans) -> Iterator[_Kernel]:
    """Yield the kernels of counted operators."""
    gpu, names = timed.gpu, timed.gpu.activity.names
    which = np.flatnonzero(gpu.owner >= 0)
    which = which[joined.row_of[gpu.owner[which]] >= 0]
    operator = joined.operator_of[joined.row_of[gpu.owner[which]]]
    for members in _groups((operator, gpu.activity.name[which], gpu.activity.device[which])):
        kernels = which[members]
        each = joined.operators[int(operator[members[0]])]
        together = int(gpu.executions.launches[gpu.execution_of[kernels]].max())
        name, row = names[gpu.activity.name[kernels[0]]], each.row
        yield _Kernel(name, row.root, row.layer, row.operator, each, kernels, together)


def _other_kernels(joined: Join, timed: MeasuredSpans) -> Iterator[_Kernel]:
    """Yield the kernels that no counted operator has: of other operators, and outside of operators."""
    gpu, columns, places = timed.gpu, timed.columns, timed.places
    rest = np.concatenate((joined.unmatched, joined.other_work, timed.uncounted))
    is_rest = np.isin(gpu.owner, rest) & (gpu.owner >= 0)
    which = np.flatnonzero(is_rest | (gpu.owner < 0))
    # Of an operator its own place counts, else that of what launched the kernel.
    place = np.where(is_rest[which], gpu.owner[which], gpu.launcher[which])
    layer, call = taken_or_none(places.layer, place), taken_or_none(places.root_call, place)
    root = taken_or_none(columns.name, call)
    operator = np.where(is_rest[which], taken_or_none(columns.name, place), -1)
    keys = (operator, layer, root, gpu.activity.name[which], gpu.activity.device[which])
    for members in _groups(((~is_rest[which]).astype(np.int64), *keys)):
        first = members[0]
        at = int(place[first])
        yield _Kernel(
            gpu.activity.names[gpu.activity.name[which[first]]],
            "" if at < 0 else timed.root_of(at),
            "" if at < 0 else timed.layer_of(at),
            None if operator[first] < 0 else columns.names[operator[first]],
            None,
            which[members],
        )


def _groups(columns: Sequence[Ints]) -> list[Ints]:
    """Return the indices of elements that are equal in all columns, by the first column, then by time."""
    count = len(columns[0])
    if not count:
        return []
    order = np.lexsort((np.arange(count), *columns))
    starts = np.flatnonzero(changes([column[order] for column in columns]))
    groups = np.split(order, starts[1:])
    return sorted(groups, key=lambda members: (columns[0][members[0]], members[0]))


def _kernel_row(kernel: _Kernel, shown: str, machines: Machines, timed: MeasuredSpans) -> RooflineRow:
    activity = timed.gpu.activity
    device = activity.devices[activity.device[kernel.which[0]]]
    executions = single_executions(activity, kernel.which)
    calls = TimedCalls(machines.of(device), executions.time_ns, executions)
    counted = kernel.joined.row if kernel.joined is not None and kernel.together == 1 else None
    use = utilization_of(counted or _nothing_counted(kernel), calls.machine, calls.time_ns)
    shares = use.fractions(calls.time_ns)
    found = label(shares, calls)
    is_open = found.bound == Bound.UNDERUTILIZED and (counted is None or counted.exactness == "unknown")
    if calls.crosses or is_open:
        found = NO_LABEL
    # That a kernel does next to nothing is known without its work.
    doubts = _doubts(kernel.joined, found, use, calls)
    doubts = doubts if counted is not None else replace(doubts, exactness="exact")
    return RooflineRow(
        kind="kernel",
        name=f"{shown} @ {kernel.layer or '(outside)'}",
        what=shown,
        kernel=kernel.name,
        root=kernel.root,
        layer=kernel.layer,
        operator=kernel.operator,
        ordinal=None if kernel.joined is None else kernel.joined.row.ordinal,
        phase=None if kernel.joined is None else kernel.joined.row.phase,
        dtype=None if counted is None else counted.dtype,
        **calls.fields(timed.whole_ns(device)),
        flops=None if counted is None else counted.flops,
        bytes=None if counted is None else counted.bytes,
        exactness="unknown" if counted is None else counted.exactness,
        **usage_fields(found, use, shares),
        confidence=confidence(found, doubts),
        evidence=_kernel_evidence(kernel, counted, found, use, calls),
    )


def _nothing_counted(kernel: _Kernel) -> CountedRow:
    name = kernel.operator or ""
    row = CountedRow(kernel.root, kernel.layer, 0, name, "forward", None, None, "unknown", None, "", None, ())
    if kernel.joined is None or kernel.joined.row.measured is None:
        return row
    measured = kernel.joined.row.measured.kernel(kernel.name)
    return replace(row, dtype=kernel.joined.row.dtype, measured=measured)


def _kernel_evidence(
    kernel: _Kernel, counted: CountedRow | None, found: Label, use: Utilization, calls: TimedCalls
) -> Evidence:
    device, operator = calls.machine.device, kernel.operator
    if calls.crosses:
        return Evidence(reason=NoLabel.HOST_COPY, gpu=device)
    if found.nearest is None and counted is not None and counted.exactness == "unknown":
        return Evidence(reason=NoLabel.WORK_UNKNOWN, gpu=device)
    if found.bound != Bound.UNKNOWN or counted is not None:
        flops = int(use.operations or 0) if counted is None else counted.flops
        return evidence_of(found, use, CallFigures(calls.time_ns, flops, None, calls.delay), device)
    if operator is None:
        return Evidence(reason=NoLabel.OUTSIDE_OPERATORS, gpu=device)
    if kernel.joined is None:
        return Evidence(reason=NoLabel.OPERATOR_NOT_COUNTED, gpu=device, operator=operator)
    return Evidence(reason=NoLabel.WORK_NOT_SPLIT, gpu=device, operator=operator, launches=kernel.together)
