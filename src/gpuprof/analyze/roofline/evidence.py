# SPDX-License-Identifier: Apache-2.0
"""The figures that a label rests on, why an operator has no label, and notes, as values.

Their text is in text.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.analyze.ceilings.ceiling import Drift
from gpuprof.analyze.roofline.device_activity import HostDelay
from gpuprof.analyze.roofline.labels import IMPOSSIBLE, Bound, Code, Label, Resource
from gpuprof.analyze.roofline.utilization import Utilization


class NoLabel(Code):
    """Why an operator, a kernel or a layer has no label."""

    NO_WORK_OR_CEILING = "no work or ceiling"
    WORK_UNKNOWN = "work unknown"
    OTHER_WORK_TIMED = "timed calls did other work"
    KERNELS_NOT_RECORDED = "kernels not recorded"
    HOST_COPY = "copy between host and GPU"
    UNCOUNTED_OPERATORS = "uncounted operators"
    OPERATOR_NOT_COUNTED = "operator not counted"
    WORK_NOT_SPLIT = "work not split"
    # Of timed operators without a counted partner.
    ORDER_DIFFERS = "order differs"
    OTHER_INPUTS = "other inputs"
    CONTAINS_COUNTED = "contains counted operators"
    BACKWARD_NOT_COUNTED = "backward pass not counted"
    NOT_IN_COUNTED_CALL = "not in the counted call"
    OUTSIDE_MODELS = "outside of the counted models"
    OUTSIDE_OPERATORS = "outside of operators"


@dataclass(frozen=True, slots=True)
class ComputeFigures:
    """Operations a second against the peak of their type; `may_be_tf32`: TF32 was allowed or not."""

    per_s: float
    ceiling_per_s: float
    dtype: str | None
    is_measured: bool
    may_be_tf32: bool


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Traffic at a level of memory against its bandwidth; `source` as in `Traffic`."""

    bytes_per_s: float
    ceiling_bytes_per_s: float
    level: str
    bytes: float
    source: str


@dataclass(frozen=True, slots=True)
class DispatchFigures:
    """The time of a call and of its empty dispatches; `operators` is their number in a layer, else None."""

    time_ns: float
    dispatch_ns: float
    operators: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """The time of a call on a GPU, that of as many empty kernels, and how often the host was late."""

    time_ns: float
    floor_ns: float | None
    delay: HostDelay


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """Page faults, their measured cost together, and the time of the call."""

    faults: int
    fault_ns: float
    time_ns: float


# A resource alone where it has no figures.
Figures = ComputeFigures | MemoryFigures | DispatchFigures | LaunchFigures | FaultFigures | Resource


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a label rests on.

    `figures` are those of the nearest resource, and of the next where neither dominates. `next_share` is the
    utilization of the next one. `reason` says why there is no label: of `operator`, of its `launches`
    kernels, or with uncounted operators that take `uncounted_share` of a layer. `gpu` is the device's name,
    None on the host.
    """

    figures: tuple[Figures, ...] = ()
    next: Resource | None = None
    next_share: float | None = None
    reason: NoLabel | None = None
    gpu: str | None = None
    operator: str | None = None
    launches: int | None = None
    uncounted_share: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call as evidence needs it; `operators` only of a layer on the host, `delay` only of a GPU."""

    time_ns: float
    flops: int | None
    faults: int | None
    delay: HostDelay | None = None
    operators: int | None = None


def evidence_of(found: Label, use: Utilization, call: Call, gpu: str | None = None) -> Evidence:
    """Return the figures of the nearest resource, and the utilization of the next."""
    if found.nearest is None:
        return Evidence(reason=NoLabel.NO_WORK_OR_CEILING, gpu=gpu)
    first = _figures(found.nearest, use, call)
    if found.bound == Bound.UNKNOWN and (found.used or 0) > IMPOSSIBLE:
        return Evidence((first,), reason=NoLabel.OTHER_WORK_TIMED, gpu=gpu)
    if found.bound == Bound.NO_DOMINANT and found.next is not None:
        return Evidence((first, _figures(found.next, use, call)), gpu=gpu)
    return Evidence((first,), found.next, found.next_used, gpu=gpu)


def _figures(resource: Resource, use: Utilization, call: Call) -> Figures:
    time_ns = call.time_ns
    if resource == Resource.COMPUTE and use.peak is not None and call.flops is not None:
        rate = (use.operations or call.flops) / time_ns * 1e9
        measured = bool(use.operations)
        return ComputeFigures(rate, use.peak.value, use.peak.dtype, measured, not use.is_peak_certain)
    if resource == Resource.MEMORY and use.traffic is not None:
        level, moved = use.traffic.level, use.traffic.bytes
        return MemoryFigures(
            moved / time_ns * 1e9, level.ceiling.value, level.name, moved, use.traffic.source
        )
    if resource == Resource.LATENCY:
        if call.delay is not None:
            return LaunchFigures(time_ns, use.latency_ns, call.delay)
        return DispatchFigures(time_ns, use.latency_ns or 0, call.operators)
    if resource == Resource.PAGE_FAULTS and call.faults:
        return FaultFigures(call.faults, use.fault_ns or 0, time_ns)
    return resource


# ---- notes -----------------------------------------------------------------------------------


class RooflineNoteCode(Code):
    """What a note of a roofline is about."""

    RECORDING = "recording"
    CEILINGS = "ceilings"
    DRIFT = "drift"
    WORK_UNKNOWN = "work unknown"
    KERNELS_NOT_RECORDED = "kernels not recorded"
    GPU_WITHOUT_CEILINGS = "GPU without ceilings"
    TYPE_WITHOUT_CEILING = "type without ceiling"


@dataclass(frozen=True, slots=True)
class RooflineNote:
    """A fact that a reader of the roofline needs.

    `names` are the operators, roots or types that it is about; of a note that the recording or the measuring
    of ceilings wrote, its text. `drift` is the largest of `count` large ones; `around` says that it was
    measured right before and after the recording.
    """

    code: RooflineNoteCode
    names: tuple[str, ...] = ()
    device: str | None = None
    source: str | None = None
    drift: Drift | None = None
    count: int = 0
    around: bool = False
