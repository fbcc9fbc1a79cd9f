# SPDX-License-Identifier: Apache-2.0
"""Results of requests that two variants share: figures with intervals, failures, advice.

The process run is the unit: in each one the ratio of both variants' medians (p95, p99) is one paired figure,
whose logarithms get Student's interval over the process runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.compare.document import (
    TrafficAdvice,
    TrafficArm,
    TrafficFigures,
    TrafficRatio,
    with_texts,
)
from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.verdicts import RolloutAction, SpeedVerdict
from gpuprof.bench.workers.schedule import TIME_LIMIT_S
from gpuprof.errors import BenchmarkError
from gpuprof.stats.proportions import exact_share
from gpuprof.stats.quantiles import CONFIDENCE, Estimate, PooledSamples, samples_needed
from gpuprof.stats.ratio_test import MARGIN, Judgement, LogRatio, judge_ratios

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats


QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MOST_RUNS = 1_000
_LEVEL, _POWER = 0.05, 0.8


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """How requests are shared and measured. Raises BenchmarkError for what cannot be.

    `split` are the fractions of both variants, 1 together. A process run ends after `requests` or
    `duration_s`, whatever comes first; before that each variant gets `warmup` requests that do not count.
    `margin` is the change of the median that matters, `tail_margin` that of p95 and p99, `error_margin` that
    of the fraction of requests that fail.
    """

    split: tuple[float, float]
    launches: int = 10
    requests: int = 1_000
    duration_s: float = 20.0
    warmup: int = 30
    batch_size: int = 1
    seed: int = 0
    margin: float = MARGIN
    tail_margin: float = 0.05
    error_margin: float = 0.01
    time_limit_s: float = TIME_LIMIT_S

    def __post_init__(self) -> None:
        least = {"launches": 1, "requests": 1, "warmup": 0, "batch_size": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise BenchmarkError(
                    "invalid_traffic",
                    f"traffic: {name} {getattr(self, name)} cannot be measured",
                    hint=f"use {value} or more",
                )
        for name in ("duration_s", "time_limit_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BenchmarkError(
                    "invalid_time",
                    f"traffic: {name} {getattr(self, name)} is not a time",
                    hint="use seconds above 0",
                )
        if not (min(self.split) > 0 and math.isclose(sum(self.split), 1.0)):
            raise BenchmarkError(
                "invalid_split",
                f"traffic: the split {self.split} does not add up to 1 or leaves a variant without requests",
                hint="use fractions such as 0.9 and 0.1",
            )


@dataclass(frozen=True, slots=True)
class ArmRequests:
    """The requests of one variant in one process run: nanoseconds of successful ones.

    The last `compared` of them are compared with the other variant's; None for all.
    """

    wall_ns: list[int] = field(default_factory=list)
    compared: int | None = None
    failed: int = 0
    first_failure: str | None = None

    @property
    def seconds(self) -> Floats:
        """The times of successful requests."""
        return np.array(self.wall_ns, dtype=np.float64) / 1e9

    @property
    def compared_seconds(self) -> Floats:
        """The times of those that are compared with the other variant's."""
        return self.seconds[0 if self.compared is None else len(self.wall_ns) - self.compared :]

    @property
    def count(self) -> int:
        """All requests."""
        return len(self.wall_ns) + self.failed


@dataclass(frozen=True, slots=True)
class TrafficRun:
    """One process run in which both variants served."""

    number: int
    arms: tuple[ArmRequests, ArmRequests]

    def log_ratio(self, quantile: float) -> float | None:
        """Return the logarithm of the second variant's quantile over the first's; None for too few samples.

        Of those requests that are compared, which are about as many on both sides.
        """
        first, second = (arm.compared_seconds for arm in self.arms)
        if min(len(first), len(second)) < samples_needed(quantile):
            return None
        return math.log(np.quantile(second, quantile) / np.quantile(first, quantile))


@dataclass(frozen=True)
class TrafficResult:
    """The requests of all process runs."""

    names: tuple[str, str]
    settings: TrafficSettings
    runs: tuple[TrafficRun, ...]
    failures: tuple[str, ...] = ()
    interrupted: bool = False

    @cached_property
    def figures(self) -> tuple[TrafficRatio, ...]:
        """The ratios second over first, judged together; without a ratio where process runs are too few."""
        logs = {
            name: [found for each in self.runs if (found := each.log_ratio(quantile)) is not None]
            for name, quantile in QUANTILES.items()
        }
        margins = dict.fromkeys(QUANTILES, self.settings.tail_margin) | {"p50": self.settings.margin}
        judged = judge_ratios({name: _paired(each) for name, each in logs.items()}, margins)
        return tuple(_ratio(name, each, judged[name]) for name, each in logs.items())

    @cached_property
    def failed(self) -> FailureCounts:
        """The requests that failed, of how many, for both variants."""
        return FailureCounts(*(arm.failed_of for arm in self.arms))

    @cached_property
    def arms(self) -> tuple[_ArmOfAll, _ArmOfAll]:
        """The requests of both variants in all process runs."""
        first, second = (_ArmOfAll([each.arms[arm] for each in self.runs]) for arm in (0, 1))
        return first, second

    @property
    def advice(self) -> TrafficAdvice:
        """Which variant to serve with, and why."""
        return _advise(self)

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """What limits the figures."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[Diagnostic]:
        if self.failures:
            yield warning("failed_traffic_runs", failed=len(self.failures), first=self.failures[0])
        if self.interrupted:
            yield warning("traffic_interrupted")
        needed = {
            each.figure: samples_needed(QUANTILES[each.figure]) for each in self.figures if each.launches < 2
        }
        if needed:
            yield warning("too_few_requests", needed=needed)

    def to_document(self) -> TrafficFigures:
        """Return what a comparison's document has of it."""
        first, second = (
            arm.figures(name, share)
            for arm, name, share in zip(self.arms, self.names, self.settings.split, strict=True)
        )
        return TrafficFigures(
            variants=self.names,
            split=self.settings.split,
            launches=len(self.runs),
            settings=to_plain(self.settings),
            confidence=CONFIDENCE,
            arms=(first, second),
            failure_difference=self.failed.difference,
            figures=self.figures,
            launch_ratios=tuple(
                {"launch": each.number, **{name: _exp(each.log_ratio(q)) for name, q in QUANTILES.items()}}
                for each in self.runs
            ),
            advice=self.advice,
            failures=self.failures,
            interrupted=self.interrupted,
            notes=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain: dict[str, Any] = with_texts(to_plain(self.to_document()))
        return plain

    def __str__(self) -> str:
        from gpuprof.bench.report.console import traffic_text

        return traffic_text(self.to_document())


class _ArmOfAll:
    """The requests of one variant in all process runs."""

    def __init__(self, runs: Sequence[ArmRequests]) -> None:
        self._runs = runs
        self.failed_of = sum(each.failed for each in runs), sum(each.count for each in runs)

    def figures(self, name: str, share: float) -> TrafficArm:
        """Return its counts and times; a quantile is None where there are too few samples."""
        failed, count = self.failed_of
        low, high = exact_share(failed, count) if count else (None, None)
        times = PooledSamples([each.seconds for each in self._runs])
        return TrafficArm(
            variant=name,
            share=share,
            requests=count,
            failed=failed,
            failed_share=Estimate(low, failed / count, high) if count else None,
            first_failure=next((each.first_failure for each in self._runs if each.first_failure), None),
            **{f"{name}_s": times.quantile(quantile) for name, quantile in QUANTILES.items()},
        )


def _paired(logs: Sequence[float]) -> LogRatio | None:
    if len(logs) < 2:
        return None
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return LogRatio.of(float(np.mean(logs)), error, len(logs) - 1)


def _ratio(name: str, logs: Sequence[float], judged: Judgement) -> TrafficRatio:
    value = math.exp(float(np.mean(logs))) if logs else None
    return TrafficRatio(
        figure=name,
        ratio=None if value is None else Estimate(judged.low, value, judged.high),
        launches=len(logs),
        variation_between_launches=float(np.std(logs, ddof=1)) if len(logs) > 1 else None,
        margin=judged.margin,
        verdict=SpeedVerdict.INSUFFICIENT if value is None else SpeedVerdict(judged.verdict),
        level=judged.level,
        same_p_value=judged.same_p_value,
    )


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


# --- advice --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """Requests that failed and all of them, of both variants, and the interval of the difference.

    Newcombe (Statistics in Medicine 17, 1998, 873-890), method 10, with exact intervals of both fractions.
    Requests count as independent; where those of one process run fail together, the interval is too narrow.
    """

    first: tuple[int, int]
    second: tuple[int, int]

    @property
    def difference(self) -> Estimate | None:
        """The second's fraction less the first's with its interval; None where one had no request."""
        if not (self.first[1] and self.second[1]):
            return None
        a, b = (count / total for count, total in (self.first, self.second))
        (low_a, high_a), (low_b, high_b) = exact_share(*self.first), exact_share(*self.second)
        below, above = math.hypot(b - low_b, high_a - a), math.hypot(high_b - b, a - low_a)
        return Estimate(b - a - below, b - a, b - a + above)

    def may_differ(self, margin: float) -> bool:
        """Whether the interval does not rule out that the second fails more often by the margin."""
        found = self.difference
        return found is None or found.high is None or found.high > margin

    def runs_needed(self, margin: float, runs: int) -> int | None:
        """Return the process runs that rule out a difference beyond the margin; None where none do."""
        found = self.difference
        if found is None or found.high is None or found.value >= margin:
            return None
        if not self.second[0]:
            # Without a failure the upper end is 1 - 0.025^(1 / n).
            wanted = math.log(_LEVEL / 2) / math.log1p(-margin)
            return math.ceil(wanted / (self.second[1] / runs))
        return math.ceil(runs * ((found.high - found.value) / (margin - found.value)) ** 2)


def runs_needed(figure: TrafficRatio) -> int | None:
    """Return the process runs that rule out a slow-down if there is none; None where nothing is known."""
    if figure.variation_between_launches is None or figure.margin <= 0:
        return None
    level = _LEVEL if figure.level is None else figure.level
    z = NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(_POWER)
    return math.ceil((z * figure.variation_between_launches / math.log1p(figure.margin)) ** 2 + 1)


def _advise(result: TrafficResult) -> TrafficAdvice:
    """Return what follows from the intervals.

    Roll back where the second variant fails more often, or any figure is slower. Roll out where the intervals
    rule out, by the margins, that it is slower or fails more often. Else continue measuring.
    """
    (first, second), settings = result.names, result.settings
    against = tuple(_against(result))
    if against:
        return TrafficAdvice(RolloutAction.ROLL_BACK, note("roll_back", first=first), against)
    judged = [each for each in result.figures if each.ratio is not None and each.launches > 1]
    inconclusive = [each for each in judged if each.may_be_slower]
    has_median = any(each.figure == "p50" for each in judged)
    may_fail = result.failed.may_differ(settings.error_margin)
    reasons = [note("traffic_inconclusive", **_of(each)) for each in inconclusive]
    reasons += [] if has_median else [note("needs_medians")]
    if may_fail:
        reasons.append(note("may_fail_more_often", second=second, margin=settings.error_margin))
    if not reasons:
        same = note("traffic_same", variant=second, figures=judged)
        return TrafficAdvice(RolloutAction.ROLL_OUT, note("roll_out", second=second), (same,))
    runs = len(result.runs)
    needed = [runs_needed(each) for each in inconclusive]
    needed += [result.failed.runs_needed(settings.error_margin, runs)] if may_fail else []
    more = _more_runs(needed, runs, has_median=has_median)
    values = {"second": second, "share": settings.split[1]}
    if more is None:
        return TrafficAdvice(RolloutAction.KEEP, note("keep_split_inconclusive", **values), tuple(reasons))
    text = note("keep_split", more_runs=more, **values)
    return TrafficAdvice(RolloutAction.KEEP, text, tuple(reasons), more)


def _against(result: TrafficResult) -> Iterator[Diagnostic]:
    (first, second), difference = result.names, result.failed.difference
    if difference is not None and difference.low is not None and difference.low > 0:
        (first_failed, first_requests), (failed, requests) = result.failed.first, result.failed.second
        yield note(
            "fails_more_often",
            first=first,
            second=second,
            failed=failed,
            requests=requests,
            first_failed=first_failed,
            first_requests=first_requests,
            low=difference.low,
            high=difference.high,
        )
    for each in result.figures:
        if each.verdict == SpeedVerdict.SLOWER:
            yield note("traffic_slower", variant=second, **_of(each))


def _more_runs(needed: Sequence[int | None], runs: int, *, has_median: bool) -> int | None:
    """Return how many more process runs decide all that is inconclusive; None where no number does."""
    if None in needed:
        return None
    more = max((each - runs for each in needed if each is not None), default=0)
    # What so many should have decided lies near its margin: as many again halve the doubt.
    more = max(more, runs if needed and more <= 0 else 0, 0 if has_median else 2)
    return more if more <= MOST_RUNS else None


def _of(figure: TrafficRatio) -> dict[str, Any]:
    return {"figure": figure.figure, "ratio": figure.ratio, "margin": figure.margin}
