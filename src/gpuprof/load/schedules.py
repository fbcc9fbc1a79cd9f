# SPDX-License-Identifier: Apache-2.0
"""When requests arrive: plans of offsets from the start, from a rate over time and a seed.

Each rate schedule has exactly round(integral of the rate) arrivals. Given that number, the arrivals of a
Poisson process are independent with the density of its rate, and between two of them are exponential gaps
divided by their sum (Devroye, Non-Uniform Random Variate Generation, 1986, V.3); gaps of a gamma
distribution take their place for other burstiness. The rate changes through the inverse of its integral
(Cinlar, Introduction to Stochastic Processes, 1975).
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof.errors import BenchmarkError

Nanoseconds = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
POISSON = 1.0  # the shape of gaps that are exponential
_GRID = 10_001
_MOST_ARRIVALS = 100_000_000
_MOST_BURSTS = 1_000_000
_LONGEST_S = 1e9  # nanoseconds are int64
_RAMP_RATE = "a rate above 0, as in ramp:10-500"
_DIURNAL_SWING = 0.5  # of the mean rate, up and down


class ArrivalSchedule(ABC):
    """A plan of arrivals."""

    @abstractmethod
    def arrivals_ns(self, generator: np.random.Generator) -> Nanoseconds:
        """Return the planned offsets from the start in nanoseconds, in order."""


@dataclass(frozen=True, slots=True)
class RateSchedule(ArrivalSchedule):
    """`rate` requests per second over `duration_s`. Raises BenchmarkError for what plans nothing.

    `shape` is that of the gamma distribution of the gaps: 1 is Poisson, below it is burstier, above it is
    more even, None is without randomness.
    """

    rate: float
    duration_s: float
    shape: float | None = POISSON

    def __post_init__(self) -> None:
        check_positive(self.rate, "rate", "requests per second above 0, as in 200")
        check_positive(self.duration_s, "duration", "a time above 0, as in 30s")
        if self.duration_s > _LONGEST_S:
            raise _invalid(f"a duration of {self.duration_s:,.6g} s", "use a shorter --duration")
        if self.shape is not None:
            check_positive(self.shape, "gamma shape", "a number above 0; 1 is Poisson")

    def cumulative(self) -> tuple[Floats, Floats]:
        """Return times in seconds from 0 to the end, and the integral of the rate until each."""
        return np.array([0.0, self.duration_s]), np.array([0.0, self.rate * self.duration_s])

    def arrivals_ns(self, generator: np.random.Generator) -> Nanoseconds:
        """Return the planned offsets from the start in nanoseconds, in order."""
        times_s, expected = self.cumulative()
        count = check_count(float(expected[-1]))
        if self.shape is None:
            fractions = np.arange(count) / count
        else:
            reached = np.cumsum(generator.gamma(self.shape, size=count + 1))
            fractions = reached[:-1] / reached[-1]
        at_s = np.interp(fractions * expected[-1], expected, times_s)
        return np.asarray(np.round(at_s * 1e9), np.int64)


@dataclass(frozen=True, slots=True)
class BurstSchedule(RateSchedule):
    """`rate`, and `factor` times it for `length_s` at the begin of each `every_s`."""

    factor: float = 5.0
    length_s: float = 2.0
    every_s: float = 30.0

    def __post_init__(self) -> None:
        RateSchedule.__post_init__(self)
        check_positive(self.factor, "burst factor", "a number above 0, as in 5x")
        check_positive(self.length_s, "burst length", "a time above 0, as in 2s")
        check_positive(self.every_s, "burst period", "a time above 0, as in every=30s")
        if self.length_s >= self.every_s:
            raise _invalid(f"bursts of {self.length_s:g} s every {self.every_s:g} s have no end",
                           "use bursts that are shorter than their period")  # fmt: skip
        if self.duration_s > _MOST_BURSTS * self.every_s:
            raise _invalid(f"more than {_MOST_BURSTS:,} bursts", "use a shorter duration")

    def cumulative(self) -> tuple[Floats, Floats]:
        """Return times in seconds from 0 to the end, and the integral of the rate until each."""
        begins = np.arange(math.ceil(self.duration_s / self.every_s)) * self.every_s
        changes = np.sort(np.concatenate([begins, begins + self.length_s, [self.duration_s]]))
        times_s = changes[changes <= self.duration_s]
        is_burst = times_s[:-1] % self.every_s < self.length_s * (1 - 1e-9)
        rates = np.where(is_burst, self.rate * self.factor, self.rate)
        return times_s, np.concatenate([[0.0], np.cumsum(rates * np.diff(times_s))])


@dataclass(frozen=True, slots=True)
class RampSchedule(RateSchedule):
    """From `rate` to `last_rate`, in a straight line."""

    last_rate: float = 0.0

    def __post_init__(self) -> None:
        RateSchedule.__post_init__(self)
        check_positive(self.last_rate, "last rate of the ramp", _RAMP_RATE)

    def cumulative(self) -> tuple[Floats, Floats]:
        """Return times in seconds from 0 to the end, and the integral of the rate until each."""
        times_s = np.linspace(0.0, self.duration_s, _GRID)
        slope = (self.last_rate - self.rate) / self.duration_s
        return times_s, self.rate * times_s + slope * times_s**2 / 2


@dataclass(frozen=True, slots=True)
class DiurnalSchedule(RateSchedule):
    """Days of `day_s` in the run: from half of `rate` at midnight, where it starts, to 1.5 times at noon."""

    day_s: float = 3600.0

    def __post_init__(self) -> None:
        RateSchedule.__post_init__(self)
        check_positive(self.day_s, "length of a day", "a time above 0, as in diurnal:24h@1h")

    def cumulative(self) -> tuple[Floats, Floats]:
        """Return times in seconds from 0 to the end, and the integral of the rate until each."""
        days = math.ceil(self.duration_s / self.day_s)
        times_s = np.linspace(0.0, self.duration_s, min(_GRID * days, 100 * _GRID))
        angle = 2 * np.pi * times_s / self.day_s
        return times_s, self.rate * (times_s - _DIURNAL_SWING * np.sin(angle) * self.day_s / (2 * np.pi))


@dataclass(frozen=True, slots=True)
class AllAtOnce(ArrivalSchedule):
    """All requests at the start, as of MLPerf's offline scenario."""

    count: int

    def arrivals_ns(self, generator: np.random.Generator) -> Nanoseconds:
        """Return zeros."""
        del generator
        return np.zeros(check_count(self.count), np.int64)


@dataclass(frozen=True, slots=True)
class TraceSchedule(ArrivalSchedule):
    """Recorded arrivals: a file with a time in seconds, or a JSON object that has one, on each line."""

    path: Path
    speed: float = 1.0

    def arrivals_ns(self, generator: np.random.Generator) -> Nanoseconds:
        """Return the recorded times from the first one on. Raises BenchmarkError for a file without any."""
        del generator
        times_s = np.sort(np.array(self._times()))
        if not len(times_s):
            raise BenchmarkError(
                "empty_plan", f"{self.path} has no arrivals", hint="write a time in seconds on each line"
            )
        check_count(len(times_s))
        if times_s[-1] - times_s[0] > _LONGEST_S:
            raise BenchmarkError(
                "invalid_trace",
                f"{self.path}: the last arrival is {times_s[-1] - times_s[0]:,.6g} s after the first one",
                hint="write times in seconds",
            )
        return np.asarray(np.round((times_s - times_s[0]) / self.speed * 1e9), np.int64)

    def _times(self) -> list[float]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BenchmarkError(
                "cannot_read", f"{self.path}: cannot be read ({error})", hint="name a file with times"
            ) from error
        return [_time_of(line, self.path, number) for number, line in enumerate(lines, 1) if line.strip()]


_TIME_KEYS = ("timestamp", "time", "time_s", "arrival_s", "ts")


def _time_of(line: str, path: Path, number: int) -> float:
    try:
        value: Any = json.loads(line)
        if isinstance(value, dict):
            value = next(value[key] for key in _TIME_KEYS if key in value)
        time_s = math.nan if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, StopIteration):
        time_s = math.nan
    if not math.isfinite(time_s):
        raise BenchmarkError(
            "invalid_trace",
            f"{path}:{number}: no time of arrival",
            hint=f'write seconds, or JSON such as {{"{_TIME_KEYS[0]}": 1.5}}, on each line',
        )
    return time_s


# --- checks --------------------------------------------------------------------------------------


def check_positive(value: float, what: str, wanted: str) -> None:
    """Raise BenchmarkError unless a number is finite and above 0."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise _invalid(f"{what} {value}: nothing can be planned", f"use {wanted}")


def check_count(count: float) -> int:
    """Return a rounded number of arrivals. Raises BenchmarkError for none, or more than memory holds."""
    if not count <= _MOST_ARRIVALS:
        raise _invalid(f"{count:,.6g} arrivals are more than {_MOST_ARRIVALS:,}", "use a lower rate or count")
    if round(count) < 1:
        raise BenchmarkError(
            "empty_plan", "the plan has no arrivals", hint="use a longer duration or a higher rate"
        )
    return round(count)


def _invalid(message: str, hint: str) -> BenchmarkError:
    return BenchmarkError("invalid_schedule", message, hint=hint)


# --- patterns of the command line ----------------------------------------------------------------

_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|min|m|h|d)"
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_BURST = re.compile(rf"burst:({_NUMBER})x,({_TIME}),every=({_TIME})")
_RAMP = re.compile(rf"ramp:({_NUMBER})-({_NUMBER})")
_DIURNAL = re.compile(rf"diurnal:24h@({_TIME})")
_GAMMA = re.compile(rf"gamma:({_NUMBER})")


def parse_time(text: str, what: str = "--duration") -> float:
    """Read `500ms`, `30s`, `10m`, `1h` or seconds without a unit. Raises BenchmarkError."""
    match = re.fullmatch(rf"\s*({_NUMBER})\s*(ms|s|min|m|h|d)?\s*", text)
    if match is None or float(match[1]) == 0:
        raise BenchmarkError(
            "invalid_time", f"{what} {text!r} is not a time above 0", hint="write it as in 500ms, 30s or 10m"
        )
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def parse_pattern(text: str, *, rate: float | None, duration_s: float | None) -> ArrivalSchedule:
    """Read a pattern, or the path of a trace. Raises BenchmarkError.

    Patterns are `constant`, `poisson`, `gamma:SHAPE`, `burst:5x,2s,every=30s`, `ramp:10-500` and
    `diurnal:24h@1h`.
    """
    name = text.strip()
    if ":" not in name and name not in ("constant", "poisson"):
        if not Path(name).is_file():
            raise _unknown_pattern(text)
        return TraceSchedule(Path(name))
    if duration_s is None:
        raise _invalid(f"--pattern {text} without a duration", "set --duration, as in 30s")
    if match := _RAMP.fullmatch(name):
        check_positive(float(match[1]), "first rate of the ramp", _RAMP_RATE)
        return RampSchedule(float(match[1]), duration_s, last_rate=float(match[2]))
    if rate is None:
        raise _invalid(f"--pattern {text} without a rate", "set --rate in requests per second")
    return _pattern_of_rate(name, rate, duration_s)


def _pattern_of_rate(name: str, rate: float, duration_s: float) -> ArrivalSchedule:
    if name == "constant":
        return RateSchedule(rate, duration_s, shape=None)
    if name == "poisson":
        return RateSchedule(rate, duration_s)
    if match := _GAMMA.fullmatch(name):
        return RateSchedule(rate, duration_s, shape=float(match[1]))
    if match := _BURST.fullmatch(name):
        length_s, every_s = parse_time(match[2]), parse_time(match[3])
        return BurstSchedule(rate, duration_s, factor=float(match[1]), length_s=length_s, every_s=every_s)
    if match := _DIURNAL.fullmatch(name):
        return DiurnalSchedule(rate, duration_s, day_s=parse_time(match[1]))
    raise _unknown_pattern(name)


def _unknown_pattern(text: str) -> BenchmarkError:
    return BenchmarkError(
        "unknown_pattern",
        f"--pattern {text!r} is neither a pattern nor a file",
        hint="use constant, poisson, gamma:0.5, burst:5x,2s,every=30s, ramp:10-500, diurnal:24h@1h, or the "
        "path of a trace",
    )


# --- mixes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mix:
    """Values of one property of requests, such as the batch size, with their weights."""

    name: str
    values: tuple[int, ...]
    weights: tuple[float, ...]

    def draw(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return the value of each of `count` requests."""
        weights = np.array(self.weights)
        return generator.choice(np.array(self.values, np.int64), size=count, p=weights / weights.sum())


_MIX = re.compile(rf"([a-z_]{{1,40}})=([0-9]{{1,9}}:{_NUMBER}(?:,[0-9]{{1,9}}:{_NUMBER})*)")


def parse_mix(text: str) -> Mix:
    """Read `batch=1:80,8:20`: values with their weights. Raises BenchmarkError."""
    match = _MIX.fullmatch(text.replace(" ", ""))
    pairs = [part.split(":") for part in match[2].split(",")] if match else []
    values, weights = tuple(int(pair[0]) for pair in pairs), tuple(float(pair[1]) for pair in pairs)
    if match is None or 0 in values or sum(weights) == 0 or len(set(values)) < len(values):
        raise BenchmarkError(
            "invalid_mix",
            f"--mix {text!r} is not a mix of sizes",
            hint="write each size from 1 once, with its weight, as in batch=1:80,8:20",
        )
    return Mix(match[1], values, weights)
