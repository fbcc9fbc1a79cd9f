# SPDX-License-Identifier: Apache-2.0
"""Medians, quartiles, and confidence intervals of ratios."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

RESAMPLES = 2000
CONFIDENCE = 0.95


def describe(values: Sequence[float]) -> dict[str, Any]:
    """Return median, quartiles and number of at least one value."""
    if len(values) == 1:
        first = median = third = values[0]
    else:
        first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "first_quartile": first, "third_quartile": third, "repeats": len(values)}


def paired_ratio(own: Sequence[float], base: Sequence[float], *, seed: int = 0) -> dict[str, Any]:
    """Return the ratio of medians with its bootstrap interval; the n-th values of both are of one round.

    Rounds are drawn, not values, since both values of a round met the same state of the machine. With one
    round there is no interval.
    """
    if len(own) != len(base) or not own:
        raise ValueError(f"ratios need as many values as bases, and at least one: {len(own)} and {len(base)}")
    ratio = statistics.median(own) / statistics.median(base)
    result: dict[str, Any] = {"ratio": ratio, "low": None, "high": None, "rounds": len(own)}
    if len(own) > 1:
        result["low"], result["high"] = _interval(own, base, random.Random(seed))
        result["confidence"] = CONFIDENCE
    return result


def _interval(own: Sequence[float], base: Sequence[float], source: random.Random) -> tuple[float, float]:
    places = range(len(own))
    ratios = []
    for _ in range(RESAMPLES):
        drawn = source.choices(places, k=len(own))
        ratios.append(statistics.median(own[i] for i in drawn) / statistics.median(base[i] for i in drawn))
    ratios.sort()
    outside = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return ratios[outside], ratios[-outside - 1]
