# SPDX-License-Identifier: Apache-2.0
"""Comparing a program with itself on this machine: how often that is called different, and what can be seen.

Real process runs of one small workload, in the random order of every comparison. What fraction of a planted
slow-down is found is counted, not only computed: windows of consecutive process runs are dealt out to two
sides in such orders again and again, and the figures of one side are made larger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.benchmark import CallableRuns, plan_for, run_callables
from gpuprof.bench.config import Settings
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.workers.schedule import ProcessRun, run_order
from gpuprof.errors import BenchmarkError
from gpuprof.stats.proportions import exact_share
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.ratio_test import MARGIN, compare, smallest_change
from gpuprof.stats.significance import plain_means, welch
from gpuprof.text.table import wrapped

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats


RUNS_PER_SIDE = 5
SECONDS = 60.0
SIDES = (10, 20)
POWER = 0.8
_LEAST_CAMPAIGNS = 2
_REPLAYS = 400
_SETTINGS = Settings(iterations=40, warmup=20)
_TIME_LIMIT_S = 60.0
Progress = Callable[[int, int, float], None]

_INPUT = np.random.default_rng(0).random(100_000, dtype=np.float32)


def workload() -> float:
    """Compute for some milliseconds on one thread: a function of each element, a sum, and a sort."""
    values = np.exp(np.tanh(_INPUT) * np.sin(_INPUT))
    return float(np.sort(values[:30_000])[0] + values.sum())


@dataclass(frozen=True, slots=True)
class SelfComparison:
    """Process runs of two equal sides, in seconds; `order` are all of them as they came."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    order: tuple[float, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many, with the interval of Clopper and Pearson."""

    count: int
    total: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.count} of {self.total} ({self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True, slots=True)
class Sight:
    """What so many runs a side show: the smallest slow-down with a power of 80%, computed and counted.

    `planted_found_share` is the fraction of replays in which that slow-down, planted, was called slower, and
    `smallest_change_counted` the slow-down that 80% of them find; `false_alarm_share` the fraction in which
    without any the sides were called different. None where there were too few process runs.
    """

    launches_per_side: int
    smallest_change: float
    planted_found_share: float | None = None
    smallest_change_counted: float | None = None
    false_alarm_share: float | None = None
    power: float = POWER


@dataclass(frozen=True)
class SelfCheck:
    """What this machine's process runs show of comparisons on it."""

    comparisons: tuple[SelfComparison, ...]
    margin: float = MARGIN
    failures: tuple[str, ...] = ()
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def whole(self) -> list[SelfComparison]:
        """The comparisons that completed."""
        return [each for each in self.comparisons if each.whole]

    def called_different(self, margin: float) -> Share | None:
        """How many comparisons found a difference; None where none completed."""
        verdicts = [compare(each.first, each.second, margin=margin).verdict for each in self.whole]
        count, total = sum(each in ("slower", "faster") for each in verdicts), len(verdicts)
        return Share(count, total, *exact_share(count, total)) if total else None

    @property
    def medians_s(self) -> list[float]:
        """The median seconds of all process runs in the order of their making."""
        return [each for comparison in self.comparisons for each in comparison.order]

    @property
    def variation(self) -> float | None:
        """The standard deviation of the logarithms of a comparison's process runs; None for too few."""
        logs = [np.log(each.order) for each in self.comparisons]
        freedom = sum(len(each) - 1 for each in logs if len(each))
        if freedom < 1:
            return None
        squares = sum(float(((each - each.mean()) ** 2).sum()) for each in logs if len(each))
        return math.sqrt(squares / freedom)

    @property
    def variation_of_all(self) -> float | None:
        """That of all process runs; larger where the machine changes from comparison to comparison."""
        medians_s = self.medians_s
        return float(np.log(medians_s).std(ddof=1)) if len(medians_s) > 1 else None

    @cached_property
    def sights(self) -> list[Sight]:
        """What 10 and 20 process runs a side would show here."""
        variation = self.variation
        if variation is None:
            return []
        return [_sight(self.medians_s, variation, each, self.margin) for each in SIDES]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found: dict[str, Any] = to_plain(
            {
                "margin": self.margin,
                "campaigns": len(self.whole),
                "launches_per_side": RUNS_PER_SIDE,
                "called_different": self.called_different(self.margin),
                "called_different_without_margin": self.called_different(0.0),
                "variation_between_launches": self.variation,
                "variation_of_all_launches": self.variation_of_all,
                "smallest_change": self.sights,
                "launches_s": [each.order for each in self.comparisons],
                "failures": self.failures,
                "interrupted": self.interrupted,
                "seconds": self.seconds,
            }
        )
        return found

    def __str__(self) -> str:
        lines = [*_alarm_lines(self), *_variation_lines(self), *_sight_lines(self)]
        if self.failures:
            lines.append(f"failed process runs: {len(self.failures)}, first: {self.failures[0]}")
        if self.interrupted:
            lines.append("interrupted: this is what there was until then")
        return "\n".join(wrapped(each) for each in lines)


def self_check(
    *,
    seconds: float = SECONDS,
    comparisons: int | None = None,
    runs: int = RUNS_PER_SIDE,
    margin: float = MARGIN,
    seed: int = 0,
    progress: Progress | None = None,
    clock_s: Callable[[], float] = time.monotonic,
) -> SelfCheck:
    """Compare the workload with itself for about so many seconds, or in this many comparisons.

    `progress(runs, comparisons, seconds)` is called after each process run with what is done. Ctrl-C
    keeps what there is. Raises BenchmarkError where no process run gave a figure.
    """
    began = clock_s()
    done: list[SelfComparison] = []
    failures: list[Failure] = []
    interrupted = False
    plan = plan_for(workload, settings=_SETTINGS)
    count = 0

    def made(_run: ProcessRun, _done: int, _planned: int) -> None:
        nonlocal count
        count += 1
        if progress is not None:
            progress(count, len(done), clock_s() - began)

    while not interrupted and _has_time(clock_s() - began, len(done), seconds, comparisons):
        plans, now_seed = {"A": plan, "A again": plan}, seed + len(done)
        made_now = run_callables(plans, runs, seed=now_seed, time_limit_s=_TIME_LIMIT_S, progress=made)
        interrupted = made_now.interrupted
        failures += [each.failure for each in made_now.runs if each.failure and _has_failed(each)]
        done.append(_comparison(made_now, runs))
    if failures and not any(each.order for each in done):
        raise BenchmarkError(
            "no_process_run",
            f"no process run of the self-check has a figure: {failures[0].message}",
            hint=failures[0].hint or "run gpuprof doctor",
        )
    return SelfCheck(
        tuple(each for each in done if each.order),
        margin,
        tuple(map(str, failures)),
        interrupted,
        clock_s() - began,
    )


def _has_time(elapsed_s: float, done: int, seconds: float, comparisons: int | None) -> bool:
    if comparisons is not None:
        return done < comparisons
    return done < _LEAST_CAMPAIGNS or elapsed_s * (done + 1) / done <= seconds


def _has_failed(run: ProcessRun) -> bool:
    return run.failure is not None and run.failure.code is not FailureCode.INTERRUPTED


def _comparison(done: CallableRuns, runs: int) -> SelfComparison:
    """Return the process runs that completed; without one of them a comparison is not complete."""
    sides: dict[str, list[float]] = {"A": [], "A again": []}
    order = []
    for run in done.runs:
        measured = done.result_of(run).measurement
        if measured is not None and run.failure is None and len(measured.samples_ns):
            order.append(measured.median_s)
            sides[run.name].append(order[-1])
    whole = all(len(each) == runs for each in sides.values())
    return SelfComparison(tuple(sides["A"]), tuple(sides["A again"]), tuple(order), whole)


def _sight(medians_s: Sequence[float], variation: float, side: int, margin: float) -> Sight:
    smallest = smallest_change(variation, side, margin=margin, power=POWER)
    if len(medians_s) < 2 * side:
        return Sight(side, smallest)
    replays = Replays.of(medians_s, side)
    return Sight(
        launches_per_side=side,
        smallest_change=smallest,
        planted_found_share=replays.slower(1 + smallest, margin),
        smallest_change_counted=replays.smallest(margin),
        false_alarm_share=replays.slower(1.0, margin) + replays.faster(margin),
    )


@dataclass(frozen=True, slots=True)
class Replays:
    """Comparisons of consecutive process runs, dealt out to two sides in the order of a comparison.

    The difference of the sides' logarithms and half of its 95% interval, for each.
    """

    difference: Floats
    half: Floats

    @classmethod
    def of(cls, medians_s: Sequence[float], side: int, *, count: int = _REPLAYS) -> Replays:
        """Deal out process runs, so many a side, from evenly spaced places on."""
        figures = np.log(medians_s)
        begins = np.linspace(0, len(figures) - 2 * side, count).round().astype(int)
        windows = figures[begins[:, None] + np.arange(2 * side)]
        orders = np.array([run_order(["old", "new"], side, seed) for seed in range(count)])
        old, new = (windows[orders == name].reshape(count, side) for name in ("old", "new"))
        found = welch(plain_means(new), plain_means(old))
        return cls(found.difference, found.half_width(1 - CONFIDENCE))

    def slower(self, factor: float, margin: float) -> float:
        """Return the fraction that is called slower where the figures of one side are so much larger."""
        return float((self._needed(margin) < math.log(factor)).mean())

    def faster(self, margin: float) -> float:
        """Return the fraction that is called faster without anything planted."""
        return float((self.difference + self.half < -math.log1p(margin)).mean())

    def smallest(self, margin: float) -> float:
        """Return the slow-down that as many find as the power requires."""
        return math.expm1(max(0.0, float(np.quantile(self._needed(margin), POWER))))

    def _needed(self, margin: float) -> Floats:
        needed: Floats = math.log1p(margin) + self.half - self.difference
        return needed


def _alarm_lines(check: SelfCheck) -> list[str]:
    different, at_zero = check.called_different(check.margin), check.called_different(0.0)
    sides = f"{RUNS_PER_SIDE} + {RUNS_PER_SIDE}"
    if different is None or at_zero is None:
        return [f"false alarms: not known, no comparison of {sides} process runs completed"]
    return [
        f"false alarms: {different} comparisons of a program with itself, {sides} runs each, were called "
        f"different with the margin of {check.margin:.1%}, {at_zero} with none, where 5% "
        "are expected; 95% intervals"
    ]


def _variation_lines(check: SelfCheck) -> list[str]:
    variation, of_all = check.variation, check.variation_of_all
    if variation is None or of_all is None:
        return ["variation between process runs: not known, there were too few"]
    count = len(check.medians_s)
    drift = f"; {of_all:.2%} over the whole time" if of_all > 1.2 * variation else ""
    return [f"variation between process runs: {variation:.2%} ({count} process runs){drift}"]


def _sight_lines(check: SelfCheck) -> list[str]:
    lines = []
    for each in check.sights:
        side, found = each.launches_per_side, each.planted_found_share
        shown = f"{side} runs a side show a slow-down of {each.smallest_change:.1%} in {POWER:.0%} of cases"
        if found is None:
            lines.append(f"{shown}, by the variation; counting it needs {2 * side} process runs")
            continue
        bursts = " (runs vary in bursts: use the count)" if found < POWER - 0.1 else ""
        lines.append(
            f"{shown}, by the variation; planted into {_REPLAYS} replays of the runs it was found in "
            f"{found:.0%}, and in {POWER:.0%} one of {each.smallest_change_counted:.1%}{bursts}; without "
            f"any, {each.false_alarm_share:.1%} were called different"
        )
    return lines
