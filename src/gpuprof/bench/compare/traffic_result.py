# SPDX-License-Identifier: Apache-2.0
"""Results of requests that two variants share: figures with intervals, failures, advice, text.

The process run is the unit: in each one the ratio of both variants' medians (p95, p99) is one paired figure,
whose logarithms get Student's interval over the process runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from gpuprof.stats.proportions import exact_share
from gpuprof.stats.quantiles import CONFIDENCE, Estimate, PooledSamples, samples_needed
from gpuprof.stats.ratio_test import Judgement, LogRatio, judge_ratios

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TAIL_MARGIN = 0.05
ERROR_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class ArmRequests:
    """The requests of one variant in one launch: nanoseconds of those that were answered.

    The last `compared` of them are held against the other variant's; None for all.
    """

    wall_ns: list[int] = field(default_factory=list)
    compared: int | None = None
    failed: int = 0
    first_failure: str | None = None

    @property
    def seconds(self) -> Floats:
        """The times of answers."""
        return np.array(self.wall_ns, dtype=np.float64) / 1e9

    @property
    def compared_seconds(self) -> Floats:
        """The times of those that are held against the other variant's."""
        first = 0 if self.compared is None else len(self.wall_ns) - self.compared
        return self.seconds[first:]

    @property
    def count(self) -> int:
        """All requests."""
        return len(self.wall_ns) + self.failed


@dataclass(frozen=True, slots=True)
class TrafficLaunch:
    """One process in which both variants served."""

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
    """The requests of all process runs; `settings` are those of TrafficSettings."""

    names: tuple[str, str]
    split: tuple[float, float]
    launches: tuple[TrafficLaunch, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    interrupted: bool = False

    @cached_property
    def figures(self) -> tuple[TrafficRatio, ...]:
        """The ratios second over first, judged together; without a ratio where process runs are too few."""
        logs = {name: self._logs(quantile) for name, quantile in QUANTILES.items()}
        ratios = {name: _paired(each) for name, each in logs.items()}
        judged = judge_ratios(ratios, {name: self._margin(name) for name in QUANTILES})
        return tuple(_ratio(name, each, judged[name]) for name, each in logs.items())

    @cached_property
    def failed(self) -> FailureCounts:
        """The requests that failed, of how many, for both variants."""
        counts = [(sum(each.failed for each in arm), sum(each.count for each in arm)) for arm in self._arms]
        return FailureCounts(counts[0], counts[1])

    @cached_property
    def advice(self) -> TrafficAdvice:
        """Which variant to serve with, and why."""
        margin = self.settings.get("error_margin", ERROR_MARGIN)
        return _Advice(
            self.names, self.split[1], self.figures, self.failed, margin, len(self.launches)
        ).find()

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

    def estimate(self, arm: int, quantile: float) -> Estimate | None:
        """Return a quantile of one variant's times in seconds; None where there are too few samples."""
        return PooledSamples([each.seconds for each in self._arms[arm]]).quantile(quantile)

    def to_document(self) -> TrafficFigures:
        """Return what a comparison's document has of it."""
        difference = self.failed.difference
        return TrafficFigures(
            variants=self.names,
            split=self.split,
            launches=len(self.launches),
            settings=dict(self.settings),
            confidence=CONFIDENCE,
            arms=(self._arm(0), self._arm(1)),
            failure_difference=None if difference is None else Estimate(*difference),
            figures=self.figures,
            launch_ratios=tuple(
                {"launch": each.number, **{name: _exp(each.log_ratio(q)) for name, q in QUANTILES.items()}}
                for each in self.launches
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

    @property
    def _arms(self) -> tuple[list[ArmRequests], list[ArmRequests]]:
        return [each.arms[0] for each in self.launches], [each.arms[1] for each in self.launches]

    def _logs(self, quantile: float) -> list[float]:
        return [found for each in self.launches if (found := each.log_ratio(quantile)) is not None]

    def _margin(self, name: str) -> float:
        key, default = ("margin", 0.01) if name == "p50" else ("tail_margin", TAIL_MARGIN)
        return float(self.settings.get(key, default))

    def _arm(self, number: int) -> TrafficArm:
        failed, count = self.failed.arms[number]
        firsts = (each.first_failure for each in self._arms[number] if each.first_failure)
        low, high = exact_share(failed, count) if count else (None, None)
        return TrafficArm(
            variant=self.names[number],
            share=self.split[number],
            requests=count,
            failed=failed,
            failed_share=Estimate(low, failed / count, high) if count else None,
            first_failure=next(firsts, None),
            **{f"{name}_s": self.estimate(number, quantile) for name, quantile in QUANTILES.items()},
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

MOST_RUNS = 1_000
_LEVEL, _POWER = 0.05, 0.8


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """Requests that failed and all of them, of both variants, and the interval of the difference.

    Newcombe (Statistics in Medicine 17, 1998, 873-890), method 10, with exact intervals of both fractions.
    Requests count as independent; where those of one process run fail together, the interval is too narrow.
    """

    first: tuple[int, int]
    second: tuple[int, int]

    @property
    def arms(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both variants' counts."""
        return self.first, self.second

    @property
    def difference(self) -> tuple[float, float, float] | None:
        """The second's fraction less the first's with its interval; None where one had no request."""
        if not (self.first[1] and self.second[1]):
            return None
        a, b = (count / total for count, total in self.arms)
        (low_a, high_a), (low_b, high_b) = exact_share(*self.first), exact_share(*self.second)
        return b - a - math.hypot(b - low_b, high_a - a), b - a, b - a + math.hypot(high_b - b, a - low_a)

    def runs_needed(self, margin: float, runs: int) -> int | None:
        """Return the process runs that rule out a difference beyond the margin; None where none do."""
        found = self.difference
        if found is None or found[1] >= margin:
            return None
        if not self.second[0]:
            # Without a failure the upper end is 1 - 0.025^(1 / n).
            wanted = math.log(_LEVEL / 2) / math.log1p(-margin)
            return math.ceil(wanted / (self.second[1] / runs))
        return math.ceil(runs * ((found[2] - found[1]) / (margin - found[1])) ** 2)


def runs_needed(figure: TrafficRatio) -> int | None:
    """Return the process runs that rule out a slow-down if there is none; None where nothing is known."""
    if figure.variation_between_launches is None or figure.margin <= 0:
        return None
    z = NormalDist().inv_cdf(1 - _LEVEL / 2) + NormalDist().inv_cdf(_POWER)
    return math.ceil((z * figure.variation_between_launches / math.log1p(figure.margin)) ** 2 + 1)


@dataclass(frozen=True, slots=True)
class _Advice:
    """What follows from the intervals.

    Roll back where the second variant fails more often, or any figure is slower. Roll out where the intervals
    rule out, by the margins, that it is slower or fails more often. Else continue measuring.
    """

    names: tuple[str, str]
    share: float
    figures: tuple[TrafficRatio, ...]
    failed: FailureCounts
    error_margin: float
    runs: int

    def find(self) -> TrafficAdvice:
        against = tuple(self._against())
        if against:
            return TrafficAdvice(RolloutAction.ROLL_BACK, note("roll_back", first=self.names[0]), against)
        reasons = tuple(self._open())
        if not reasons:
            same = note("traffic_same", variant=self.names[1], figures=self._judged)
            return TrafficAdvice(RolloutAction.ROLL_OUT, note("roll_out", second=self.names[1]), (same,))
        more, values = self._more(), {"second": self.names[1], "share": self.share}
        if more is None or more > MOST_RUNS:
            return TrafficAdvice(RolloutAction.KEEP, note("keep_split_inconclusive", **values), reasons)
        return TrafficAdvice(RolloutAction.KEEP, note("keep_split", more_runs=more, **values), reasons, more)

    @property
    def _judged(self) -> list[TrafficRatio]:
        return [each for each in self.figures if each.ratio is not None and each.launches > 1]

    @property
    def _inconclusive(self) -> list[TrafficRatio]:
        return [each for each in self._judged if each.may_be_slower]

    @property
    def _has_median(self) -> bool:
        return any(each.figure == "p50" for each in self._judged)

    @property
    def _may_fail(self) -> bool:
        difference = self.failed.difference
        return difference is None or difference[2] > self.error_margin

    def _against(self) -> Iterator[Diagnostic]:
        difference = self.failed.difference
        if difference is not None and difference[0] > 0:
            (first_failed, first_requests), (failed, requests) = self.failed.arms
            yield note(
                "fails_more_often",
                first=self.names[0],
                second=self.names[1],
                failed=failed,
                requests=requests,
                first_failed=first_failed,
                first_requests=first_requests,
                low=difference[0],
                high=difference[2],
            )
        for each in self.figures:
            if each.verdict == SpeedVerdict.SLOWER:
                yield note("traffic_slower", variant=self.names[1], **_of(each))

    def _open(self) -> Iterator[Diagnostic]:
        for each in self._inconclusive:
            yield note("traffic_inconclusive", **_of(each))
        if not self._has_median:
            yield note("needs_medians")
        if self._may_fail:
            yield note("may_fail_more_often", second=self.names[1], margin=self.error_margin)

    def _more(self) -> int | None:
        """Return how many more process runs decide all that is inconclusive; None where no number does."""
        needed = [runs_needed(each) for each in self._inconclusive]
        if self._may_fail:
            needed.append(self.failed.runs_needed(self.error_margin, self.runs))
        if any(each is None for each in needed):
            return None
        more = max((each - self.runs for each in needed if each is not None), default=0)
        # What so many should have decided lies near its margin: as many again halve the doubt.
        return max(more, self.runs if needed and more <= 0 else 0, 0 if self._has_median else 2)


def _of(figure: TrafficRatio) -> dict[str, Any]:
    return {"figure": figure.figure, "ratio": figure.ratio, "margin": figure.margin}
