# SPDX-License-Identifier: Apache-2.0
"""How many launches would settle what is open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuprof.analyze.statistics import student_quantile
from gpuprof.bench.comparison import launches_needed

MOST_LAUNCHES = 1_000


def launches_to_settle(comparison: Mapping[str, Any], margin: float) -> int | None:
    """Return the launches of each side that would tell with a power of 80%; None for more than 1,000.

    A change within the margin is shown to be none where the interval lies inside the margin, so the distance
    to its nearer edge counts, on either side of it.
    """
    variation = variation_of(comparison)
    made = int(max(comparison["old_launches"], comparison["new_launches"]))
    if variation is None:
        return max(10, made + 1)
    change = abs(math.log(comparison["ratio"]))
    distance = abs(change - math.log1p(margin))
    if distance <= 0 or math.isinf(variation):
        return None
    needed = launches_needed(variation, math.expm1(distance))
    needed = max(needed, made + 1)
    return needed if needed <= MOST_LAUNCHES else None


def variation_of(comparison: Mapping[str, Any]) -> float | None:
    """Return the coefficient of variation between launches that the interval of a comparison tells.

    None where there is no interval, infinite for one that begins at zero, as that of two launches may.
    """
    old, new = comparison["old_launches"], comparison["new_launches"]
    if comparison["low"] is None or comparison["high"] is None or min(old, new) < 2:
        return None
    if comparison["low"] <= 0:
        return math.inf
    half = (math.log(comparison["high"]) - math.log(comparison["low"])) / 2
    error = half / float(student_quantile(comparison["level"], np.array([old + new - 2.0]))[0])
    return error / math.sqrt(1 / old + 1 / new)
