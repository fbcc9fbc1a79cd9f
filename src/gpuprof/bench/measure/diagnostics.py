# SPDX-License-Identifier: Apache-2.0
"""What speaks against a figure: each flag is one line with its evidence. None of them changes a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.text_table import format_duration
from gpuprof.bench.measure.host import MachineUse
from gpuprof.stats.quantiles import Slope, relative_drift, summarize

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.bench.measure.measurement import Measurement

    Floats = npt.NDArray[np.float64]


MOST_SPREAD = 0.025
MOST_DRIFT = 0.01
MOST_ENQUEUE = 0.8
_MOST_SHARE = 0.5  # changes from here on are told as two times
_MOST_TIMER = 0.05
_MOST_OTHERS = 0.1
_MOST_STOLEN = 0.01
_MOST_FREQUENCY_CHANGE = 0.05
_MOST_SWITCHES_PER_CALL = 0.01
_FEWEST_SWITCHES = 20
_FEWEST_FOR_SHAPE = 100
# Two peaks: each with this share of the samples, and between them less than this share of the lower one.
_LEAST_MASS = 0.1
_DEEPEST_VALLEY = 0.5
_GRID = 512


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that a reader must know of a figure."""

    name: str
    line: str

    def __str__(self) -> str:
        return f"{self.name}: {self.line}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"name": self.name, "line": self.line}


def flags_of(measurement: Measurement, device_type: str = "cpu") -> tuple[Flag, ...]:
    """Return what is to be flagged of one measurement."""
    found = [*_warmup_flags(measurement), *sample_flags(measurement.samples)]
    if len(measurement.wall_ns):
        found += [*_timer_flags(measurement), *_enqueue_flags(measurement, device_type)]
    if measurement.machine is not None and len(measurement.wall_ns):
        found += machine_flags(measurement.machine, measurement.calls)
    return tuple(found)


def sample_flags(samples: Floats) -> Iterator[Flag]:
    """Yield what the samples themselves tell, in the order of their making."""
    figures = summarize(samples)
    if figures is None or figures.median <= 0:
        return
    if figures.spread > MOST_SPREAD:
        between = f"{_time(figures.first_quartile)} to {_time(figures.third_quartile)}"
        yield Flag("spread", f"the middle half of the samples spans {figures.spread:.1%} ({between})")
    drift = relative_drift(samples)
    if drift is not None and abs(drift.value) > MOST_DRIFT and (drift.low > 0 or drift.high < 0):
        yield Flag("drift", _drift_line(samples, drift))
    peaks = two_peaks(samples)
    if peaks is not None:
        first, second = peaks
        yield Flag(
            "two peaks",
            f"the samples gather at {_time(first)} and at {_time(second)}: no one figure describes both",
        )


def _drift_line(samples: Floats, drift: Slope) -> str:
    ends = (drift.low, drift.value, drift.high)
    if max(map(abs, ends)) < _MOST_SHARE:
        change = f"changed by {drift.value:+.1%} ({drift.low:+.1%} to {drift.high:+.1%})"
        return f"from the first to the last sample the time {change}"
    # A line through so much is no change in percent that anybody could read.
    tenth = max(1, len(samples) // 10)
    first, last = (float(np.median(part)) for part in (samples[:tenth], samples[-tenth:]))
    return f"the first tenth of the samples has a median of {_time(first)}, the last one of {_time(last)}"


def two_peaks(samples: Floats) -> tuple[float, float] | None:
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


def machine_flags(use: MachineUse, calls: int) -> Iterator[Flag]:
    """Yield what the machine did besides."""
    switches = use.involuntary_switches
    if switches is not None and switches > max(_FEWEST_SWITCHES, _MOST_SWITCHES_PER_CALL * calls):
        yield Flag(
            "interrupted", f"the process was put off its processor {switches:,} times in {calls:,} calls"
        )
    if use.others_cpus is not None and use.others_cpus > _MOST_OTHERS * use.processors:
        busy = f"{use.others_cpus:.1f} of {use.processors} processors"
        yield Flag("other load", f"other processes of the machine kept {busy} busy")
    if use.stolen_share is not None and use.stolen_share > _MOST_STOLEN:
        yield Flag(
            "stolen time", f"the hypervisor gave {use.stolen_share:.1%} of the processors' time to others"
        )
    before, after = use.frequency_before_mhz, use.frequency_after_mhz
    if before and after and abs(after / before - 1) > _MOST_FREQUENCY_CHANGE:
        yield Flag("clock", f"the processors' clock went from {before:,.0f} to {after:,.0f} MHz")


def _warmup_flags(measurement: Measurement) -> Iterator[Flag]:
    warmup = measurement.warmup
    if warmup is not None and warmup.settled is False and not measurement.failure:
        yield Flag("warm-up", str(warmup))


def _timer_flags(measurement: Measurement) -> Iterator[Flag]:
    share = measurement.timer_ns / float(np.median(measurement.wall_ns) or 1.0)
    if share > _MOST_TIMER:
        cost = _time(measurement.timer_ns / 1e9)
        yield Flag(
            "timer", f"reading the clock takes {cost}, {share:.0%} of a sample: take mode='throughput'"
        )


def _enqueue_flags(measurement: Measurement, device_type: str) -> Iterator[Flag]:
    share = measurement.enqueue_share
    if share is not None and device_type != "cpu" and share > MOST_ENQUEUE:
        yield Flag("enqueue", f"a call had returned after {share:.0%} of its time: the host sets the pace")


def _time(seconds: float) -> str:
    return format_duration(seconds * 1e9)
