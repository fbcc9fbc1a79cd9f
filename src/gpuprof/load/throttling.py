# SPDX-License-Identifier: Apache-2.0
"""Whether the machine slowed down what was measured: counters of throttling, and service times meanwhile.

A verdict needs both: a device that ran at its power cap is not a fault while the service is as fast as
before, and slow service without throttling has another cause.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.facts import TextEnum
from gpuprof.bench.measure.host import read_state
from gpuprof.load.leaks import SoakVerdict
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.record.processor import quota_throttled_ns
from gpuprof.stats.significance import plain_means, welch

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

MARGIN = 0.01  # of the service time
LEAST_FRACTION = 0.01  # of an interval, to count as throttled
FEWEST_INTERVALS = 4
_FEWEST_SERVICES = 5
_LEVEL = 0.05
_SLOW_CLOCK = 0.95  # of the fastest clock in the run


class ThrottleCause(TextEnum):
    """What slows down a machine. The first two are NVML's violation counters."""

    GPU_POWER = "GPU power cap"
    GPU_THERMAL = "GPU thermal limit"
    CPU_QUOTA = "CPU quota of the control group"
    STEAL = "steal time"
    CPU_CLOCK = "CPU clock"


@dataclass(frozen=True, slots=True)
class ThrottleReading:
    """Counters at one moment, in nanoseconds that were lost; None is unavailable.

    The clock is no counter: it is the mean frequency of the processors in MHz.
    """

    at_ns: int
    lost_ns: dict[ThrottleCause, int | None] = field(default_factory=dict)
    clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Throttling:
    """Whether one cause slowed down the service, and by how much where it did (fractions of the time)."""

    cause: ThrottleCause
    verdict: SoakVerdict
    throttled_fraction: float | None
    low: float | None
    high: float | None
    reason: LoadReason


class ThrottleMeters:
    """Reads the counters of this machine and of all its NVIDIA devices."""

    def __init__(self) -> None:
        self._nvml, self._devices = _open_nvml()

    def read(self) -> ThrottleReading:
        """Read all counters now."""
        state = read_state()
        power, thermal = self._violations("POWER"), self._violations("THERMAL")
        lost: dict[ThrottleCause, int | None] = {
            ThrottleCause.GPU_POWER: power,
            ThrottleCause.GPU_THERMAL: thermal,
            ThrottleCause.CPU_QUOTA: quota_throttled_ns(),
            ThrottleCause.STEAL: None if state.stolen_s is None else int(state.stolen_s * 1e9),
        }
        return ThrottleReading(time.monotonic_ns(), lost, state.frequency_mhz)

    def _violations(self, policy: str) -> int | None:
        """Return the largest violation time of a policy over the devices."""
        if self._nvml is None:
            return None
        kind = getattr(self._nvml, f"NVML_PERF_POLICY_{policy}", None)
        found = []
        for device in self._devices:
            with contextlib.suppress(self._nvml.NVMLError):
                found.append(int(self._nvml.nvmlDeviceGetViolationStatus(device, kind).violationTime))
        return max(found, default=None)


def _open_nvml() -> tuple[Any, list[Any]]:
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
    except pynvml.NVMLError:
        return None, []


def throttling_of(
    readings: Sequence[ThrottleReading], ends_ns: Floats, services_s: Floats
) -> tuple[Throttling, ...]:
    """Return the verdict on each cause, from counters and service times of requests that ended at `ends_ns`.

    The intervals between consecutive readings are throttled or not, and the medians of the service times of
    both kinds are compared by Welch's test. *Yes* and *no* need the interval of the difference beyond or
    within 1% of the service time.
    """
    medians = np.array([*_interval_medians(readings, ends_ns, services_s)])
    found = []
    for cause in ThrottleCause:
        flags = _throttled(readings, cause)
        found.append(_judge(cause, flags, medians))
    return tuple(found)


def _interval_medians(
    readings: Sequence[ThrottleReading], ends_ns: Floats, services_s: Floats
) -> Iterator[float]:
    """Yield the logarithm of the median service time in each interval; NaN with too few requests."""
    order = np.argsort(ends_ns, kind="stable")
    bounds = np.searchsorted(ends_ns[order], [each.at_ns for each in readings])
    for begin, end in pairwise(bounds):
        own = services_s[order[begin:end]]
        median = float(np.median(own)) if len(own) >= _FEWEST_SERVICES else 0.0
        yield math.log(median) if median > 0 else math.nan


def _throttled(readings: Sequence[ThrottleReading], cause: ThrottleCause) -> list[bool] | None:
    """Return which intervals were throttled; None where the counter is unavailable."""
    if cause is ThrottleCause.CPU_CLOCK:
        clocks = [each.clock_mhz for each in readings]
        fastest = max((each for each in clocks if each is not None), default=None)
        if fastest is None or None in clocks:
            return None
        means = [(one + other) / 2 for one, other in pairwise(each or 0.0 for each in clocks)]
        return [each < _SLOW_CLOCK * fastest for each in means]
    counters = [each.lost_ns.get(cause) for each in readings]
    known = [each for each in counters if each is not None]
    if len(known) < len(counters) or len(known) < 2:
        return None
    spans = [after.at_ns - before.at_ns for before, after in pairwise(readings)]
    return [
        new - old > LEAST_FRACTION * span for (old, new), span in zip(pairwise(known), spans, strict=True)
    ]


def _judge(cause: ThrottleCause, flags: list[bool] | None, medians: Floats) -> Throttling:
    if flags is None:
        why = reason("unavailable", meter=str(cause))
        return Throttling(cause, SoakVerdict.UNAVAILABLE, None, None, None, why)
    if not flags:
        why = reason("short_series", meter=str(cause), readings=1, least=FEWEST_INTERVALS)
        return Throttling(cause, SoakVerdict.INCONCLUSIVE, None, None, None, why)
    values: dict[str, Any] = {"cause": str(cause), "throttled": sum(flags), "intervals": len(flags)}
    fraction = sum(flags) / len(flags)
    if not any(flags):
        return Throttling(cause, SoakVerdict.NO, 0.0, None, None, reason("not_throttled", **values))
    is_throttled, known = np.array(flags), np.isfinite(medians)
    slow, usual = medians[is_throttled & known], medians[~is_throttled & known]
    if min(len(slow), len(usual)) < FEWEST_INTERVALS:
        why = reason("throttled_throughout", **values)
        return Throttling(cause, SoakVerdict.INCONCLUSIVE, fraction, None, None, why)
    found = welch(plain_means(slow[None]), plain_means(usual[None]))
    difference, half = float(found.difference[0]), float(found.half_width(_LEVEL)[0])
    low, high = math.expm1(difference - half), math.expm1(difference + half)
    values |= {"low": low, "high": high, "margin": MARGIN}
    if low > MARGIN:
        return Throttling(cause, SoakVerdict.YES, fraction, low, high, reason("throttled_slower", **values))
    if high < MARGIN:
        return Throttling(cause, SoakVerdict.NO, fraction, low, high, reason("throttled_harmless", **values))
    why = reason("throttled_unclear", **values)
    return Throttling(cause, SoakVerdict.INCONCLUSIVE, fraction, low, high, why)
