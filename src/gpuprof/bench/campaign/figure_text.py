# SPDX-License-Identifier: Apache-2.0
"""Figures in a sentence, with as many digits as it takes to see what is claimed of them."""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]
_MOST_DIGITS = 6


def speedup_text(found: Plain) -> str:
    """Return a speed-up with its interval, whose ends do not round to 1 where they lie beyond it."""
    low, value, high = found["low"], found["value"], found["high"]
    if low is None or high is None:
        return f"{_ratio(value, 2)}x"
    digits = _digits(1.0, low, high)
    return f"{_ratio(value, digits)}x ({_ratio(low, digits)} to {_ratio(high, digits)})"


def _ratio(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if value >= 0.1 else f"{value:.{digits}g}"


def points_text(change: Plain | None, sign: int = 1) -> str:
    """Return a change of a share in percentage points; with a sign of -1 as a loss, which has none."""
    if change is None:
        return "unavailable"
    if change["low"] is None or change["high"] is None:
        return f"{_points(sign * change['value'], 2, sign)} points"
    low, high = sorted((sign * change["low"], sign * change["high"]))
    digits = _digits(0.0, low * 100, high * 100)
    value = _points(sign * change["value"], digits, sign)
    return f"{value} points ({_points(low, digits, sign)} to {_points(high, digits, sign)})"


def _points(share: float, digits: int, sign: int) -> str:
    # Nothing is -0.00: what rounds to zero has no side.
    rounded = round(share * 100, digits) + 0.0
    return f"{rounded:{'' if sign < 0 else '+'}.{digits}f}"


def _digits(nothing: float, low: float, high: float) -> int:
    """Return how many digits tell the nearer end of an interval from no difference, 2 where it has none."""
    nearer = low if low > nothing else high if high < nothing else None
    digits = 2
    while nearer is not None and round(nearer, digits) == nothing and digits < _MOST_DIGITS:
        digits += 1
    return digits
