# SPDX-License-Identifier: Apache-2.0
"""Layers held against the roofs: each with its own operators, without those of the layers inside it."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from gpuprof.analyze.ceiling_rows import Ceiling, relative_spread
from gpuprof.analyze.roofline.evidence import evidence, roof_name
from gpuprof.analyze.roofline.join import Join, Joined
from gpuprof.analyze.roofline.labels import Doubts, Label, confidence, label
from gpuprof.analyze.roofline.machine import Machine
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.analyze.roofline.timed import Timed
from gpuprof.analyze.roofline.use import Traffic, Use, use_of
from gpuprof.record.work.rows import Exactness

_WORST_FIRST: tuple[Exactness, ...] = ("unknown", "estimated", "exact")


def layer_rows(joined: Join, timed: Timed, machine: Machine) -> list[RooflineRow]:
    """Return a row for each layer that has operators of its own, the longest first."""
    groups: dict[tuple[str, str], list[Joined]] = defaultdict(list)
    for each in joined.rows:
        groups[each.row.root, each.row.layer].append(each)
    passes = Counter(root for root, _ in timed.root_calls.values())
    several = len({root for root, _ in groups}) > 1
    rows = [
        _row(key, members, timed, machine, passes[key[0]], several)
        for key, members in groups.items()
        if passes[key[0]]
    ]
    return sorted((row for row in rows if row.total_ns > 0), key=lambda row: -row.total_ns)


def _row(
    key: tuple[str, str],
    members: Sequence[Joined],
    timed: Timed,
    machine: Machine,
    passes: int,
    several: bool,
) -> RooflineRow:
    backward = [each.durations_ns for each in members if each.row.phase == "backward" and each.durations_ns]
    forward = timed.layer_own_ns.get(key) or Counter({0: 0})
    total_ns = max(0, forward.total()) + sum(sum(durations) for durations in backward)
    forward_ns = max(0.0, statistics.median(forward.values()))
    time_ns = forward_ns + sum(statistics.median(durations) for durations in backward)
    # A part that never ran, as the backward pass of what is only evaluated, needs nothing.
    ran = [each for each in members if each.durations_ns or each.row.phase != "backward"]
    uses = [use_of(each.row, machine, _time(each, time_ns)) for each in ran]
    flops = _sum(each.row.flops for each in ran)
    use = _together(uses, ran, machine)
    shares = use.shares(time_ns)
    on_gpu = any(each.on_gpu for each in members)
    found = Label("unknown", None, None, None, None, 0.0) if on_gpu else label(shares)
    faults = _sum(each.row.page_faults for each in ran)
    exactness = _worst(ran)
    timed_share = sum(bool(each.durations_ns) for each in ran) / len(ran) if ran else 0.0
    doubts = Doubts(
        exactness=exactness,
        join=timed_share,
        timing_spread=_spread(ran),
        ceiling_spread=_ceiling_spread(found, use),
    )
    root, layer = key
    return RooflineRow(
        kind="layer",
        name=f"{root}/{layer}" if several and layer != root else layer,
        root=root,
        layer=layer,
        operator=None,
        ordinal=None,
        phase=None,
        dtype=None if use.peak is None else use.peak.dtype,
        calls=passes,
        time_ns=time_ns,
        total_ns=total_ns,
        time_share=total_ns / timed.total_ns if timed.total_ns else None,
        timing_spread=doubts.timing_spread,
        flops=flops,
        bytes=_sum(each.row.bytes for each in ran),
        exactness=exactness,
        bound=found.bound,
        nearest=found.nearest,
        roof=roof_name(found.nearest, use),
        roof_share=found.used,
        used=shares,
        memory_level=None if use.traffic is None else use.traffic.level.name,
        memory_bytes=None if use.traffic is None else use.traffic.bytes,
        confidence=confidence(found, doubts),
        evidence=_evidence(found, use, flops, faults, time_ns, len(ran)),
    )


def _worst(ran: Sequence[Joined]) -> Exactness:
    present = {each.row.exactness for each in ran}
    return next((exactness for exactness in _WORST_FIRST if exactness in present), "exact")


def _time(each: Joined, fallback_ns: float) -> float:
    return float(statistics.median(each.durations_ns)) if each.durations_ns else fallback_ns


def _together(uses: Sequence[Use], ran: Sequence[Joined], machine: Machine) -> Use:
    """Add up what the operators of a layer need; the peak and the level are those that need the most."""
    slowest: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for use in uses:
        if use.traffic is not None:
            slowest[use.traffic.level.name] += int(use.traffic.least_ns)
            moved[use.traffic.level.name] += int(use.traffic.bytes)
    name = slowest.most_common(1)[0][0] if slowest else None
    level = next((level for level in machine.levels if level.name == name), None)
    memory_ns = _sum(use.memory_ns for use in uses)
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
    return Use(
        compute_ns=_sum(use.compute_ns for use in uses),
        memory_ns=memory_ns,
        latency_ns=None if launch is None else launch.value * len(ran),
        fault_ns=_sum(use.fault_ns for use in uses),
        peak=peaks.most_common(1)[0][0] if peaks else None,
        traffic=traffic,
        unsure_bytes=max((use.unsure_bytes for use in uses), default=0.0),
        operations=_operations(uses, ran),
    )


def _source(uses: Sequence[Use]) -> str:
    """Say where the bytes of a layer are from: all measured, none of them, or some."""
    found = {use.traffic.source for use in uses if use.traffic is not None and use.traffic.bytes}
    return "partly measured" if len(found) > 1 else next(iter(found), "")


def _operations(uses: Sequence[Use], ran: Sequence[Joined]) -> float | None:
    """Return the operations of a layer where those of the tensor cores were measured, else None."""
    if not any(use.operations for use in uses):
        return None
    return sum(use.operations or each.row.flops or 0 for use, each in zip(uses, ran, strict=True))


def _sum(values: Iterable[float | int | None]) -> int | None:
    every = list(values)
    known = [value for value in every if value is not None]
    return None if every and not known else int(sum(known))


def _spread(ran: Sequence[Joined]) -> float | None:
    """Return the spread of the operator that takes the most time."""
    longest = max(ran, key=lambda each: sum(each.durations_ns), default=None)
    return None if longest is None else relative_spread(longest.durations_ns)


def _ceiling_spread(found: Label, use: Use) -> float:
    if found.nearest == "compute" and use.peak is not None:
        return use.peak.spread or 0.0
    if found.nearest == "memory" and use.traffic is not None:
        return use.traffic.level.ceiling.spread or 0.0
    return 0.0


def _evidence(
    found: Label, use: Use, flops: int | None, faults: int | None, time_ns: float, operators: int
) -> str:
    if found.nearest == "latency":
        return (
            f"{operators} operator calls in {time_ns / 1e3:.3g} us, {use.latency_ns or 0:.0f} ns to dispatch"
        )
    return evidence(found, use, flops=flops, faults=faults, time_ns=time_ns)
