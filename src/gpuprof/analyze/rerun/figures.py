# SPDX-License-Identifier: Apache-2.0
"""Intervals of paired measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.findings.finding import TimeRange
from gpuprof.stats.quantiles import quantile_so_far

if TYPE_CHECKING:
    from gpuprof.analyze.rerun.experiment import Pairs
    from gpuprof.stats.arrays import Floats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Medians, and 95% intervals of medians: of the difference, of the ratio after / before, and of after."""

    before_ns: float
    after_ns: float
    difference: TimeRange
    ratio: tuple[float, float]
    after: TimeRange


def figures_of(pairs: Pairs) -> PairFigures | None:
    """Return the figures, None with fewer than six pairs."""
    if not pairs.times_ns:
        return None
    before, after = np.array(pairs.times_ns, dtype=np.float64).T
    ends = [_interval(each) for each in (before - after, after / before, after)]
    difference, ratio, alone = ends
    if difference is None or ratio is None or alone is None:
        return None
    return PairFigures(
        float(np.median(before)), float(np.median(after)), TimeRange(*difference), ratio, TimeRange(*alone)
    )


def _interval(values: Floats) -> tuple[float, float] | None:
    found = quantile_so_far(values, 0.5, CONFIDENCE)
    return None if found is None or found.low is None or found.high is None else (found.low, found.high)
