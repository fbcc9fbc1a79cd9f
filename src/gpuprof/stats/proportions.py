# SPDX-License-Identifier: Apache-2.0
"""Statistics of correct and wrong predictions of two variants on the same samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from gpuprof.stats.distributions import scipy_module
from gpuprof.stats.quantiles import CONFIDENCE

ChangeVerdict = Literal["lower", "higher", "same", "inconclusive"]


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Samples that both predict correctly, only the baseline, only the optimized variant, or neither."""

    both: int
    baseline_only: int
    optimized_only: int
    neither: int

    @property
    def count(self) -> int:
        """All samples."""
        return self.both + self.baseline_only + self.optimized_only + self.neither

    @property
    def baseline(self) -> float:
        """Accuracy of the baseline."""
        return (self.both + self.baseline_only) / self.count

    @property
    def optimized(self) -> float:
        """Accuracy of the optimized variant."""
        return (self.both + self.optimized_only) / self.count


@dataclass(frozen=True, slots=True)
class Change:
    """Accuracy of the optimized variant minus that of the baseline, with its 95% interval.

    *same*: the whole interval is within the margin; *lower*, *higher*: it is on one side of 0 (and not
    within the margin); otherwise *inconclusive*. `p_value` is McNemar's.
    """

    low: float
    value: float
    high: float
    p_value: float
    margin: float
    verdict: ChangeVerdict

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        names = ("low", "value", "high", "p_value", "margin", "verdict")
        return {name: _finite(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.value:+.2%} ({self.low:+.2%} to {self.high:+.2%}, p={self.p_value:.2g})"
        )


def _finite(value: Any) -> Any:
    # JSON has no NaN and no infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def change_of(counts: PairedCounts, margin: float, confidence: float = CONFIDENCE) -> Change:
    """Return the change of accuracy with its verdict."""
    low, high = paired_difference(counts, confidence)
    verdict: ChangeVerdict = "inconclusive"
    if -margin < low and high < margin:
        verdict = "same"
    elif high < 0:
        verdict = "lower"
    elif low > 0:
        verdict = "higher"
    value = counts.optimized - counts.baseline
    return Change(low, value, high, mcnemar(counts.baseline_only, counts.optimized_only), margin, verdict)


def mcnemar(baseline_only: int, optimized_only: int) -> float:
    """Return the exact two-sided p-value of McNemar's test (Psychometrika 12, 1947).

    If the variants are equally accurate, each sample that only one of them predicts correctly belongs to
    either with probability 1/2.
    """
    count, fewer = baseline_only + optimized_only, min(baseline_only, optimized_only)
    return min(2 * float(scipy_module("special").bdtr(fewer, count, 0.5)), 1.0) if count else 1.0


def wilson(right: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the score interval of a proportion (Wilson, JASA 22, 1927)."""
    squared = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    middle = (right + squared / 2) / (count + squared)
    half = math.sqrt(squared * (right * (count - right) / count + squared / 4)) / (count + squared)
    # At an end the interval reaches 0 or 1 exactly, which rounding may miss.
    return (middle - half if right else 0.0), (middle + half if right < count else 1.0)


def exact_share(count: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact interval of a proportion (Clopper and Pearson, 1934)."""
    special, tail = scipy_module("special"), (1 - confidence) / 2
    low = special.betaincinv(count, total - count + 1, tail) if count else 0.0
    high = special.betaincinv(count + 1, total - count, 1 - tail) if count < total else 1.0
    return float(low), float(high)


def paired_difference(counts: PairedCounts, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the difference of two proportions of the same samples, optimized minus baseline.

    Newcombe (Statistics in Medicine 17, 1998, 2635-2650), method 10: the distances of both proportions
    from the ends of their Wilson intervals, combined as correlated errors. The correlation is that of the
    fourfold table, with his correction for continuity.
    """
    total = counts.count
    optimized, baseline = counts.optimized, counts.baseline
    low_o, high_o = wilson(counts.both + counts.optimized_only, total, confidence)
    low_b, high_b = wilson(counts.both + counts.baseline_only, total, confidence)
    correlation = _corrected_correlation(counts)

    def together(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    difference = optimized - baseline
    low = difference - together(optimized - low_o, high_b - baseline)
    high = difference + together(high_o - optimized, baseline - low_b)
    return max(low, -1.0), min(high, 1.0)


def _corrected_correlation(counts: PairedCounts) -> float:
    both, one, other, neither = counts.both, counts.baseline_only, counts.optimized_only, counts.neither
    margins = (both + one) * (other + neither) * (both + other) * (one + neither)
    if margins == 0:
        return 0.0
    excess: float = both * neither - one * other
    if excess > 0:
        excess = max(excess - counts.count / 2, 0.0)
    return excess / math.sqrt(margins)
