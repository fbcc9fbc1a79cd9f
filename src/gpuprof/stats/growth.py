# SPDX-License-Identifier: Apache-2.0
"""Growth of a series with its interval, from differences between consecutive blocks.

If a series only fluctuates, consecutive differences are negatively correlated, so the interval is too wide
and no growth is invented; if it moves at random, they are independent, and the interval is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.stats.distributions import student_quantile

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

# Growth that ends falls below this part of what it was before.
_FLATTENS = 0.75


@dataclass(frozen=True, slots=True)
class Growth:
    """The mean growth of levels per position, its Student interval, and the growth between blocks."""

    rates: tuple[float, ...]
    low: float
    value: float
    high: float

    def flattens(self, margin: float) -> bool:
        """Whether it was beyond the margin and has become less since."""
        early, late = sum(self.rates[:2]), sum(self.rates[-2:])
        return early > 2 * margin and late < _FLATTENS * early


def block_growth(positions: Floats, levels: Floats, *, blocks: int, confidence: float) -> Growth:
    """Return the growth of levels; needs as many readings as blocks, and three blocks."""
    readings = np.column_stack([positions, levels])
    means = np.array([part.mean(axis=0) for part in np.array_split(readings, blocks)])
    steps = np.diff(means, axis=0)
    # Without progress there is no growth.
    rates = np.divide(steps[:, 1], steps[:, 0], out=np.zeros(len(steps)), where=steps[:, 0] > 0)
    half = float(student_quantile(1 - confidence, len(rates) - 1)) * float(rates.std(ddof=1))
    value, half = float(rates.mean()), half / math.sqrt(len(rates))
    return Growth(tuple(rates.tolist()), value - half, value, value + half)
