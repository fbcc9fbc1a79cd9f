# SPDX-License-Identifier: Apache-2.0
"""Warnings about the samples of one measurement, each with its evidence. None of them changes a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.measure.host import MachineUse
from gpuprof.stats.quantiles import Slope, relative_drift, summarize

if TYPE_CHECKING:
    from gpuprof.bench.measure.measurement import Measurement
    from gpuprof.stats.arrays import Floats


# Of the machine, not of what is measured: measuring again on a quieter machine may help.
BACKGROUND_LOAD = frozenset(("background_cpu_load", "steal_time"))
MACHINE_WARNINGS = BACKGROUND_LOAD | {"involuntary_context_switches"}
MOST_SPREAD = 0.025
MOST_DRIFT = 0.01
MOST_ENQUEUE = 0.8
_LARGE_DRIFT = 0.5  # changes from here on are given as two times
_MOST_TIMER = 0.05
_MOST_OTHERS = 0.1
_MOST_STOLEN = 0.01
_MOST_FREQUENCY_CHANGE = 0.05
_MOST_SWITCHES_PER_CALL = 0.01
_FEWEST_SWITCHES = 20
_FEWEST_FOR_SHAPE = 100
# Bimodal: each peak has this part of the samples, and between them is less than this part of the lower one.
_LEAST_MASS = 0.1
_DEEPEST_VALLEY = 0.5
_GRID = 512


def warnings_of(measurement: Measurement, device_type: str = "cpu") -> tuple[Diagnostic, ...]:
    """Return the warnings about one measurement."""
    found = [*_warmup_warnings(measurement), *sample_warnings(measurement.samples)]
    if len(measurement.samples_ns):
        found += [*_timer_warnings(measurement), *_enqueue_warnings(measurement, device_type)]
    if measurement.machine is not None and len(measurement.samples_ns):
        found += machine_warnings(measurement.machine, measurement.calls)
    return tuple(found)


def sample_warnings(samples: Floats) -> Iterator[Diagnostic]:
    """Yield the warnings that follow from the samples, in the order in which they were taken."""
    figures = summarize(samples)
    if figures is None or figures.median <= 0:
        return
    if figures.relative_iqr > MOST_SPREAD:
        yield warning(
            "relative_iqr",
            relative_iqr=figures.relative_iqr,
            low_s=figures.first_quartile,
            high_s=figures.third_quartile,
        )
    drift = relative_drift(samples)
    if drift is not None and abs(drift.value) > MOST_DRIFT and (drift.low > 0 or drift.high < 0):
        yield _drift_warning(samples, drift)
    peaks = modes_of(samples)
    if peaks is not None:
        first, second = peaks
        yield warning("bimodal", first_s=first, second_s=second)


def _drift_warning(samples: Floats, drift: Slope) -> Diagnostic:
    if max(map(abs, (drift.low, drift.value, drift.high))) < _LARGE_DRIFT:
        return warning("drift", drift=drift.value, low=drift.low, high=drift.high)
    # A line through so large a change has no meaning as a percentage.
    tenth = max(1, len(samples) // 10)
    first, last = (float(np.median(part)) for part in (samples[:tenth], samples[-tenth:]))
    return warning("large_drift", first_s=first, last_s=last)


def modes_of(samples: Floats) -> tuple[float, float] | None:
    """Return the two places where samples gather, when there are two with little between them.

    A kernel density estimate (Silverman, Density Estimation, 1986: width 0.9 min(s, IQR / 1.34) n^-0.2) of
    the logarithms of 512 quantiles, which leave out the outermost 1% on either side: a tail is no peak.
    """
    if len(samples) < _FEWEST_FOR_SHAPE or samples.min() <= 0:
        return None
    points = np.log(np.quantile(samples, np.linspace(0.01, 0.99, _GRID)))
    extent = points[-1] - points[0]
    # Finer differences than this are no two ways to run.
    if extent < MOST_DRIFT:
        return None
    spread = min(points.std(), (points[3 * _GRID // 4] - points[_GRID // 4]) / 1.34) or points.std()
    width = max(0.9 * spread * len(samples) ** -0.2, extent / 50)
    grid = np.linspace(points[0] - 3 * width, points[-1] + 3 * width, _GRID)
    density = np.exp(-0.5 * ((grid[:, None] - points[None, :]) / width) ** 2).sum(axis=1)
    found = _deepest_valley(density)
    if found is None:
        return None
    first, valley, second = found
    lower = float(np.mean(points < grid[valley]))
    if min(lower, 1 - lower) < _LEAST_MASS:
        return None
    return float(np.exp(grid[first])), float(np.exp(grid[second]))


def _deepest_valley(density: Floats) -> tuple[int, int, int] | None:
    """Return the places of a peak, a valley and a peak; None where no valley is deep enough."""
    before = np.maximum.accumulate(density)
    after = np.maximum.accumulate(density[::-1])[::-1]
    depth = density / np.minimum(before, after)
    valley = int(depth.argmin())
    if depth[valley] > _DEEPEST_VALLEY:
        return None
    return int(density[:valley].argmax()), valley, valley + int(density[valley:].argmax())


def machine_warnings(use: MachineUse, calls: int) -> Iterator[Diagnostic]:
    """Yield what else the machine did meanwhile."""
    switches = use.involuntary_switches
    if switches is not None and switches > max(_FEWEST_SWITCHES, _MOST_SWITCHES_PER_CALL * calls):
        yield warning("involuntary_context_switches", switches=switches, calls=calls)
    if use.others_cpus is not None and use.others_cpus > _MOST_OTHERS * use.processors:
        yield warning("background_cpu_load", busy_cpus=use.others_cpus, cpus=use.processors)
    if use.stolen_share is not None and use.stolen_share > _MOST_STOLEN:
        yield warning("steal_time", steal=use.stolen_share)
    before, after = use.frequency_before_mhz, use.frequency_after_mhz
    if before and after and abs(after / before - 1) > _MOST_FREQUENCY_CHANGE:
        yield warning("cpu_frequency", before_mhz=before, after_mhz=after)


def _warmup_warnings(measurement: Measurement) -> Iterator[Diagnostic]:
    warmup = measurement.warmup
    if warmup is not None and warmup.settled is False and not measurement.failure:
        yield warning("warmup", calls=warmup.calls, elapsed_s=warmup.elapsed_s, drift=warmup.drift)


def _timer_warnings(measurement: Measurement) -> Iterator[Diagnostic]:
    fraction = measurement.timer_ns / float(np.median(measurement.samples_ns) or 1.0)
    if fraction > _MOST_TIMER:
        yield warning("timer", timer_s=measurement.timer_ns / 1e9, fraction=fraction)


def _enqueue_warnings(measurement: Measurement, device_type: str) -> Iterator[Diagnostic]:
    fraction = measurement.enqueue_share
    if fraction is not None and device_type != "cpu" and fraction > MOST_ENQUEUE:
        yield warning("enqueue", fraction=fraction)
