# SPDX-License-Identifier: Apache-2.0
"""Layers compared with the ceilings: each with its own operators, without those of the layers inside it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.roofline.device_activity import HostDelay
from gpuprof.analyze.roofline.evidence import CallFigures, Evidence, NoLabel, evidence_of
from gpuprof.analyze.roofline.join import Join, Joined
from gpuprof.analyze.roofline.labels import BOUND_FROM, Bound, Doubts, Label, confidence, label
from gpuprof.analyze.roofline.measured_spans import MeasuredSpans
from gpuprof.analyze.roofline.operators import (
    NO_LABEL,
    TimedCalls,
    calls_of,
    ceiling_uncertainty,
    usage_fields,
)
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.analyze.roofline.utilization import Machine, Machines, Traffic, Utilization, utilization_of
from gpuprof.record.work.rows import known_sum, worst_of


def layer_rows(
    joined: Join, timed: MeasuredSpans, machines: Machines, lost: Collection[str] = ()
) -> list[RooflineRow]:
    """Return a row for each layer that has operators of its own, the longest first.

    Of a layer that used GPUs it is for the one with the most time. Of the roots in `lost` no GPU work was
    recorded.
    """
    groups: dict[tuple[str, str], list[Joined]] = defaultdict(list)
    for each in joined.rows:
        if not each.is_traced:  # other calls than the counted one
            groups[each.row.root, each.row.layer].append(each)
    passes = timed.passes()
    rows = []
    for (root, layer), members in groups.items():
        if not passes[root]:
            continue
        group = _Layer(root, layer, passes[root])
        rows.append(_row(group, members, _times(group, members, timed, machines), root in lost))
    return sorted((row for row in rows if row.total_ns > 0), key=lambda row: -row.total_ns)


@dataclass(frozen=True, slots=True)
class _Layer:
    root: str
    layer: str
    passes: int


@dataclass(frozen=True, slots=True)
class _Times:
    """The time of a pass, of all `count` passes, of everything; and the members that ran on this device."""

    machine: Machine
    count: int
    time_ns: float
    total_ns: int
    whole_ns: int
    ran: list[tuple[Joined, TimedCalls | None]]

    @property
    def delay(self) -> HostDelay | None:
        """How often the GPU waited for the host before the operators; None on the host."""
        delays = [calls.delay for _, calls in self.ran if calls is not None and calls.delay is not None]
        if not delays:
            return None
        return HostDelay(sum(each.late for each in delays), sum(each.known for each in delays))


def _times(layer: _Layer, members: Sequence[Joined], timed: MeasuredSpans, machines: Machines) -> _Times:
    on_gpus: Counter[str] = Counter()
    for each in members:
        for device, executions in each.executions.items():
            on_gpus[device] += int(executions.time_ns.sum())
    if on_gpus:
        device = on_gpus.most_common(1)[0][0]
        return _gpu_times(layer, device, members, timed, machines)
    backward = [
        each.durations_ns for each in members if each.row.phase == "backward" and len(each.durations_ns)
    ]
    forward = timed.layer_own_ns.get((layer.root, layer.layer), np.zeros(1, np.int64))
    # A part that never ran, such as the backward pass under evaluation, needs nothing.
    ran = [each for each in members if len(each.durations_ns) or each.row.phase != "backward"]
    return _Times(
        machines.host,
        layer.passes,
        max(0.0, float(np.median(forward))) + sum(float(np.median(each)) for each in backward),
        max(0, int(forward.sum())) + sum(int(each.sum()) for each in backward),
        timed.total_ns,
        [(each, next(calls_of(each, machines), None)) for each in ran],
    )


def _gpu_times(
    layer: _Layer, device: str, members: Sequence[Joined], timed: MeasuredSpans, machines: Machines
) -> _Times:
    """Add up the kernels of the layer's operators, and the others that it launched."""
    calls = [
        (each, found)
        for each in members
        for found in calls_of(each, machines)
        if found.machine.device == device
    ]
    rest = timed.layer_rest_ns.get((layer.root, layer.layer, device), np.zeros(1, np.int64))
    return _Times(
        machines.of(device),
        layer.passes,
        sum(found.time_ns for _, found in calls) + float(np.median(rest)),
        sum(found.total_ns for _, found in calls) + int(rest.sum()),
        timed.whole_ns(device),
        list(calls),
    )


def _row(layer: _Layer, members: Sequence[Joined], times: _Times, is_lost: bool) -> RooflineRow:
    machine, time_ns = times.machine, times.time_ns
    ran = [each for each, _ in times.ran]
    launches = sum(1 if calls is None else calls.launches for _, calls in times.ran)
    uses = [
        utilization_of(each.row, machine, time_ns if calls is None else calls.time_ns)
        for each, calls in times.ran
    ]
    flops = known_sum(each.row.flops for each in ran)
    use = _together(uses, ran, launches, machine)
    shares = use.fractions(time_ns)
    delay = times.delay
    found = label(shares, times)
    gpu = machine.device if machine.is_gpu else None
    why = (
        Evidence(reason=NoLabel.KERNELS_NOT_RECORDED, gpu=gpu) if is_lost else _why_unknown(found, times, gpu)
    )
    found = NO_LABEL if why is not None else found
    exactness = worst_of(each.row.exactness for each in ran)
    doubts = Doubts(
        exactness=exactness,
        join=_timed_share(members, times),
        timing_spread=_timing_iqr(times),
        ceiling_uncertainty=ceiling_uncertainty(found, use, machine),
    )
    faults = None if gpu else known_sum(each.row.page_faults for each in ran)
    call = CallFigures(time_ns, flops, faults, delay, len(ran) if delay is None else None)
    return RooflineRow(
        kind="layer",
        name=layer.layer,
        root=layer.root,
        layer=layer.layer,
        operator=None,
        ordinal=None,
        phase=None,
        dtype=None if use.peak is None else use.peak.dtype,
        calls=times.count,
        time_ns=time_ns,
        total_ns=times.total_ns,
        time_share=times.total_ns / times.whole_ns if times.whole_ns else None,
        timing_spread=doubts.timing_spread,
        flops=flops,
        bytes=known_sum(each.row.bytes for each in ran),
        exactness=exactness,
        **usage_fields(found, use, shares),
        confidence=confidence(found, doubts),
        evidence=why or evidence_of(found, use, call, gpu),
        device=machine.device,
        launches=launches if machine.is_gpu else None,
    )


def _why_unknown(found: Label, times: _Times, gpu: str | None) -> Evidence | None:
    """Return why a layer has no label where operators without a count may be its bottleneck, else None."""
    unknown_ns = sum(
        calls.time_ns for each, calls in times.ran if calls is not None and each.row.exactness == "unknown"
    )
    share = min(1.0, unknown_ns / times.time_ns) if times.time_ns > 0 else 0.0
    if not share or found.bound != Bound.UNDERUTILIZED or (found.used or 0) + share < BOUND_FROM:
        return None
    return Evidence(reason=NoLabel.UNCOUNTED_OPERATORS, uncounted_share=share, gpu=gpu)


def _timed_share(members: Sequence[Joined], times: _Times) -> float:
    """Return the fraction of the operators that were timed; on a GPU views have no kernel to time."""
    wanted = [each for each, _ in times.ran]
    if times.machine.is_gpu:
        wanted += [
            each for each in members if not each.executions and each.row.bytes and len(each.durations_ns)
        ]
    timed = sum(calls is not None for _, calls in times.ran)
    return timed / len(wanted) if wanted else 0.0


def _together(
    uses: Sequence[Utilization], ran: Sequence[Joined], launches: float, machine: Machine
) -> Utilization:
    """Add up the least times of a layer's operators; peak and level are those with the most time."""
    slowest: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for use in uses:
        if use.traffic is not None:
            slowest[use.traffic.level.name] += int(use.traffic.least_ns)
            moved[use.traffic.level.name] += int(use.traffic.bytes)
    name = slowest.most_common(1)[0][0] if slowest else None
    level = next((level for level in machine.levels if level.name == name), None)
    memory_ns = known_sum(use.memory_ns for use in uses)
    traffic = (
        None
        if level is None
        else Traffic(level, float(moved[level.name]), memory_ns or 0.0, 0.0, _source(uses))
    )
    launch = machine.find("launch")
    peaks: Counter[Ceiling] = Counter()
    for use in uses:
        if use.peak is not None:
            peaks[use.peak] += int(use.compute_ns or 0) + 1
    return Utilization(
        compute_ns=known_sum(use.compute_ns for use in uses),
        memory_ns=memory_ns,
        latency_ns=None if launch is None else launch.value * launches,
        fault_ns=known_sum(use.fault_ns for use in uses),
        peak=peaks.most_common(1)[0][0] if peaks else None,
        traffic=traffic,
        uncertain_bytes=max((use.uncertain_bytes for use in uses), default=0.0),
        is_peak_certain=all(use.is_peak_certain for use in uses),
        operations=_operations(uses, ran),
    )


def _source(uses: Sequence[Utilization]) -> str:
    """Return the source of the bytes of a layer: all measured, none of them, or some."""
    found = {use.traffic.source for use in uses if use.traffic is not None and use.traffic.bytes}
    return "partly measured" if len(found) > 1 else next(iter(found), "")


def _operations(uses: Sequence[Utilization], ran: Sequence[Joined]) -> float | None:
    """Return the operations of a layer where those of the tensor cores were measured, else None."""
    if not any(use.operations for use in uses):
        return None
    return sum(use.operations or each.row.flops or 0 for use, each in zip(uses, ran, strict=True))


def _timing_iqr(times: _Times) -> float | None:
    """Return the relative IQR of the times of the operator that takes the most time."""
    timed = [calls for _, calls in times.ran if calls is not None]
    longest = max(timed, key=lambda calls: calls.total_ns, default=None)
    return None if longest is None else longest.relative_iqr
