# SPDX-License-Identifier: Apache-2.0
"""Measuring small costs fairly on a machine that has other work too.

Contestants run in rounds. Each round runs every contestant once, in a random order, and the base with
them: the same loop without the thing that is measured. What a contestant costs is the difference (or the
ratio) to the base of its own round, and what is reported is the median over the rounds, with quartiles.
So a drift of the machine meets all contestants alike, and a disturbance spoils a round, not a result.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

Loop = Callable[[int], None]
Role = Literal["base", "gpuprof", "peer", "scale"]


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of repeated measurements, with the quartiles around it."""

    median: float
    first_quartile: float
    third_quartile: float
    repeats: int

    @property
    def iqr(self) -> float:
        """The interquartile range, in the unit of the figure."""
        return self.third_quartile - self.first_quartile

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Summarize at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        first, median, third = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, first, third, len(values))


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loop, and what is switched on around it (outside the timing).

    `scale` marks what is no peer but helps to read the others, such as reading a clock twice.
    """

    name: str
    loop: Loop
    iterations: int
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    role: Role = "peer"


def repeated(statement: str, **names: Any) -> Loop:
    """Compile `for _ in range(n): STATEMENT`, which may use `names`.

    Each loop has its own code object: the interpreter specializes code in place, and contestants that used
    one code object would undo each other's specialization.
    """
    source = f"def loop(n):\n    for _ in range(n):\n        {statement}\n"
    exec(compile(source, f"<{statement}>", "exec"), names)
    loop: Loop = names["loop"]
    return loop


def time_rounds(contestants: Sequence[Contestant], rounds: int, seed: int) -> dict[str, list[float]]:
    """Return, for each contestant by name, the nanoseconds that one iteration took in each round.

    One more round goes before and is thrown away: it warms up code, caches and lazy imports.
    """
    order = random.Random(seed)
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    gc.collect()
    gc.freeze()  # what is there already is no garbage: the collections before each measurement stay short
    for number in range(rounds + 1):
        for contestant in order.sample(contestants, len(contestants)):
            elapsed = _time_once(contestant)
            if number > 0:
                times[contestant.name].append(elapsed)
    gc.unfreeze()
    return times


def _time_once(contestant: Contestant) -> float:
    gc.collect()
    gc.disable()
    try:
        with contestant.around():
            contestant.loop(max(1, contestant.iterations // 10))
            begin = time.perf_counter_ns()
            contestant.loop(contestant.iterations)
            elapsed = time.perf_counter_ns() - begin
    finally:
        gc.enable()
    return elapsed / contestant.iterations


def added(times: Mapping[str, Sequence[float]], base: str, units: int = 1) -> dict[str, Figure]:
    """Return what each contestant added over the base of its round, per unit; an iteration holds `units`."""
    return _against(times, base, lambda own, bare: (own - bare) / units)


def ratios(times: Mapping[str, Sequence[float]], base: str) -> dict[str, Figure]:
    """Return how many times as long as the base of its own round each contestant took."""
    return _against(times, base, lambda own, bare: own / bare)


def _against(
    times: Mapping[str, Sequence[float]], base: str, compare: Callable[[float, float], float]
) -> dict[str, Figure]:
    return {
        name: Figure.of([compare(own, bare) for own, bare in zip(values, times[base], strict=True)])
        for name, values in times.items()
        if name != base
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """What one contestant of a row came to; `figure` is None where it could not be measured."""

    name: str
    figure: Figure | None
    role: Role = "peer"


@dataclass(frozen=True, slots=True)
class Row:
    """One result: gpuprof's figure, its budget (an upper bound, in `unit`) and what others came to."""

    name: str
    what: str
    unit: str
    measured: Figure | None
    budget: float | None = None
    others: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> bool | None:
        """Whether the median keeps the budget; None where there is no budget or no figure."""
        if self.budget is None or self.measured is None:
            return None
        return self.measured.median <= self.budget

    @property
    def best_peer(self) -> Entry | None:
        """The peer with the smallest median."""
        peers = [entry for entry in self.others if entry.role == "peer" and entry.figure is not None]
        return min(peers, key=_median, default=None)

    def ratio_to(self, entry: Entry) -> float | None:
        """How many times gpuprof's figure the other's is; None where one is not above zero."""
        if self.measured is None or entry.figure is None:
            return None
        if self.measured.median <= 0 or entry.figure.median <= 0:
            return None
        return entry.figure.median / self.measured.median


def _median(entry: Entry) -> float:
    return entry.figure.median if entry.figure is not None else float("inf")


def entries(contestants: Iterable[Contestant], figures: Mapping[str, Figure]) -> tuple[Entry, ...]:
    """Return the entries of those contestants that are not gpuprof or the base."""
    return tuple(
        Entry(each.name, figures[each.name], each.role)
        for each in contestants
        if each.role in ("peer", "scale")
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure. `folder` is where runs are written, on the file system that is wanted."""

    quick: bool
    slow: bool
    rounds: int
    launches: int
    seed: int
    folder: str
    operators: int | None = None  # of row million; None is its own number

    def iterations(self, full: int, quick: int) -> int:
        """Return how often a loop is to go round."""
        return quick if self.quick else full
