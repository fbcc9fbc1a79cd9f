# SPDX-License-Identifier: Apache-2.0
"""A soak test: memory that grows, service that becomes slower, and throttling, each with a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.load.leaks import LeakReport, MemoryLevels, SoakVerdict, leaks_of
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.load.throttling import ThrottleReading, Throttling, throttling_of
from gpuprof.stats.change_points import find_change_points
from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.quantiles import CONFIDENCE

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

DRIFT_MARGIN = 0.0005  # of the service time, a minute
DRIFT_BLOCKS = 16
# After the warm-up. In a shorter test another program that is busy for seconds slows several blocks.
LEAST_DRIFT_S = 60.0
_WARMUP = 0.2  # of the run, dropped
_FEWEST_IN_BLOCK = 5
_STRONGEST_CORRELATION = 0.75
_MOST_BLOCKS = 60


@dataclass(frozen=True, slots=True)
class ServiceDrift:
    """The change of the service time a minute, as a fraction, with its 95% interval.

    `changes_s` are the seconds since the first request at which the level changes at once.
    """

    verdict: SoakVerdict
    low: float | None
    value: float | None
    high: float | None
    changes_s: tuple[float, ...]
    reason: LoadReason


@dataclass(frozen=True, slots=True)
class SoakReport:
    """What a soak test found."""

    leaks: LeakReport
    drift: ServiceDrift
    throttling: tuple[Throttling, ...]


def soak_report(
    memory: Sequence[MemoryLevels],
    throttle: Sequence[ThrottleReading],
    ends_ns: Floats,
    services_s: Floats,
    *,
    is_own_process: bool = True,
) -> SoakReport:
    """Judge a soak test. Requests are in the order of their end; `ends_ns` is of the monotonic clock.

    `is_own_process` is whether the target is in this process, whose memory was read.
    """
    return SoakReport(
        leaks_of(memory, is_own_process=is_own_process),
        drift_of(ends_ns / 1e9, services_s),
        throttling_of(throttle, ends_ns, services_s),
    )


def drift_of(ends_s: Floats, services_s: Floats, margin: float = DRIFT_MARGIN) -> ServiceDrift:
    """Return whether the service becomes slower.

    *Yes* needs an interval above 0, a value beyond the margin, and LEAST_DRIFT_S after the warm-up; *no* an
    interval below the margin.
    The first fifth is dropped as warm-up. The slope is that of the logarithms of the medians of 16 blocks
    over time. Its variance is multiplied by (1 + r) / (1 - r), where r is the correlation of consecutive
    residuals, if positive, as for a first-order autoregressive series.
    """
    kept = int(_WARMUP * len(services_s))
    times, services = ends_s[kept:], services_s[kept:]
    if len(services) < DRIFT_BLOCKS * _FEWEST_IN_BLOCK:
        least = DRIFT_BLOCKS * _FEWEST_IN_BLOCK
        why = reason("short_series", meter="service time", readings=len(services), least=least)
        return ServiceDrift(SoakVerdict.INCONCLUSIVE, None, None, None, (), why)
    minutes = np.array([each.mean() for each in np.array_split(times, DRIFT_BLOCKS)]) / 60
    low, value, high = _slope(minutes, _log_medians(services, DRIFT_BLOCKS))
    seconds, median_s = float(times[-1] - times[0]), float(np.median(services))
    verdict, why = _drift_verdict(low, value, high, margin, seconds=seconds, median_s=median_s)
    return ServiceDrift(verdict, low, value, high, _changes(ends_s, services_s), why)


def _log_medians(services: Floats, blocks: int) -> Floats:
    return np.log([max(float(np.median(each)), 1e-12) for each in np.array_split(services, blocks)])


def _slope(places: Floats, values: Floats) -> tuple[float, float, float]:
    """Return the least-squares slope with its interval, for residuals that are correlated."""
    count = len(values)
    centered = places - places.mean()
    squares = float((centered**2).sum())
    if squares <= 0:
        return -math.inf, 0.0, math.inf
    slope = float((centered * values).sum()) / squares
    residuals = values - values.mean() - slope * centered
    energy = float((residuals**2).sum())
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / energy if energy > 0 else 0.0
    # Two fitted parameters make it too low by about 2 / n (Kendall, Biometrika 41, 1954).
    correlation = min(max((correlation + 2 / count) / (1 - 4 / count), 0.0), _STRONGEST_CORRELATION)
    variance = energy / (count - 2) / squares * (1 + correlation) / (1 - correlation)
    half = float(student_quantile(1 - CONFIDENCE, count - 2)) * math.sqrt(variance)
    return slope - half, slope, slope + half


def _drift_verdict(
    low: float, value: float, high: float, margin: float, **measured: float
) -> tuple[SoakVerdict, LoadReason]:
    values = {"low": low, "high": high, "margin": margin, **measured}
    if low > 0 and value > margin:
        if measured["seconds"] < LEAST_DRIFT_S:
            why = reason("slower_in_short_test", least_s=LEAST_DRIFT_S, **values)
            return SoakVerdict.INCONCLUSIVE, why
        return SoakVerdict.YES, reason("slower_over_time", **values)
    if high < -margin:
        return SoakVerdict.NO, reason("faster_over_time", **values)
    if high < margin:
        return SoakVerdict.NO, reason("steady", **values)
    return SoakVerdict.INCONCLUSIVE, reason("drift_open", **values)


def _changes(ends_s: Floats, services_s: Floats) -> tuple[float, ...]:
    """Return when the level of the service time changes at once, to within a sixtieth of the run."""
    blocks = min(_MOST_BLOCKS, len(services_s) // _FEWEST_IN_BLOCK)
    firsts = [float(each[0]) for each in np.array_split(ends_s, blocks)]
    found = find_change_points(_log_medians(services_s, blocks).tolist(), level=0.01)
    return tuple(firsts[place] - firsts[0] for place in found)
