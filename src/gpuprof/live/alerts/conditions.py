# SPDX-License-Identifier: Apache-2.0
"""Whether the condition of a rule is true, subject by subject, in each snapshot."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from gpuprof.live.alerts.figures import (
    AlertSubject,
    alive_processes,
    devices_of,
    steps_by_process,
    values_of,
)
from gpuprof.live.alerts.rules import (
    AlertRule,
    LeakRule,
    RegressionRule,
    SlowStepRule,
    StallRule,
    ThresholdRule,
    ThrottlingRule,
)
from gpuprof.live.snapshot import Snapshot, Unavailable
from gpuprof.stats.growth import block_growth
from gpuprof.stats.significance import plain_means, welch

# A rule is applied again and again, so its intervals are wider than those of one comparison.
_CONFIDENCE = 0.99
_STEP_BLOCKS = 10
_LEAK_BLOCKS = 6
_MOST_READINGS = 240  # of a figure that may leak


@dataclass(frozen=True, slots=True)
class Holds:
    """Whether a condition is true of a subject now, and the values that decided it.

    `weight` is how bad an event is, such as the duration of a step: an alert retains its worst event. It is
    None for a state, of which the latest values count.
    """

    is_true: bool
    code: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    weight: float | None = None


FALSE = Holds(False)
T = TypeVar("T")
Found = dict[AlertSubject, Holds | None]


class Condition(Protocol):
    """What a rule looks at. None is unknown; a subject that has ended has no entry."""

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Found:
        """Take in the next snapshot."""


def condition_of(rule: AlertRule) -> Condition:
    """Return the condition of a rule, which has seen nothing yet."""
    if isinstance(rule, ThresholdRule):
        return _Threshold(rule)
    if isinstance(rule, RegressionRule):
        return _Regression(rule)
    if isinstance(rule, LeakRule):
        return _Leak(rule)
    if isinstance(rule, SlowStepRule):
        return _SlowStep(rule)
    return _Stall() if isinstance(rule, StallRule) else _Throttling(rule)


class _Threshold:
    def __init__(self, rule: ThresholdRule) -> None:
        self._rule = rule

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Found:  # noqa: ARG002 - of the protocol
        values = values_of(snapshot, self._rule.figure)
        return {key: None if value is None else self._holds(value) for key, value in values.items()}

    def _holds(self, value: float) -> Holds:
        rule = self._rule
        shown: dict[str, Any] = {"figure": rule.figure.value, "value": value}
        if rule.above is not None and value > rule.above:
            return Holds(True, "above", {**shown, "limit": rule.above})
        if rule.below is not None and value < rule.below:
            return Holds(True, "below", {**shown, "limit": rule.below})
        return FALSE


class _OfSteps:
    """A condition on the steps of each process; unknown in an interval without steps."""

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Found:  # noqa: ARG002 - of the protocol
        found: Found = dict.fromkeys(alive_processes(snapshot))
        stepped = steps_by_process(snapshot)
        self._forget_others(found.keys() | stepped.keys())
        for subject, durations_ns in stepped.items():
            found[subject] = self._judge(subject, durations_ns)
        return found

    def _forget_others(self, subjects: Set[AlertSubject]) -> None:
        """Drop the history of all other processes: their ids may be used again."""
        raise NotImplementedError

    def _judge(self, subject: AlertSubject, durations_ns: Sequence[int]) -> Holds | None:
        raise NotImplementedError


def _only(found: dict[AlertSubject, T], subjects: Set[AlertSubject]) -> dict[AlertSubject, T]:
    return {key: value for key, value in found.items() if key in subjects}


class _SlowStep(_OfSteps):
    def __init__(self, rule: SlowStepRule) -> None:
        self._rule = rule
        self._steps: dict[AlertSubject, _RunningMedian] = {}
        self._count: dict[AlertSubject, int] = {}

    def _forget_others(self, subjects: Set[AlertSubject]) -> None:
        self._steps, self._count = _only(self._steps, subjects), _only(self._count, subjects)

    def _judge(self, subject: AlertSubject, durations_ns: Sequence[int]) -> Holds | None:
        rule = self._rule
        steps = self._steps.setdefault(subject, _RunningMedian(rule.steps))
        number = self._count.get(subject, 0)
        slow, longest = 0, FALSE
        for index, duration in enumerate(durations_ns, start=number):
            median = steps.median if len(steps) >= rule.fewest else None
            if median is not None and duration > rule.factor * median:
                slow += 1
                if not longest.is_true or duration > longest.values["duration_ns"]:
                    values = {"step": index, "duration_ns": duration, "median_ns": median}
                    longest = Holds(True, "slow_step", {**values, "factor": rule.factor})
            steps.add(duration)
        self._count[subject] = number + len(durations_ns)
        if longest.is_true:
            values = {**longest.values, "slow": slow}
            return Holds(True, longest.code, values, weight=longest.values["duration_ns"])
        return FALSE if len(steps) > rule.fewest else None


class _RunningMedian:
    """The median of the last values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._order: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def median(self) -> float:
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return self._sorted[middle]
        return (self._sorted[middle - 1] + self._sorted[middle]) / 2

    def add(self, value: int) -> None:
        if len(self._order) == self._most:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)


class _Regression(_OfSteps):
    def __init__(self, rule: RegressionRule) -> None:
        self._rule = rule
        self._left: dict[AlertSubject, int] = {}
        self._first: dict[AlertSubject, list[int]] = {}
        self._last: dict[AlertSubject, deque[int]] = {}

    def _forget_others(self, subjects: Set[AlertSubject]) -> None:
        self._left, self._first = _only(self._left, subjects), _only(self._first, subjects)
        self._last = _only(self._last, subjects)

    def _judge(self, subject: AlertSubject, durations_ns: Sequence[int]) -> Holds | None:
        rule = self._rule
        skipped = self._left.setdefault(subject, rule.warmup)
        durations = durations_ns[skipped:]
        self._left[subject] = max(skipped - len(durations_ns), 0)
        first = self._first.setdefault(subject, [])
        room = rule.steps - len(first)
        first += durations[:room]
        last = self._last.setdefault(subject, deque(maxlen=rule.steps))
        last.extend(durations[room:])
        if len(last) < rule.steps:
            return None
        compared = welch(plain_means(_log_blocks(last)), plain_means(_log_blocks(first)))
        difference, half = float(compared.difference[0]), float(compared.half_width(1 - _CONFIDENCE)[0])
        ratio, low, high = np.exp([difference, difference - half, difference + half]).tolist()
        if low <= 1 + rule.margin:
            return FALSE
        values = {"ratio": ratio, "low": low, "high": high, "margin": rule.margin, "steps": rule.steps}
        return Holds(True, "slower_steps", values)


def _log_blocks(durations_ns: Sequence[int] | deque[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logarithms of the medians of consecutive blocks, as one row."""
    blocks = np.array_split(np.array(durations_ns, dtype=np.float64), _STEP_BLOCKS)
    return np.log([[max(float(np.median(block)), 1.0) for block in blocks]])


class _Leak:
    def __init__(self, rule: LeakRule) -> None:
        self._rule = rule
        self._spacing_s = rule.window_s / _MOST_READINGS
        self._readings: dict[AlertSubject, deque[tuple[float, float]]] = {}

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Found:
        values = values_of(snapshot, self._rule.figure)
        self._readings = {key: each for key, each in self._readings.items() if key in values}
        return {key: self._judge(key, value, elapsed_s) for key, value in values.items()}

    def _judge(self, subject: AlertSubject, value: float | None, elapsed_s: float) -> Holds | None:
        readings = self._readings.setdefault(subject, deque())
        if value is None or (readings and elapsed_s - readings[-1][0] < self._spacing_s):
            return None
        readings.append((elapsed_s, value))
        while readings[0][0] < elapsed_s - self._rule.window_s:
            readings.popleft()
        window_s = elapsed_s - readings[0][0]
        if window_s < 0.9 * self._rule.window_s or len(readings) < 4 * _LEAK_BLOCKS:
            return None
        times, levels = np.array(readings, dtype=np.float64).T
        half = len(times) // 2
        growth = block_growth(times[half:], levels[half:], blocks=_LEAK_BLOCKS, confidence=_CONFIDENCE)
        margin = self._rule.bytes_per_s
        before, now = float(levels[: half // 2].mean()), float(levels[-half // 2 :].mean())
        grows = growth.low > margin and min(growth.rates) > 0 and now > (1 + self._rule.share) * before
        if not grows or growth.flattens(margin):
            return FALSE
        rates = {"low": growth.low, "bytes_per_s": growth.value, "high": growth.high}
        values = {"figure": self._rule.figure.value, **rates, "window_s": window_s, "now": levels[-1].item()}
        return Holds(True, "grows", values)


class _Stall:
    """True in an interval without a step, once there was one."""

    def __init__(self) -> None:
        self._last_s: dict[AlertSubject, float] = {}

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Found:
        for subject in steps_by_process(snapshot):
            self._last_s[subject] = elapsed_s
        found: Found = {}
        alive = set(alive_processes(snapshot))
        self._last_s = _only(self._last_s, alive)
        for subject in alive:
            last_s = self._last_s.get(subject)
            if last_s is None:
                found[subject] = None
            else:
                is_true = elapsed_s > last_s
                found[subject] = Holds(is_true, "no_step", {"since_s": elapsed_s - last_s})
        return found


class _Throttling:
    def __init__(self, rule: ThrottlingRule) -> None:
        self._rule = rule

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Found:  # noqa: ARG002 - of the protocol
        return {key: self._holds(each.throttle_reasons) for key, each in devices_of(snapshot).items()}

    def _holds(self, reasons: tuple[str, ...] | Unavailable) -> Holds | None:
        if isinstance(reasons, Unavailable):
            return None
        found = [each for each in reasons if each in self._rule.reasons]
        return Holds(bool(found), "throttled", {"reasons": found})
