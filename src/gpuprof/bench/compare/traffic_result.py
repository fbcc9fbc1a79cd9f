# SPDX-License-Identifier: Apache-2.0
"""Results of requests that two variants share: figures with intervals, failures, advice, text.

The process run is the unit: in each one the ratio of both variants' medians (p95, p99) is one paired figure,
whose logarithms get Student's interval over the process runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.analyze.text_table import Column, format_count, text_table, wrapped
from gpuprof.bench.gate.gate import interval_text, time_text
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ArmRequests:
        """Return what `to_dict()` described."""
        return cls(**values)


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
class Traffic:
    """The launches of a traffic split and what follows. `str()` is for people, `to_dict()` for a document."""

    names: tuple[str, str]
    split: tuple[float, float]
    launches: tuple[TrafficLaunch, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    interrupted: bool = False

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The ratios second over first, judged together; those that too few launches tell have none."""
        logs = {name: self._logs(share) for name, share in QUANTILES.items()}
        ratios = {name: _paired(each) for name, each in logs.items()}
        margins = {name: self._margin(name) for name in QUANTILES}
        judged = judge_ratios(ratios, margins)
        return tuple(
            Figure(
                name=name,
                ratio=math.exp(float(np.mean(each))) if each else None,
                launches=len(each),
                variation=float(np.std(each, ddof=1)) if len(each) > 1 else None,
                judgement=judged[name],
            )
            for name, each in logs.items()
        )

    @cached_property
    def failed(self) -> Failures:
        """The requests that failed, of how many, for both variants."""
        counts = [(sum(each.failed for each in arm), sum(each.count for each in arm)) for arm in self._arms]
        return Failures(counts[0], counts[1])

    @cached_property
    def advice(self) -> Advice:
        """Whom to serve with, and why."""
        return advise(
            self.names,
            self.split,
            self.figures,
            self.failed,
            error_margin=self.settings.get("error_margin", ERROR_MARGIN),
            launches=len(self.launches),
        )

    def estimate(self, arm: int, quantile: float) -> Estimate | None:
        """Return a quantile of one variant's times in seconds; None where the samples do not suffice."""
        return PooledSamples([each.seconds for each in self._arms[arm]]).quantile(quantile)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: what a comparison's document holds under `traffic`."""
        return {
            "variants": list(self.names),
            "split": list(self.split),
            "launches": len(self.launches),
            "settings": dict(self.settings),
            "confidence": CONFIDENCE,
            "arms": [self._arm_dict(number) for number in (0, 1)],
            "failure_difference": self.failed.to_dict(),
            "figures": [each.to_dict() for each in self.figures],
            "launch_ratios": [
                {"launch": each.number, **{name: _exp(each.log_ratio(q)) for name, q in QUANTILES.items()}}
                for each in self.launches
            ],
            "advice": self.advice.to_dict(),
            "failures": list(self.failures),
            "interrupted": self.interrupted,
            "notes": self.notes,
        }

    @property
    def notes(self) -> list[str]:
        """What is to be known about the figures."""
        notes = []
        if self.failures:
            notes.append(f"failed launches: {len(self.failures)}, first: {self.failures[0]}")
        if self.interrupted:
            notes.append("interrupted: these are the launches until then")
        insufficient = [each.name for each in self.figures if each.launches < 2]
        if insufficient:
            needs = ", ".join(f"{name} {samples_needed(QUANTILES[name])}" for name in insufficient)
            notes.append(
                f"insufficient for {', '.join(insufficient)}: needed are 2 launches with so many answers of "
                f"each variant: {needs}"
            )
        return notes

    def __str__(self) -> str:

        return traffic_text(self)

    @property
    def _arms(self) -> tuple[list[ArmRequests], list[ArmRequests]]:
        return [each.arms[0] for each in self.launches], [each.arms[1] for each in self.launches]

    def _logs(self, quantile: float) -> list[float]:
        return [found for each in self.launches if (found := each.log_ratio(quantile)) is not None]

    def _margin(self, name: str) -> float:
        key, usual = ("margin", 0.01) if name == "p50" else ("tail_margin", TAIL_MARGIN)
        return float(self.settings.get(key, usual))

    def _arm_dict(self, number: int) -> dict[str, Any]:
        failed, count = self.failed.arms[number]
        low, high = exact_share(failed, count) if count else (None, None)
        firsts = (each.first_failure for each in self._arms[number] if each.first_failure)
        return {
            "variant": self.names[number],
            "share": self.split[number],
            "requests": count,
            "failed": failed,
            "failed_share": None if not count else {"low": low, "value": failed / count, "high": high},
            "first_failure": next(firsts, None),
            **{f"{name}_s": _plain(self.estimate(number, q)) for name, q in QUANTILES.items()},
        }


def _paired(logs: Sequence[float]) -> LogRatio | None:
    if len(logs) < 2:
        return None
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return LogRatio.of(float(np.mean(logs)), error, len(logs) - 1)


def _plain(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {"low": estimate.low, "value": estimate.value, "high": estimate.high}


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def traffic_text(traffic: Traffic) -> str:
    """Return both variants, their ratios, the advice with its reason, and notes; 100 columns at most."""
    first, second = traffic.names
    shares = " to ".join(f"{share:.4g}" for share in (100 * each for each in traffic.split))
    count = sum(total for _, total in traffic.failed.arms)
    launches = len(traffic.launches)
    head = f"traffic {shares} between {first} and {second}: {count:,} requests in {launches} launches"
    advice = traffic.advice
    lines = [
        wrapped(head),
        "",
        _arms_table(traffic),
        "",
        _figures_table(traffic),
        "",
        wrapped(f"advice: {advice.text}"),
        wrapped(f"  because {advice.because}", indent="    "),
        *(wrapped(f"note: {note}") for note in traffic.notes),
    ]
    return "\n".join(lines)


def _arms_table(traffic: Traffic) -> str:
    columns = [
        Column("variant", right=False),
        *map(Column, ("requests", "failed", "95% interval", "p50", "p95", "p99")),
    ]
    rows = []
    for each in traffic.to_dict()["arms"]:
        share = each["failed_share"]
        ends = "-" if share is None else f"{share['low']:.2%} to {share['high']:.2%}"
        times = [
            time_text(found and found["value"]) for found in (each[f"{q}_s"] for q in ("p50", "p95", "p99"))
        ]
        rows.append(
            (each["variant"], format_count(each["requests"]), format_count(each["failed"]), ends, *times)
        )
    return text_table(columns, rows)


def _figures_table(traffic: Traffic) -> str:
    columns = [
        Column("second over first", right=False),
        *map(Column, ("ratio", "its interval", "margin", "launches")),
        Column("verdict", right=False),
    ]
    rows = []
    for each in traffic.figures:
        judged = each.judgement
        ratio = "-" if each.ratio is None else f"{each.ratio:.3f}"
        verdict = judged.verdict if each.ratio is not None else "insufficient"
        ends = interval_text(judged.low, judged.high)
        rows.append((each.name, ratio, ends, f"{judged.margin:.1%}", str(each.launches), verdict))
    return text_table(columns, rows)


Action = Literal["roll out", "keep", "roll back"]
MOST_LAUNCHES = 1_000
_LEVEL, _POWER = 0.05, 0.8


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratio second over first; `variation` is the standard deviation of its logarithm between launches."""

    name: str
    ratio: float | None
    launches: int
    variation: float | None
    judgement: Judgement

    @property
    def may_be_slower(self) -> bool:
        """Whether the interval does not rule out a slow-down that matters."""
        return self.judgement.high is None or self.judgement.high > 1 + self.judgement.margin

    @property
    def launches_needed(self) -> int | None:
        """How many launches rule that out if there is none; None where their spread is not known."""
        if self.variation is None or self.judgement.margin <= 0:
            return None
        z = NormalDist().inv_cdf(1 - _LEVEL / 2) + NormalDist().inv_cdf(_POWER)
        return math.ceil((z * self.variation / math.log1p(self.judgement.margin)) ** 2 + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        judged = asdict(self.judgement)
        ends = {"low": judged.pop("low"), "value": self.ratio, "high": judged.pop("high")}
        known = self.ratio is not None
        return {
            "figure": self.name,
            "ratio": ends if known else None,
            "launches": self.launches,
            "variation_between_launches": self.variation,
            **judged,
            "verdict": judged["verdict"] if known else "insufficient",
        }


@dataclass(frozen=True, slots=True)
class Failures:
    """Requests that failed and all of them, of both variants, and the interval of the shares' difference.

    Newcombe (Statistics in Medicine 17, 1998, 873-890), method 10, with the exact intervals of both shares.
    Requests count as independent; where those of one launch fail together, the interval is too narrow.
    """

    first: tuple[int, int]
    second: tuple[int, int]

    @property
    def arms(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both variants' counts."""
        return self.first, self.second

    @property
    def difference(self) -> tuple[float, float, float] | None:
        """The second's share less the first's with its interval; None where one had no request."""
        if not (self.first[1] and self.second[1]):
            return None
        a, b = (count / total for count, total in self.arms)
        (low_a, high_a), (low_b, high_b) = exact_share(*self.first), exact_share(*self.second)
        return b - a - math.hypot(b - low_b, high_a - a), b - a, b - a + math.hypot(high_b - b, a - low_a)

    def to_dict(self) -> dict[str, float] | None:
        """Return plain data for JSON."""
        found = self.difference
        return None if found is None else dict(zip(("low", "value", "high"), found, strict=True))

    def launches_needed(self, margin: float, launches: int) -> int | None:
        """Return the launches that rule out a difference beyond the margin; None where none do."""
        found = self.difference
        if found is None or found[1] >= margin:
            return None
        if not self.second[0]:
            # Without a failure the upper end is 1 - 0.025^(1 / n).
            wanted = math.log(_LEVEL / 2) / math.log1p(-margin)
            return math.ceil(wanted / (self.second[1] / launches))
        return math.ceil(launches * ((found[2] - found[1]) / (margin - found[1])) ** 2)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and the sentence why. `more_launches` None: not asked for, or no number would do."""

    action: Action
    text: str
    because: str
    more_launches: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def advise(
    names: tuple[str, str],
    split: tuple[float, float],
    figures: Sequence[Figure],
    failed: Failures,
    *,
    error_margin: float,
    launches: int,
) -> Advice:
    """Return what follows from the intervals.

    Roll back where the second variant fails more often, or any figure is slower. Roll out where the intervals
    rule out, by the margins, that it is slower or fails more often. Else go on measuring.
    """
    against = _against(names, figures, failed)
    if against:
        return Advice("roll back", f"roll back: serve with {names[0]} alone", "; ".join(against))
    judged = [each for each in figures if each.ratio is not None and each.launches > 1]
    open_figures = [each for each in judged if each.may_be_slower]
    difference = failed.difference
    may_fail = difference is None or difference[2] > error_margin
    has_median = any(each.name == "p50" for each in judged)
    if has_median and not open_figures and not may_fail:
        told = ", ".join(_interval(each) for each in judged)
        because = f"{names[1]} is not slower by more than the margins ({told}), nor does it fail more often"
        return Advice("roll out", f"roll out to 100%: serve with {names[1]} alone", because)
    reasons = [f"{_interval(each)} reaches above {_edge(each)}" for each in open_figures]
    if not has_median:
        reasons.append("the medians of two launches at least are needed")
    if may_fail:
        reasons.append(f"that {names[1]} fails more often by {error_margin:.1%} is not ruled out")
    more = _more(open_figures, failed if may_fail else None, error_margin, launches, has_median)
    kept = f"keep {names[1]} at {split[1]:.0%}"
    if more is None or more > MOST_LAUNCHES:
        widest = f"{kept}: more launches hardly settle it, take wider margins or a quieter machine"
        return Advice("keep", widest, "; ".join(reasons))
    return Advice("keep", f"{kept} and measure {more} more launches", "; ".join(reasons), more)


def _against(names: tuple[str, str], figures: Sequence[Figure], failed: Failures) -> list[str]:
    found = []
    difference = failed.difference
    if difference is not None and difference[0] > 0:
        (a, of_a), (b, of_b) = failed.arms
        found.append(
            f"{names[1]} fails more often: {b:,} of {of_b:,} requests, {names[0]} {a:,} of {of_a:,} "
            f"(difference {difference[0]:.2%} to {difference[2]:.2%})"
        )
    slower = [each for each in figures if each.judgement.verdict == "slower"]
    return found + [f"{names[1]} is slower: {_interval(each)} lies above {_edge(each)}" for each in slower]


def _interval(figure: Figure) -> str:
    ends = interval_text(figure.judgement.low, figure.judgement.high)
    return f"{figure.name} {figure.ratio:.3f}x ({'no interval' if ends == '-' else ends})"


def _edge(figure: Figure) -> str:
    return f"{1 + figure.judgement.margin:.3f}x"


def _more(
    figures: Sequence[Figure], failed: Failures | None, error_margin: float, launches: int, has_median: bool
) -> int | None:
    """Return how many launches more are enough for all that is open; None where no number is."""
    needed = [each.launches_needed for each in figures]
    if failed is not None:
        needed.append(failed.launches_needed(error_margin, launches))
    if any(each is None for each in needed):
        return None
    more = max((each - launches for each in needed if each is not None), default=0)
    # What so many should have settled lies near its margin: as many again halve the doubt.
    return max(more, launches if needed and more <= 0 else 0, 0 if has_median else 2)
