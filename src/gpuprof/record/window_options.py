# SPDX-License-Identifier: Apache-2.0
"""What windows of a long program are recorded, what is retained of them, and what triggers one."""

from __future__ import annotations

import dataclasses
import math
import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprof.errors import RecordingError

LEAST_DISK_BYTES = 16_000_000
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)")
_TRIGGER = re.compile(r"step\s*>\s*(p?)(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")

REMEMBERED_STEPS = 1_000
_LEAST_FOR_MEDIAN = 20
_LEAST_FOR_QUANTILE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """A window of `duration_s` seconds each `every_s`, and one after a step that `when` names.

    `keep` windows are retained at most, in `disk_bytes` together.
    """

    every_s: float = 60.0
    duration_s: float = 2.0
    when: str | None = None
    keep: int = 20
    disk_bytes: int = 2_000_000_000

    def __post_init__(self) -> None:
        if not 0.05 <= self.duration_s <= 3600:
            raise _refusal("a window of 0.05 s to 1 h", f"{self.duration_s:g} s")
        if not self.every_s >= 2 * self.duration_s:
            raise _refusal(
                f"an interval of at least twice the window, {2 * self.duration_s:g} s", f"{self.every_s:g} s"
            )
        if self.keep < 2:
            raise _refusal("at least 2 windows to keep", str(self.keep))
        if self.disk_bytes < LEAST_DISK_BYTES:
            raise _refusal("a disk budget of at least 16 MB", f"{self.disk_bytes} bytes")
        if self.when is not None:
            Trigger(self.when)

    @property
    def largest_window_bytes(self) -> int:
        """The size at which a window is stopped: one is recorded while another is being closed."""
        return self.disk_bytes // 8

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_plain` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WindowOptions:
        """Read what `to_plain` wrote."""
        return cls(**plain)


def _refusal(wanted: str, given: str) -> RecordingError:
    return RecordingError("invalid_windows", f"windows need {wanted}, not {given}", hint="see --every, --for")


def parse_seconds(text: str) -> float:
    """Return the seconds of a text such as `60s`, `500ms` or `5m`. Raises RecordingError."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2].lower() not in _SECONDS:
        raise RecordingError("invalid_duration", f"{text!r} is not a duration", hint="use 60s, 500ms or 5m")
    return float(match[1]) * _SECONDS[match[2].lower()]


def parse_bytes(text: str) -> int:
    """Return the bytes of a text such as `2GB` or `500MiB`. Raises RecordingError."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2].upper() not in _BYTES:
        raise RecordingError(
            "invalid_size", f"{text!r} is not a size", hint="write a number and a unit, as in 500MB or 2GB"
        )
    return int(float(match[1]) * _BYTES[match[2].upper()])


class StepHistory:
    """The durations of the last 1,000 steps outside of windows, in nanoseconds."""

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, duration_ns: int) -> None:
        """Add a step, and forget the oldest of more than 1,000."""
        if len(self._order) == REMEMBERED_STEPS:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._order.append(duration_ns)
        insort(self._sorted, duration_ns)

    def quantile(self, fraction: float) -> int:
        """Return the smallest duration that at least this fraction of the steps does not exceed."""
        rank = math.ceil(fraction * len(self._sorted))
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]


class Trigger:
    """A condition of a step: `step > 1.5x` (of the median), `step > p99` (of 1,000 steps), `step > 200ms`."""

    def __init__(self, text: str) -> None:
        match = _TRIGGER.fullmatch(text.strip().lower())
        wrong = RecordingError(
            "invalid_trigger",
            f"{text!r} is not a trigger",
            hint="use 'step > 1.5x', 'step > p99' or 'step > 200ms'",
        )
        if match is None:
            raise wrong
        is_quantile, number, unit = match[1] == "p", float(match[2]), match[3]
        self._share: float | None = None
        self._factor: float | None = None
        self._limit_ns: float | None = None
        if is_quantile and not unit and 50 <= number < 100:
            self._share = number / 100
        elif not is_quantile and unit == "x" and number > 1:
            self._factor = number
        elif not is_quantile and unit in ("ms", "s", "m", "us") and number > 0:
            self._limit_ns = number * {"us": 1e3, "ms": 1e6, "s": 1e9, "m": 6e10}[unit]
        else:
            raise wrong

    def limit_ns(self, history: StepHistory) -> float | None:
        """Return above which duration a step fulfills the condition; None while too few steps are known."""
        if self._limit_ns is not None:
            return self._limit_ns
        if self._factor is not None:
            return None if len(history) < _LEAST_FOR_MEDIAN else self._factor * history.quantile(0.5)
        assert self._share is not None
        return None if len(history) < _LEAST_FOR_QUANTILE else float(history.quantile(self._share))
