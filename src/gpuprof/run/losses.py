# SPDX-License-Identifier: Apache-2.0
"""What is missing from a run: typed, and counted from its totals, its damage and the facts of its GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.facts import damage_in


class LossCode(str, Enum):
    """What is missing."""

    DROPPED_EVENTS = "dropped_events"
    DAMAGED_EVENTS = "damaged_events"
    UNMATCHED_ENDS = "unmatched_ends"
    UNFINISHED_SPANS = "unfinished_spans"
    GPU_DROPPED = "gpu_dropped"
    GPU_UNFINISHED = "gpu_unfinished"
    GPU_TRUNCATED = "gpu_truncated"
    GPU_LOST_RECORDS = "gpu_lost_records"
    GPU_OUTSIDE = "gpu_outside"
    GPU_CLOCK_UNREADABLE = "gpu_clock_unreadable"
    GPU_CLOCK_STOPPED = "gpu_clock_stopped"
    GPU_CLOCK_CHANGED = "gpu_clock_changed"
    GPU_CLOCK_ERROR = "gpu_clock_error"  # its count are nanoseconds
    LAYERS_UNTIMED = "layers_untimed"
    LAYERS_UNFINISHED = "layers_unfinished"
    LAYERS_LOST_RECORDS = "layers_lost_records"
    GPU_PROBLEM = "gpu_problem"
    DAMAGED_SEGMENTS = "damaged_segments"
    MISSING_SEGMENTS = "missing_segments"
    UNKNOWN_LOSSES = "unknown_losses"
    DAMAGED_NAMES = "damaged_names"


@dataclass(frozen=True, slots=True)
class Loss:
    """One kind of loss, and how much of it: None where that is unknown."""

    code: LossCode
    count: int | None = None


# What `totals` of meta.json counts. The first two are lost data, the others spans of uncertain length.
_OF_TOTALS = (
    LossCode.DROPPED_EVENTS,
    LossCode.DAMAGED_EVENTS,
    LossCode.UNMATCHED_ENDS,
    LossCode.UNFINISHED_SPANS,
)
# What `gpu` of meta.json counts, for records of CUPTI and for layers timed by CUDA events.
_OF_RECORDS = {
    "dropped": LossCode.GPU_DROPPED,
    "unfinished": LossCode.GPU_UNFINISHED,
    "truncated": LossCode.GPU_TRUNCATED,
    "lost_records": LossCode.GPU_LOST_RECORDS,
    "outside": LossCode.GPU_OUTSIDE,
}
_OF_CLOCKS = {
    "unreadable": LossCode.GPU_CLOCK_UNREADABLE,
    "stopped": LossCode.GPU_CLOCK_STOPPED,
    "changed": LossCode.GPU_CLOCK_CHANGED,
}
# Of CUPTI's clock against ours: times of small kernels are as uncertain then as they are long.
LARGEST_CLOCK_ERROR_NS = 50_000
_OF_LAYERS = {
    "untimed": LossCode.LAYERS_UNTIMED,
    "unfinished": LossCode.LAYERS_UNFINISHED,
    "lost_records": LossCode.LAYERS_LOST_RECORDS,
}
# Damage of a segment that costs no events is not among them.
_OF_SEGMENTS = (DamageCode.SEGMENT_CUT_SHORT, DamageCode.SEGMENT_HEADER)
_OF_NAMES = (DamageCode.NAMES_NO_FILE, DamageCode.NAMES_CUT)


def losses(meta: Mapping[str, Any]) -> list[Loss]:
    """Return each kind of loss that a run reports; an empty list where it reports none."""
    totals = meta.get("totals") or {}
    found = [Loss(code, totals[code.value]) for code in _OF_TOTALS if totals.get(code.value)]
    return [*found, *gpu_losses(meta.get("gpu")), *_of_damage(damage_in(meta))]


def gpu_losses(gpu: Any) -> list[Loss]:
    """Return the losses of GPU records; `gpu` is that of meta.json, which may be None."""
    if not isinstance(gpu, Mapping):
        return []
    codes = _OF_LAYERS if "method" in gpu else _OF_RECORDS
    found = [Loss(code, gpu[key]) for key, code in codes.items() if gpu.get(key)]
    found += _of_clock(gpu)
    return [*found, Loss(LossCode.GPU_PROBLEM)] if gpu.get("problem") else found


def _of_clock(gpu: Mapping[str, Any]) -> list[Loss]:
    # Runs of versions before this key measured it at their start and stop alone.
    state, error_ns = gpu.get("clock"), gpu.get("clock_error_ns") or 0
    if state in _OF_CLOCKS:
        return [Loss(_OF_CLOCKS[state])]
    is_inexact = state is not None and error_ns > LARGEST_CLOCK_ERROR_NS
    return [Loss(LossCode.GPU_CLOCK_ERROR, error_ns)] if is_inexact else []


def _of_damage(damage: list[Damage]) -> Iterator[Loss]:
    # How many events are lost with a file, or which names, is unknown.
    if segments := _files(damage, lambda each: each.code in _OF_SEGMENTS or _is_unreadable(each, ".segment")):
        yield Loss(LossCode.DAMAGED_SEGMENTS, segments)
    missing = sum(each.count or 0 for each in damage if each.code is DamageCode.SEGMENTS_MISSING)
    if missing:
        yield Loss(LossCode.MISSING_SEGMENTS, missing)
    if any(each.code is DamageCode.LOSSES_HEADER for each in damage):
        yield Loss(LossCode.UNKNOWN_LOSSES)
    if processes := _files(damage, lambda each: each.code in _OF_NAMES or _is_unreadable(each, ".names")):
        yield Loss(LossCode.DAMAGED_NAMES, processes)


def _files(damage: list[Damage], is_of_kind: Callable[[Damage], bool]) -> int:
    return len({each.file for each in damage if is_of_kind(each)})


def _is_unreadable(damage: Damage, extension: str) -> bool:
    return damage.code is DamageCode.UNREADABLE and (damage.file or "").endswith(extension)
