# SPDX-License-Identifier: Apache-2.0
"""What changed between runs, and whether it is more than chance (docs/difference.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuprof.analyze.calls import Blocks
from gpuprof.stats.significance import Contrast, discoveries, plain_means, trimmed_means, welch

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

Scaling = Literal["none", "calls", "total"]
# The states of a node. The index is the code in the columns and in the page.
STATES = ("same", "slower", "faster", "new", "gone", "unknown")
SAME, SLOWER, FASTER, NEW, GONE, UNKNOWN = range(len(STATES))

FALSE_RATE = 0.05
# A smaller change is not reported, even where it is significant. One start of a program differs from the next
# by more than what a single run of it can show.
MARGIN_BETWEEN_RUNS = 0.01
MARGIN_WITHIN_RUNS = 0.03
# Of the whole time. What is smaller is never called changed, new or gone, and takes no part in the tests.
SMALLEST_SHARE = 0.0005


@dataclass(frozen=True, slots=True)
class Sample:
    """One run in columns common to all runs of a comparison: a row for each node, or for each group.

    `exists` marks the rows that the run has. `blocks` is None where the run repeats nothing often enough, or
    does not record its single calls. `repetitions` counts the calls of what the runs repeat.
    """

    total_ns: Floats
    own_ns: Floats
    calls: Ints
    exists: Flags
    repetitions: int | None
    whole_ns: float
    blocks: Blocks | None

    def gathered(self, own_place: Ints, total_place: Ints, rows: int) -> Sample:
        """Return the sample in other rows: where each row's self time and total go, -1 for nowhere."""

        def moved(values: Floats, place: Ints) -> Floats:
            sums = np.zeros((rows, *values.shape[1:]))
            np.add.at(sums, place[place >= 0], values[place >= 0])
            return sums

        calls = moved(self.calls.astype(np.float64), total_place).astype(np.int64)
        exists = moved(self.exists.astype(np.float64), own_place) > 0
        exists |= moved(self.exists.astype(np.float64), total_place) > 0
        blocks = self.blocks
        if blocks is not None:
            total, own = moved(blocks.total_ns, total_place), moved(blocks.own_ns, own_place)
            regular = moved(blocks.is_regular.astype(np.float64), own_place) > 0
            blocks = Blocks(total, own, regular & ((own > 0).all(axis=1) | (total > 0).all(axis=1)))
        return replace(
            self,
            total_ns=moved(self.total_ns, total_place),
            own_ns=moved(self.own_ns, own_place),
            calls=calls,
            exists=exists,
            blocks=blocks,
        )


@dataclass(frozen=True, slots=True)
class TimeChange:
    """How one time of each row changed, in nanoseconds; `low` and `high` are NaN where they are unknown.

    `old_ns` and `new_ns` are means over the runs of each side, and the interval contains their difference.
    `state` is an index into STATES.
    """

    old_ns: Floats
    new_ns: Floats
    low_ns: Floats
    high_ns: Floats
    state: npt.NDArray[np.uint8]

    @property
    def change_ns(self) -> Floats:
        """New less old."""
        return self.new_ns - self.old_ns


@dataclass(frozen=True, slots=True)
class Difference:
    """All rows compared. `level` is the one of the intervals: they hold with a probability of 1 - `level`."""

    scaling: Scaling
    total: TimeChange
    own: TimeChange
    calls_old: Floats
    calls_new: Floats
    level: float
    between_runs: bool

    @property
    def is_empty(self) -> bool:
        """Whether no row changed."""
        return (
            not np.isin(self.own.state, (SLOWER, FASTER, NEW, GONE)).any()
            and not np.isin(self.total.state, (SLOWER, FASTER, NEW, GONE)).any()
        )


def between_runs(new: Sequence[Sample], old: Sequence[Sample]) -> bool:
    """Whether the variation from run to run is known: then a change is compared with it."""
    return len(new) > 1 and len(old) > 1


def can_scale_by_calls(new: Sequence[Sample], old: Sequence[Sample]) -> bool:
    """Whether all runs repeat the same thing, so that their times for one repetition can be compared."""
    return all(sample.repetitions for sample in (*new, *old))


def compare(new: Sequence[Sample], old: Sequence[Sample], scaling: Scaling = "none") -> Difference:
    """Compare the runs of two sides row by row.

    With `scaling` "calls", times are those for as many repetitions as the new runs made on average, with
    "total" every run's whole time is taken to be that of the new runs.
    """
    factors_new, factors_old = _factors(new, old, scaling)
    sides = ((new, factors_new), (old, factors_old))
    exists_new, exists_old = (np.any([run.exists for run in runs], axis=0) for runs, _ in sides)
    means = {
        quantity: tuple(_mean(runs, factors, quantity) for runs, factors in sides)
        for quantity in ("total_ns", "own_ns", "calls")
    }
    is_between = between_runs(new, old)
    judged: dict[str, tuple[Flags, Contrast, Floats]] = {}
    smallest = SMALLEST_SHARE * max(_mean_whole(*side) for side in sides)
    for quantity in ("total_ns", "own_ns"):
        present = exists_new & exists_old & (np.maximum(*means[quantity]) > smallest)
        judged[quantity] = _judge(present, sides, quantity, is_between)
    # One family: a page shows both times of every node.
    p_values = np.concatenate([contrast.p_value for _, contrast, _ in judged.values()])
    stands, level = discoveries(p_values, FALSE_RATE)
    split = len(judged["total_ns"][1].p_value)
    parts = {"total_ns": stands[:split], "own_ns": stands[split:]}
    changes = {
        quantity: _change(
            means[quantity], (exists_new, exists_old), judged[quantity], parts[quantity], level, smallest
        )
        for quantity in ("total_ns", "own_ns")
    }
    calls_new, calls_old = means["calls"]
    return Difference(
        scaling, changes["total_ns"], changes["own_ns"], calls_old, calls_new, level, is_between
    )


def _factors(
    new: Sequence[Sample], old: Sequence[Sample], scaling: Scaling
) -> tuple[list[float], list[float]]:
    def size(sample: Sample) -> float:
        if scaling == "none":
            return 1.0
        return float((sample.repetitions or 0) if scaling == "calls" else sample.whole_ns)

    reference = sum(map(size, new)) / len(new)
    new_factors, old_factors = (
        [reference / size(run) if size(run) > 0 else 1.0 for run in runs] for runs in (new, old)
    )
    return new_factors, old_factors


def _mean(runs: Sequence[Sample], factors: Sequence[float], quantity: str) -> Floats:
    columns = [getattr(run, quantity) * factor for run, factor in zip(runs, factors, strict=True)]
    mean: Floats = np.mean(columns, axis=0)
    return mean


def _mean_whole(runs: Sequence[Sample], factors: Sequence[float]) -> float:
    return sum(run.whole_ns * factor for run, factor in zip(runs, factors, strict=True)) / len(runs)


_Side = tuple[Sequence[Sample], Sequence[float]]


def _judge(
    present: Flags, sides: tuple[_Side, _Side], quantity: str, is_between: bool
) -> tuple[Flags, Contrast, Floats]:
    """Return which rows can be judged, and of these the contrast and the change that is too small."""
    if is_between:
        samples = [_run_samples(*side, quantity)[present] for side in sides]
        new, old = map(plain_means, samples)
        return present, welch(new, old), MARGIN_BETWEEN_RUNS * np.abs(old.mean)
    blocks = [run.blocks for runs, _ in sides for run in runs]
    if any(each is None for each in blocks):
        present = np.zeros_like(present)
        nothing = np.zeros(0)
        return present, Contrast(nothing, nothing, nothing, nothing), nothing
    for each in blocks:
        assert each is not None
        present = present & each.is_regular & (getattr(each, quantity) > 0).any(axis=1)
    samples = [_block_samples(*side, quantity)[present] for side in sides]
    new, old = map(trimmed_means, samples)
    floor = np.maximum(MARGIN_WITHIN_RUNS * np.abs(old.mean), _drift(sides, quantity, present))
    return present, welch(new, old), floor


def _run_samples(runs: Sequence[Sample], factors: Sequence[float], quantity: str) -> Floats:
    columns = [getattr(run, quantity) * factor for run, factor in zip(runs, factors, strict=True)]
    return np.stack(columns, axis=1)


def _block_samples(runs: Sequence[Sample], factors: Sequence[float], quantity: str) -> Floats:
    columns = [getattr(run.blocks, quantity) * factor for run, factor in zip(runs, factors, strict=True)]
    return np.concatenate(columns, axis=1)


def _drift(sides: tuple[_Side, _Side], quantity: str, present: Flags) -> Floats:
    """Return how far each row moves from the first half of a run to the second, in the run that moves most.

    Where a run differs so much from itself, a smaller difference from another run is no evidence.
    """
    largest = np.zeros(int(present.sum()))
    for runs, factors in sides:
        for run, factor in zip(runs, factors, strict=True):
            samples = getattr(run.blocks, quantity)[present] * factor
            half = samples.shape[1] // 2
            moved = np.median(samples[:, half:], axis=1) - np.median(samples[:, :half], axis=1)
            largest = np.maximum(largest, np.abs(moved))
    return largest


def _change(
    means: tuple[Floats, ...],
    exists: tuple[Flags, Flags],
    judged: tuple[Flags, Contrast, Floats],
    stands: Flags,
    level: float,
    smallest: float,
) -> TimeChange:
    (exists_new, exists_old), (present, contrast, floor) = exists, judged
    rows = len(present)
    low, high = np.full(rows, np.nan), np.full(rows, np.nan)
    half = contrast.half_width(level)
    new, old = means
    # A few slow blocks move the sums and not the trimmed means: the interval holds the change of both.
    change = (new - old)[present]
    low[present] = np.minimum(contrast.difference - half, change)
    high[present] = np.maximum(contrast.difference + half, change)
    state = np.full(rows, UNKNOWN, dtype=np.uint8)
    state[exists_new & ~exists_old] = NEW
    state[exists_old & ~exists_new] = GONE
    state[np.maximum(new, old) <= smallest] = SAME
    direction = np.where(contrast.difference > 0, SLOWER, FASTER)
    counts = np.abs(contrast.difference) > np.maximum(floor, smallest)
    # A few slow calls can turn the sum against the trimmed means: then neither is reliable.
    counts &= np.sign(change) == np.sign(contrast.difference)
    state[present] = np.where(stands & counts, direction, SAME)
    return TimeChange(old, new, low, high, state)
