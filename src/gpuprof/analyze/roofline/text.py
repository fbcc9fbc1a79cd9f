# SPDX-License-Identifier: Apache-2.0
"""The facts of a roofline as sentences: evidence, reasons, advice, notes. No code reads them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gpuprof.analyze.ceilings.text import ceiling_note_text, operation_unit
from gpuprof.analyze.roofline.evidence import (
    ComputeFigures,
    DispatchFigures,
    Evidence,
    FaultFigures,
    Figures,
    Fix,
    LaunchFigures,
    MemoryFigures,
    NoLabel,
    RooflineAdvice,
    RooflineNote,
    RooflineNoteCode,
)
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.record.facts import SourceStatus
from gpuprof.run import messages
from gpuprof.text.units import format_bytes, format_change, format_count, format_duration

# How a time is written: in ASCII for a terminal, with the sign of micro on a page.
Duration: TypeAlias = Callable[[float | None], str]

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_WORTH_SHOWING = 0.005
_MOST_NAMES = 5


def bound_text(bound: Bound, nearest: Resource | None, memory_level: str | None) -> str:
    """Return the bottleneck: with the level of memory, or the nearest resource where underutilized."""
    if bound == Bound.MEMORY:
        return f"{bound} ({memory_level})"
    return f"{bound} ({nearest})" if bound == Bound.UNDERUTILIZED else str(bound)


# ---- evidence --------------------------------------------------------------------------------

_REASONS = {
    NoLabel.NO_WORK_OR_CEILING: "neither its work nor a ceiling for it is known",
    NoLabel.WORK_UNKNOWN: "its work is unknown",
    NoLabel.OTHER_WORK_TIMED: "its timed calls did other work than was counted",
    NoLabel.KERNELS_NOT_RECORDED: "it ran on a GPU, and none of its kernels was recorded",
    NoLabel.HOST_COPY: "it copies between host and GPU, which has no measured ceiling",
    NoLabel.UNCOUNTED_OPERATORS: "contains operators without counted work",
    NoLabel.OPERATOR_NOT_COUNTED: "the work of its operator was not counted",
    NoLabel.WORK_NOT_SPLIT: "one of several kernels of its operator, whose work is not split",
    NoLabel.ORDER_DIFFERS: "its order differs from the counted order",
    NoLabel.OTHER_INPUTS: "in calls with other inputs than the counted call",
    NoLabel.CONTAINS_COUNTED: "around operators that were counted",
    NoLabel.BACKWARD_NOT_COUNTED: "its backward pass was not counted",
    NoLabel.NOT_IN_COUNTED_CALL: "not in the counted call",
    NoLabel.OUTSIDE_MODELS: "not in a model whose work was counted",
    NoLabel.OUTSIDE_OPERATORS: "launched outside of every recorded operator",
}


def reason_text(reason: NoLabel) -> str:
    """Return why there is no label."""
    return _REASONS[reason]


def evidence_text(
    evidence: Evidence,
    *,
    device: bool = True,
    next_resource: bool = True,
    size: bool = True,
    duration: Duration = format_duration,
) -> str:
    """Return one line. It can leave out the GPU's name, the next resource, and how many bytes moved."""
    parts = [_figures_text(figures, size, duration) for figures in evidence.figures]
    if next_resource and evidence.next is not None and (evidence.next_share or 0) >= _WORTH_SHOWING:
        parts.append(f"{evidence.next} {evidence.next_share:.0%}")
    line = "; ".join(parts)
    if evidence.reason is not None:
        line = f"{line}: {_evidence_reason(evidence)}" if line else _evidence_reason(evidence)
    return f"{evidence.gpu}: {line}" if device and evidence.gpu is not None else line


def _evidence_reason(evidence: Evidence) -> str:
    if evidence.reason == NoLabel.OPERATOR_NOT_COUNTED and evidence.operator is not None:
        return f"the work of {evidence.operator} was not counted"
    if evidence.reason == NoLabel.WORK_NOT_SPLIT and evidence.operator is not None:
        return f"one of {evidence.launches} that {evidence.operator} launches, whose work is not split"
    if evidence.reason == NoLabel.UNCOUNTED_OPERATORS and evidence.uncounted_share is not None:
        return f"uncounted operators take {evidence.uncounted_share:.0%} of its time"
    return "" if evidence.reason is None else _REASONS[evidence.reason]


def _figures_text(figures: Figures, size: bool, duration: Duration) -> str:
    if isinstance(figures, ComputeFigures):
        rates = f"{_rate_of(figures.per_s, figures.ceiling_per_s)}{operation_unit(figures.dtype)}"
        source = " measured" if figures.is_measured else ""
        return f"{rates} {figures.dtype}{source}{', if it may use TF32' if figures.may_be_tf32 else ''}"
    if isinstance(figures, MemoryFigures):
        rates = f"{_rate_of(figures.bytes_per_s, figures.ceiling_bytes_per_s)}B/s {figures.level}"
        return f"{rates}, {format_bytes(figures.bytes)} {figures.source}".rstrip() if size else rates
    if isinstance(figures, DispatchFigures):
        return _dispatch_text(figures, duration)
    if isinstance(figures, LaunchFigures):
        return _launch_text(figures, duration)
    if isinstance(figures, FaultFigures):
        return _fault_text(figures, duration)
    return str(figures)


def _dispatch_text(figures: DispatchFigures, duration: Duration) -> str:
    """Name a part of the time only where it is shorter than the whole."""
    whole, dispatch = duration(figures.time_ns), duration(figures.dispatch_ns)
    is_part = figures.dispatch_ns < figures.time_ns
    part = f"{'' if is_part else 'empty '}dispatch {dispatch}"
    if figures.operators is None:
        return f"{whole}, {part}"
    return f"{figures.operators} operator{'' if figures.operators == 1 else 's'} in {whole}, {part}"


def _launch_text(figures: LaunchFigures, duration: Duration) -> str:
    delay = figures.delay
    late = f"host late {delay.late:,} of {delay.known:,}" if delay.known else "host lateness unknown"
    return f"{duration(figures.time_ns)}, floor {duration(figures.floor_ns)}, {late}"


def _fault_text(figures: FaultFigures, duration: Duration) -> str:
    number, whole = figures.faults, duration(figures.time_ns)
    cost = duration(figures.fault_ns / number)
    each = f"{format_count(number)} page fault{'' if number == 1 else 's'} x {cost}"
    return (
        f"{each} account for all of {whole}" if figures.fault_ns >= figures.time_ns else f"{each} of {whole}"
    )


def _rate_of(reached: float, ceiling: float) -> str:
    """Return both in the unit of the ceiling: `31.0 of 39.4 G`."""
    size, prefix = next((pair for pair in _PREFIXES if ceiling >= 0.9995 * pair[0]), (1.0, ""))
    return f"{reached / size:.3g} of {ceiling / size:.3g} {prefix}"


# ---- advice ----------------------------------------------------------------------------------


def advice_text(advice: RooflineAdvice, duration: Duration = format_duration) -> str:
    """Return one sentence without its full stop: the figures, a colon, the fix."""
    time, limit = duration(advice.time_ns), duration(advice.limit_ns)
    is_longer = (advice.time_ns or 0) > (advice.limit_ns or 0)
    faults = f"whose page faults alone are worth all of its {time}"
    if is_longer:
        faults = f"which takes {limit} of {time}"
    unit = operation_unit(advice.dtype)
    return _ADVICE[advice.fix].format(
        time=time,
        limit=limit,
        faults=faults,
        near=f"near the {limit} of an empty call" if is_longer else f"no more than an empty one ({limit})",
        size=format_bytes(advice.bytes or 0),
        work=format_bytes(advice.bytes) if advice.bytes else "no work",
        level=advice.level,
        previous=advice.previous,
        intensity=f"{advice.intensity or 0:.2g}",
        ridge=f"{advice.ridge or 0:.2g}",
        rows=format_count(advice.rows or 1),
        rate=_rate(advice.per_s, unit),
        library=_rate(advice.library_per_s, unit),
        speedup=f"{advice.speedup or 0:.1f}",
    )


_ADVICE = {
    Fix.PREALLOCATE: (
        "each call writes {size} of fresh memory, {faults}: preallocate the result (out=, or in place), "
        "or reuse the buffer"
    ),
    Fix.FUSE_OR_BATCH_CALLS: (
        "a call of {time} does {work}, {near}: fuse it with its neighbors (torch.compile), or batch "
        "several calls into one"
    ),
    Fix.CUDA_GRAPH: (
        "a call has the GPU do {work} in {time}, near the {limit} of empty kernels, and the GPU waits for "
        "the host before it: capture the step in a CUDA graph (torch.compile(mode='reduce-overhead')), "
        "fuse small operators, or use larger batches"
    ),
    Fix.BATCH_ROWS: (
        "it does {intensity} FLOP a byte, the machine's balance is {ridge}: batch about {rows} times as "
        "many rows, so that its weights are read once"
    ),
    Fix.FUSE_WITH_PREVIOUS: (
        "it reads what {previous} has just written, and moves {size} through {level}: fuse the two "
        "(torch.compile), or work on pieces that fit into the cache"
    ),
    Fix.HALVE_BYTES: (
        "it moves {size} through {level} for {intensity} FLOP a byte: bfloat16 would halve the bytes"
    ),
    Fix.LARGER_PRODUCT: (
        "it reaches {rate}, and a larger product reaches {library} here: use a larger batch (more rows)"
    ),
    Fix.CHANNELS_LAST: (
        "it reaches {rate} where a 3x3 convolution of 64 channels in channels_last reaches {library} "
        "here: change its layout to channels_last"
    ),
    Fix.ALLOW_TF32: (
        "it reaches {rate} in fp32, and TF32 is {speedup} times as fast on this GPU: allow it where 10 "
        "bits of mantissa suffice (for products torch.set_float32_matmul_precision('high'))"
    ),
    Fix.FASTER_TYPE: (
        "it reaches {rate} in fp32, and bfloat16 is {speedup} times as fast on this machine: change the "
        "dtype (torch.autocast)"
    ),
}


def _rate(value: float | None, unit: str = "FLOP/s") -> str:
    number = value or 0.0
    return f"{number / 1e12:.3g} T{unit}" if number >= 1e12 else f"{number / 1e9:.3g} G{unit}"


# ---- notes -----------------------------------------------------------------------------------


def note_text(note: RooflineNote) -> str:
    """Return one sentence without its full stop."""
    return _NOTES[note.code](note)


def _recording_note(note: RooflineNote) -> str:
    return "" if note.recording is None else messages.note_text(note.recording)


def _ceilings_note(note: RooflineNote) -> str:
    return "" if note.ceilings is None else f"ceilings: {ceiling_note_text(note.ceilings)}"


def _drift_note(note: RooflineNote) -> str:
    drift = note.drift
    if drift is None:
        return "ceilings differ"
    is_faster = (drift.change > 0) != drift.resource.startswith("launch")  # a time, the others are rates
    name = f"{drift.resource} {drift.dtype or ''}".rstrip()
    some = "1 ceiling differs" if note.count == 1 else f"{note.count} ceilings differ"
    first = "right before the recording" if note.around else "their first measurement"
    change = f"{some} by more than 10% from {first} ({name} {format_change(drift.change, 0)})"
    if not is_faster:
        return f"{change}: the machine is busy; labels have a lower confidence"
    if note.around:
        return f"{change}: the machine was busier at that time; labels have a lower confidence"
    again = "measure again when it is idle: gpuprof doctor --ceilings --refresh"
    return f"{change}: the machine was busier at that time; {again}"


def _unknown_note(note: RooflineNote) -> str:
    return f"the work of these operators is unknown: {_listed(note)}"


def _lost_note(note: RooflineNote) -> str:
    why = ("" if note.status is None else _status_text(note.status)) or "reason unknown"
    return f"no label for {', '.join(note.names)}: on a GPU, and none of its kernels was recorded ({why})"


def _status_text(status: SourceStatus) -> str:
    return messages.method_text(status) if status.is_on else messages.reason_text(status)


def _type_note(note: RooflineNote) -> str:
    where = f" on {note.device}" if note.device else ""
    return f"no ceiling was measured for arithmetic in {', '.join(note.names)}{where}"


def _listed(note: RooflineNote) -> str:
    return ", ".join(note.names[:_MOST_NAMES]) + (", ..." if len(note.names) > _MOST_NAMES else "")


_NOTES: dict[RooflineNoteCode, Callable[[RooflineNote], str]] = {
    RooflineNoteCode.RECORDING: _recording_note,
    RooflineNoteCode.CEILINGS: _ceilings_note,
    RooflineNoteCode.DRIFT: _drift_note,
    RooflineNoteCode.WORK_UNKNOWN: _unknown_note,
    RooflineNoteCode.KERNELS_NOT_RECORDED: _lost_note,
    RooflineNoteCode.GPU_WITHOUT_CEILINGS: lambda note: (
        f"no label for what ran on {note.device}: its ceilings were not measured"
    ),
    RooflineNoteCode.TYPE_WITHOUT_CEILING: _type_note,
}
