# SPDX-License-Identifier: Apache-2.0
"""The part of a step that a finding is about, and by how much it and the rest differ between two runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.findings.finding import Rule, TimeRange
from gpuprof.analyze.phases import mean_interval
from gpuprof.analyze.whatif.intervals import Intervals

if TYPE_CHECKING:
    from gpuprof.analyze.findings.record import ProgramRecord, StepTimes
    from gpuprof.stats.arrays import Floats

_LEAST_DRIFT = 0.01  # of the old step


class StepPart(str, Enum):
    """A part of the main thread's time in a step."""

    OPTIMIZER = "optimizer"
    LOADER = "loader"
    COLLECTIONS = "collections"
    MODEL = "model"
    OUTSIDE = "outside"  # neither in the model, nor in any of the above


PART_OF_RULE = {
    Rule.OPTIMIZER: StepPart.OPTIMIZER,
    Rule.LOADER: StepPart.LOADER,
    Rule.COLLECTIONS: StepPart.COLLECTIONS,
    Rule.LOGGING: StepPart.OUTSIDE,
    Rule.WAITING: StepPart.OUTSIDE,
    Rule.THREADS: StepPart.MODEL,
    Rule.PADDING: StepPart.MODEL,
    Rule.FP32_NORMS: StepPart.MODEL,
    Rule.ATTENTION: StepPart.MODEL,
    Rule.SUBNORMALS: StepPart.MODEL,
}
_SPANS = {
    StepPart.LOADER: ("enumerate(DataLoader)#%", "span"),
    StepPart.COLLECTIONS: ("%", "gc"),
}


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """By how much a mean time became shorter, with its 90% interval; None with fewer than five steps."""

    saved_ns: float
    interval: TimeRange | None


@dataclass(frozen=True, slots=True)
class PartDifference:
    """The differences of a part of the step and of the rest, and whether that of the rest is significant."""

    part: StepPart
    own: TimeSaved
    rest: TimeSaved
    has_drifted: bool


def compare_part(part: StepPart, old: ProgramRecord, new: ProgramRecord) -> PartDifference | None:
    """Return the differences of a part and of the rest of the step; None if a run has no steps."""
    if old.steps is None or new.steps is None:
        return None
    before, after = _times(part, old, old.steps), _times(part, new, new.steps)
    own, rest = (difference(*pair) for pair in zip(before, after, strict=True))
    return PartDifference(part, own, rest, _has_drifted(rest, float((before[0] + before[1]).mean())))


def difference(old: Floats, new: Floats) -> TimeSaved:
    """Compare the means of two samples: a median does not see a cause that only few steps have.

    The interval of the difference is that of Zou and Donner, Statistics in Medicine 27 (2008) 1693: the
    distances of the ends from the means, added as independent errors.
    """
    before, after = float(old.mean()), float(new.mean())
    ends = [mean_interval(each) for each in (old, new)]
    return TimeSaved(before - after, difference_interval(before, ends[0], after, ends[1]))


def difference_interval(
    before: float, old: tuple[float, float] | None, after: float, new: tuple[float, float] | None
) -> TimeRange | None:
    """Return the interval of the difference of two means with their intervals, None if one has none."""
    if old is None or new is None:
        return None
    below = math.hypot(before - old[0], new[1] - after)
    above = math.hypot(old[1] - before, after - new[0])
    return TimeRange(before - after - below, before - after + above)


def _has_drifted(rest: TimeSaved, step_ns: float) -> bool:
    if rest.interval is None or abs(rest.saved_ns) < _LEAST_DRIFT * step_ns:
        return False
    return rest.interval.low_ns > 0 or rest.interval.high_ns < 0


def _times(part: StepPart, record: ProgramRecord, steps: StepTimes) -> tuple[Floats, Floats]:
    """Return the time of a part and the rest in each step that is not warm-up."""
    warm = steps.warm
    whole = (warm.end_ns - warm.begin_ns).astype(np.float64)
    own = _part(part, record).covered_ns(warm.begin_ns, warm.end_ns).astype(np.float64)
    if part is StepPart.OUTSIDE:
        return whole - own, own
    return own, whole - own


def _part(part: StepPart, record: ProgramRecord) -> Intervals:
    """Return the time of a part; of OUTSIDE, the time that is not in it."""
    if part is StepPart.OUTSIDE:
        pauses = _covered(StepPart.COLLECTIONS, record)
        return Intervals.union(
            np.concatenate([record.in_model.begin_ns, pauses.begin_ns]),
            np.concatenate([record.in_model.end_ns, pauses.end_ns]),
        )
    if part is StepPart.MODEL:
        optimizing, loading = (_covered(each, record) for each in (StepPart.OPTIMIZER, StepPart.LOADER))
        return record.in_model.without(optimizing).without(loading)
    return _covered(part, record)


def _covered(part: StepPart, record: ProgramRecord) -> Intervals:
    if part is StepPart.OPTIMIZER:
        return record.updates().covered
    return record.spans(*_SPANS[part]).on_thread(record.main_thread).covered
