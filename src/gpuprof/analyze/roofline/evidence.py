# SPDX-License-Identifier: Apache-2.0
"""The figures that a label rests on, why an operator has no label, notes, and what to try, as values.

Their text is in text.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from gpuprof.analyze.ceilings.ceiling import Ceiling, CeilingNote, Drift
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.device_activity import HostDelay
from gpuprof.analyze.roofline.labels import IMPOSSIBLE, Bound, Code, Label, Resource
from gpuprof.analyze.roofline.utilization import DRAM, Machine, Utilization, may_use_tf32
from gpuprof.record.facts import Note, SourceStatus


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
    OUTSIDE_MODELS = "not in a model whose work was counted"
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
    utilization of the next one. `reason` is why there is no label: of `operator`, of its `launches`
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
class CallFigures:
    """One call as evidence needs it; `operators` only of a layer on the host, `delay` only of a GPU."""

    time_ns: float
    flops: int | None
    faults: int | None
    delay: HostDelay | None = None
    operators: int | None = None


def evidence_of(found: Label, use: Utilization, call: CallFigures, gpu: str | None = None) -> Evidence:
    """Return the figures of the nearest resource, and the utilization of the next."""
    if found.nearest is None:
        return Evidence(reason=NoLabel.NO_WORK_OR_CEILING, gpu=gpu)
    first = _figures(found.nearest, use, call)
    if found.bound == Bound.UNKNOWN and (found.used or 0) > IMPOSSIBLE:
        return Evidence((first,), reason=NoLabel.OTHER_WORK_TIMED, gpu=gpu)
    if found.bound == Bound.NO_DOMINANT and found.next is not None:
        return Evidence((first, _figures(found.next, use, call)), gpu=gpu)
    return Evidence((first,), found.next, found.next_used, gpu=gpu)


def _figures(resource: Resource, use: Utilization, call: CallFigures) -> Figures:
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

    `names` are the operators, roots or types that it is about. `recording` and `ceilings` are notes that the
    recording and the measuring of ceilings wrote. `status` is that of the source that recorded no kernels.
    `drift` is the largest of `count` large ones; `around` is True where it was measured right before and
    after the recording.
    """

    code: RooflineNoteCode
    names: tuple[str, ...] = ()
    device: str | None = None
    status: SourceStatus | None = None
    drift: Drift | None = None
    count: int = 0
    around: bool = False
    recording: Note | None = None
    ceilings: CeilingNote | None = None


# A faster type is worth a sentence from here on.
_WORTH_CHANGING = 1.5
# A third of the time is worth a sentence even where it is not the bottleneck.
_WORTH_SAVING = 1 / 3
# This close to the rate of PyTorch's own product, a larger or better laid out one gains little.
_AS_GOOD_AS_LIBRARY = 0.8
_PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "linear",
    "addmv",
    "mv",
    "_addmm_activation",
)


class Fix(Code):
    """What to try."""

    PREALLOCATE = "preallocate"
    FUSE_OR_BATCH_CALLS = "fuse or batch calls"
    CUDA_GRAPH = "CUDA graph"
    BATCH_ROWS = "batch rows"
    FUSE_WITH_PREVIOUS = "fuse with previous"
    HALVE_BYTES = "halve bytes"
    LARGER_PRODUCT = "larger product"
    CHANNELS_LAST = "channels last"
    ALLOW_TF32 = "allow TF32"
    FASTER_TYPE = "faster type"


@dataclass(frozen=True, slots=True)
class RooflineAdvice:
    """A fix with the figures that suggest it; None where a fix has no use for one.

    Times and bytes are those of a call; `limit_ns` the cost of its page faults or empty dispatches. `rows` is
    the factor of a larger batch, `intensity` and `ridge` are in FLOPs a byte, rates in operations a second of
    `dtype`, `speedup` the factor of a faster type.
    """

    fix: Fix
    time_ns: float | None = None
    limit_ns: float | None = None
    bytes: float | None = None
    level: str | None = None
    previous: str | None = None
    intensity: float | None = None
    ridge: float | None = None
    rows: int | None = None
    per_s: float | None = None
    library_per_s: float | None = None
    dtype: str | None = None
    speedup: float | None = None

    @property
    def key(self) -> Hashable:
        """What makes two pieces of advice the same for a reader."""
        return self.fix, self.rows


def advice(
    found: Label,
    row: CountedRow,
    use: Utilization,
    machine: Machine,
    *,
    time_ns: float,
    previous: CountedRow | None,
) -> RooflineAdvice | None:
    """Return what to try, or None where the figures suggest nothing."""
    nearest = found.nearest
    if nearest in (Resource.PAGE_FAULTS, Resource.LATENCY) and (found.used or 0) < _WORTH_SAVING:
        return None
    if nearest == Resource.PAGE_FAULTS and row.page_faults:
        fresh = sum(part.bytes for part in row.reuse if part.written)
        return RooflineAdvice(Fix.PREALLOCATE, time_ns, use.fault_ns, fresh)
    if nearest == Resource.LATENCY:
        fix = Fix.CUDA_GRAPH if found.bound == Bound.LAUNCH else Fix.FUSE_OR_BATCH_CALLS
        return RooflineAdvice(fix, time_ns, use.latency_ns, row.bytes)
    if nearest == Resource.MEMORY:
        return _move_less(found, row, use, machine, previous)
    if nearest == Resource.COMPUTE:
        return _compute_faster(found, row, use, machine, time_ns)
    return None


def _move_less(
    found: Label, row: CountedRow, use: Utilization, machine: Machine, previous: CountedRow | None
) -> RooflineAdvice | None:
    if use.traffic is None:
        return None
    level, ridge = use.traffic.level.name, _ridge(row, machine)
    if _is_product(row) and (row.intensity or 0) < ridge:
        rows = max(1, round(ridge / max(row.intensity or 1e-9, 1e-9)))
        return RooflineAdvice(Fix.BATCH_ROWS, intensity=row.intensity or 0, ridge=ridge, rows=rows)
    if found.bound not in (Bound.MEMORY, Bound.NO_DOMINANT):
        return None
    if previous is not None and level == DRAM and _feeds(previous, row):
        moved = use.traffic.bytes
        return RooflineAdvice(Fix.FUSE_WITH_PREVIOUS, bytes=moved, level=level, previous=previous.operator)
    if row.dtype == "float32":
        return RooflineAdvice(
            Fix.HALVE_BYTES, bytes=use.traffic.bytes, level=level, intensity=row.intensity or 0
        )
    return None


def _compute_faster(
    found: Label, row: CountedRow, use: Utilization, machine: Machine, time_ns: float
) -> RooflineAdvice | None:
    per_s = (row.flops or 0) / time_ns * 1e9
    peak, half = use.peak, machine.peak("bfloat16")
    library = None if peak is None or peak.dtype is None else _library_of(peak.dtype, row, machine)
    is_slow = found.bound == Bound.UNDERUTILIZED
    if is_slow and library is not None and per_s < _AS_GOOD_AS_LIBRARY * library.value:
        fix = Fix.LARGER_PRODUCT if _is_product(row) else Fix.CHANNELS_LAST
        return RooflineAdvice(fix, per_s=per_s, library_per_s=library.value, dtype=library.dtype)
    shortened = _faster(peak, machine.find("compute", "tf32"))
    if may_use_tf32(row, machine) and shortened is not None and shortened >= _WORTH_CHANGING:
        return RooflineAdvice(Fix.ALLOW_TF32, per_s=per_s, speedup=shortened)
    faster = _faster(library, _library_of("bf16", row, machine)) if is_slow else _faster(peak, half)
    if row.dtype == "float32" and faster is not None and faster >= _WORTH_CHANGING:
        return RooflineAdvice(Fix.FASTER_TYPE, per_s=per_s, speedup=faster)
    return None


def _feeds(previous: CountedRow, row: CountedRow) -> bool:
    """Return whether an operator may read the other's result: same pass, and equal bytes written and read."""
    written = {part.bytes for part in previous.reuse if part.written}
    read = {part.bytes for part in row.reuse if not part.written}
    return previous.phase == row.phase and bool(written & read)


def _is_product(row: CountedRow) -> bool:
    return row.operator.split("::")[-1] in _PRODUCTS


def _ridge(row: CountedRow, machine: Machine) -> float:
    """Return the FLOPs a byte above which compute takes longer than memory."""
    peak, dram = machine.peak(row.dtype), machine.find(f"memory.{DRAM}")
    return 0.0 if peak is None or dram is None else peak.value / dram.value


def _library_of(dtype: str, row: CountedRow, machine: Machine) -> Ceiling | None:
    if _is_product(row):
        return machine.find("compute.matmul", dtype)
    return machine.find("compute.convolution", dtype) if "convolution" in row.operator else None


def _faster(now: Ceiling | None, then: Ceiling | None) -> float | None:
    return None if now is None or then is None else then.value / now.value
