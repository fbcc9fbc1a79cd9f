# SPDX-License-Identifier: Apache-2.0
"""Statistical validation of measured latencies: Welch's t-test, Cohen's d, outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import BenchmarkError
from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.quantiles import summarize
from gpuprof.stats.significance import plain_means, welch

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

_LARGE, _MEDIUM = 0.8, 0.5  # Cohen, Statistical Power Analysis, 2nd ed. (1988), 2.2
_MOST_OUTLIERS = 0.1
_FENCE = 1.5  # Tukey, Exploratory Data Analysis (1977), 2C


@dataclass(frozen=True, slots=True)
class StatisticalValidation:
    """What a validation found.

    `p_value` is None of one result. `effect_size` is Cohen's d of the difference a - b, or the standard
    deviation over the mean of one result; None where it cannot be computed. `confidence_interval` is that of
    the difference of the means a - b, or of the mean, in the unit of the latencies.
    """

    is_significant: bool
    p_value: float | None
    effect_size: float | None
    confidence_interval: tuple[float | None, float | None]
    recommendation: str


class StatisticalValidator:
    """Validates latencies at a confidence level.

    A result is a sequence of latencies, or an object with `latencies`. Latencies of one process share its
    memory layout and clock: to compare two builds, give one figure of each process run.
    """

    def __init__(self, confidence_level: float = 0.95) -> None:
        if not 0 < confidence_level < 1:
            raise BenchmarkError(
                "invalid_confidence",
                f"confidence_level={confidence_level!r} is not between 0 and 1",
                hint="use a fraction such as 0.95",
            )
        self.confidence_level = confidence_level

    def validate_comparison(self, results_a: Any, results_b: Any) -> StatisticalValidation:
        """Compare the means of two results by Welch's t-test. Raises BenchmarkError."""
        a, b = latencies_of(results_a), latencies_of(results_b)
        if min(len(a), len(b)) < 2:
            few = f"too few samples (n={len(a)} and {len(b)}, needs 2 each)"
            return StatisticalValidation(False, None, None, (None, None), few)
        found = welch(plain_means(a[None]), plain_means(b[None]))
        p_value, difference = float(found.p_value[0]), float(found.difference[0])
        half = float(found.half_width(1 - self.confidence_level)[0])
        effect = cohens_d(a, b)
        is_significant = p_value < 1 - self.confidence_level
        interval = (difference - half, difference + half)
        advice = _comparison_text(effect, difference, is_significant=is_significant)
        return StatisticalValidation(is_significant, p_value, effect, interval, advice)

    def validate_benchmark_result(self, result: Any, min_samples: int = 100) -> StatisticalValidation:
        """Report whether one result has enough samples, and whether many are outliers.

        `is_significant` is whether there are `min_samples`. Raises BenchmarkError for what is no latency.
        """
        values = latencies_of(result)
        figures = summarize(values)
        interval: tuple[float | None, float | None] = (None, None)
        effect = None
        if figures is not None and figures.std is not None:
            error = figures.std / math.sqrt(figures.count)
            half = float(student_quantile(1 - self.confidence_level, figures.count - 1)) * error
            interval = (figures.mean - half, figures.mean + half)
            effect = figures.std / figures.mean if figures.mean > 0 else None
        is_enough = len(values) >= min_samples
        advice = f"too few samples (n={len(values)}, needs {min_samples})"
        if is_enough:
            advice = _outlier_text(outlier_fraction(values))
        return StatisticalValidation(is_enough, None, effect, interval, advice)


def latencies_of(result: Any) -> Floats:
    """Return the latencies of a result, as an array. Raises BenchmarkError for what is none."""
    given = getattr(result, "latencies", result)
    try:
        values = np.asarray(given, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise BenchmarkError(
            "invalid_latencies",
            f"{type(result).__name__} holds no latencies",
            hint="give a sequence of numbers, or an object with latencies",
        ) from error
    if not np.isfinite(values).all():
        raise BenchmarkError("invalid_latencies", "a latency is NaN or infinite", hint="leave it out")
    return values


def cohens_d(a: Sequence[float] | Floats, b: Sequence[float] | Floats) -> float | None:
    """Return the difference of the means a - b in pooled standard deviations; None without a deviation."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    squares = first.var(ddof=1) * (len(first) - 1) + second.var(ddof=1) * (len(second) - 1)
    pooled = math.sqrt(squares / (len(first) + len(second) - 2))
    return float((first.mean() - second.mean()) / pooled) if pooled > 0 else None


def outlier_fraction(values: Floats) -> float:
    """Return which fraction is more than 1.5 interquartile ranges above the third quartile."""
    first, third = np.quantile(values, (0.25, 0.75))
    return float((values > third + _FENCE * (third - first)).mean())


def _comparison_text(effect: float | None, difference: float, *, is_significant: bool) -> str:
    if not is_significant:
        return "insufficient evidence of a difference: collect more samples"
    size = math.inf if effect is None else abs(effect)
    words = (
        ("large", "strong") if size > _LARGE else ("medium", "good") if size > _MEDIUM else ("small", "weak")
    )
    return f"{words[0]} difference, {words[1]} evidence: {'b' if difference > 0 else 'a'} has lower latency"


def _outlier_text(outliers: float) -> str:
    if outliers > _MOST_OUTLIERS:
        return f"{outliers:.0%} of the samples are outliers: measure again on an idle machine"
    return "enough samples, few outliers"
