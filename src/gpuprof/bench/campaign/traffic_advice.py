# SPDX-License-Identifier: Apache-2.0
"""Whether a variant that gets a part of the requests should get all, some or none: by intervals alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

from gpuprof.bench.comparison import Judgement
from gpuprof.bench.gate_table import interval_text
from gpuprof.bench.statistics import exact_share

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
