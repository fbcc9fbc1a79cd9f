# SPDX-License-Identifier: Apache-2.0
"""Throughput over concurrency: the saturation point, and the universal scalability law within its data.

The law is X(N) = g N / (1 + a (N - 1) + b N (N - 1)), with contention a and coherency b (Gunther, Guerrilla
Capacity Planning, 2007, chapter 4). Fitted to concurrencies up to 8 of a system whose throughput peaks at
44, it gives peaks from 17 to infinity. So nothing is stated beyond twice the largest measured concurrency.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.bench.measure.scaling import FEWEST_SIZES, saturation_point
from gpuprof.errors import BenchmarkError
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.stats.distributions import scipy_module

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

EXTRAPOLATION = 2.0
LITTLE_TOLERANCE = 0.1
_FEWEST_LEVELS = 4  # one more than the parameters of the law
_RESAMPLES = 200
_TAIL = 2.5  # percent


@dataclass(frozen=True, slots=True)
class ConcurrencyRun:
    """One closed-loop run: requests in flight, successful requests per second, and their mean latency."""

    concurrency: int
    throughput: float
    mean_latency_s: float

    @property
    def little_ratio(self) -> float:
        """Requests in flight by Little's law, N = X R, over the concurrency: 1 in a run without errors."""
        return self.throughput * self.mean_latency_s / self.concurrency

    @property
    def is_consistent(self) -> bool:
        """Whether Little's law holds within 10%."""
        return abs(self.little_ratio - 1) <= LITTLE_TOLERANCE


@dataclass(frozen=True, slots=True)
class ScalabilityLaw:
    """The fitted law; `most` is the largest concurrency of its data.

    `peak` is the concurrency of the highest throughput, with its 95% interval over resampled residuals; its
    value or an end is None where it is beyond twice `most`.
    """

    gain: float
    contention: float
    coherency: float
    most: int
    peak_low: float | None
    peak: float | None
    peak_high: float | None

    def throughput(self, concurrency: float) -> float | LoadReason:
        """Return the throughput at a concurrency, or the reason why the data do not show it."""
        if concurrency > EXTRAPOLATION * self.most:
            return reason("far_extrapolation", asked=concurrency, most=float(self.most))
        return float(_law(np.array([concurrency]), self.gain, self.contention, self.coherency)[0])


@dataclass(frozen=True, slots=True)
class ConcurrencySweep:
    """Runs by concurrency, the saturation point (90% of the best throughput), and the law.

    The saturation point is None where throughput still grows, and of fewer than three concurrencies. The law
    is None with too few of them.
    """

    runs: tuple[ConcurrencyRun, ...]
    saturation: int | None
    law: ScalabilityLaw | None

    @property
    def has_growth(self) -> bool:
        """Whether throughput still grows at the largest concurrency."""
        levels = {each.concurrency for each in self.runs}
        return self.saturation is None and len(levels) >= FEWEST_SIZES

    @property
    def inconsistent(self) -> tuple[ConcurrencyRun, ...]:
        """Runs that contradict Little's law: lost requests, or a generator that was late."""
        return tuple(each for each in self.runs if not each.is_consistent)


def sweep_of(runs: Sequence[ConcurrencyRun], *, with_law: bool = True) -> ConcurrencySweep:
    """Return the sweep of measured runs; a concurrency may have several. Raises BenchmarkError.

    Without `with_law`, the law is not fitted.
    """
    if not runs or any(each.concurrency < 1 or not 0 < each.throughput < math.inf for each in runs):
        raise BenchmarkError(
            "invalid_sweep",
            "a sweep needs runs with a concurrency from 1 and completed requests",
            hint="measure again with --concurrency 1,2,4,8",
        )
    ordered = tuple(sorted(runs, key=lambda each: each.concurrency))
    levels = sorted({each.concurrency for each in ordered})
    means = {
        level: float(np.mean([each.throughput for each in ordered if each.concurrency == level]))
        for level in levels
    }
    law = fit_law(ordered) if with_law and len(levels) >= _FEWEST_LEVELS else None
    return ConcurrencySweep(ordered, saturation_point(means), law)


def fit_law(runs: Sequence[ConcurrencyRun], *, seed: int = 0) -> ScalabilityLaw | None:
    """Fit the law by least squares of the logarithms; None where the fit does not converge."""
    levels = np.array([each.concurrency for each in runs], dtype=np.float64)
    logs = np.log([each.throughput for each in runs])
    found = _fit(levels, logs)
    if found is None:
        return None
    most = int(levels.max())
    fitted = np.log(_law(levels, *found))
    # Residuals shrink by the three parameters.
    residuals = (logs - fitted) * math.sqrt(len(runs) / max(len(runs) - 3, 1))
    generator = np.random.default_rng(seed)
    peaks = []
    for _ in range(_RESAMPLES):
        again = _fit(levels, fitted + generator.choice(residuals, len(residuals)))
        if again is not None:
            peaks.append(_peak(*again[1:]))
    low, high = np.percentile(peaks, (_TAIL, 100 - _TAIL), method="nearest") if peaks else (0.0, math.inf)
    known = (_within(each, most) for each in (float(low), _peak(*found[1:]), float(high)))
    return ScalabilityLaw(*found, most, *known)


def _law(levels: Floats, gain: float, contention: float, coherency: float) -> Floats:
    found: Floats = gain * levels / (1 + contention * (levels - 1) + coherency * levels * (levels - 1))
    return found


def _log_law(levels: Floats, gain: float, contention: float, coherency: float) -> Floats:
    return np.log(_law(levels, gain, contention, coherency))


def _fit(levels: Floats, logs: Floats) -> tuple[float, float, float] | None:
    first = math.exp(float(logs[0])) / float(levels[0])
    optimize = scipy_module("optimize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optimize.OptimizeWarning)
        try:
            found, _ = optimize.curve_fit(
                _log_law, levels, logs, p0=(first, 0.05, 0.001), bounds=([1e-12, 0, 0], [np.inf, 1, 1])
            )
        except RuntimeError:  # no convergence
            return None
    return float(found[0]), float(found[1]), float(found[2])


def _peak(contention: float, coherency: float) -> float:
    # No concurrency is below 1: there is the peak of a throughput that only falls.
    return max(math.sqrt((1 - contention) / coherency), 1.0) if coherency > 0 else math.inf


def _within(peak: float, most: int) -> float | None:
    return peak if peak <= EXTRAPOLATION * most else None
