# SPDX-License-Identifier: Apache-2.0
"""Figures of benchmarks as text: speed-ups, changes in percentage points, intervals of ratios, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuprof.stats.quantiles import WIDEST_FACTOR
from gpuprof.text.units import format_duration

_MOST_DIGITS = 6


def speedup_text(found: Mapping[str, Any] | None) -> str:
    """Return a speed-up with its interval, whose ends do not round to 1 where they lie beyond it."""
    if found is None:
        return "unavailable"
    low, value, high = found["low"], found["value"], found["high"]
    if low is None or high is None:
        return f"{_ratio(value, 2)}x"
    digits = _digits(1.0, low, high)
    return f"{_ratio(value, digits)}x ({_ratio(low, digits)} to {_ratio(high, digits)})"


def _ratio(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if value >= 0.1 else f"{value:.{digits}g}"


def points_text(change: Mapping[str, Any] | None, *, is_loss: bool = False) -> str:
    """Return a change of a fraction in percentage points; a loss has no sign."""
    if change is None:
        return "unavailable"
    sign = -1 if is_loss else 1
    if change["low"] is None or change["high"] is None:
        return f"{_points(sign * change['value'], 2, sign)} points"
    low, high = sorted((sign * change["low"], sign * change["high"]))
    digits = _digits(0.0, low * 100, high * 100)
    value = _points(sign * change["value"], digits, sign)
    return f"{value} points ({_points(low, digits, sign)} to {_points(high, digits, sign)})"


def _points(fraction: float, digits: int, sign: int) -> str:
    # What rounds to zero has no sign: nothing is -0.00.
    rounded = round(fraction * 100, digits) + 0.0
    return f"{rounded:{'' if sign < 0 else '+'}.{digits}f}"


def _digits(nothing: float, low: float, high: float) -> int:
    """Return how many digits distinguish the nearer end of an interval from no difference, at least 2."""
    nearer = low if low > nothing else high if high < nothing else None
    digits = 2
    while nearer is not None and round(nearer, digits) == nothing and digits < _MOST_DIGITS:
        digits += 1
    return digits


def place_text(sample: int, index: Sequence[int]) -> str:
    """Return where an element is: its sample over all batches, and the index in that."""
    return f"sample {sample}" + (f" at {list(index)}" if index else "")


def not_finite_text(found: Mapping[str, Any]) -> str:
    """Return how many NaNs and infinities there are, on what slice they all lie, and the first of them."""
    kinds = [f"{found['nan']:,} NaN"] if found["nan"] else []
    kinds += [f"{found['infinite']:,} infinite"] if found["infinite"] else []
    where = "" if found["slice"] is None else f", all in {found['slice']}"
    first = "" if found["first"] is None else f", first in {place_text(**found['first'])}"
    return f"{' and '.join(kinds) or 'none'}{where}{first}"


def sizes_text(sizes: Sequence[int]) -> str:
    """Return batch sizes as words: 1, 8 and 32."""
    *first, last = map(str, sizes)
    return f"{', '.join(first)} and {last}" if first else last


def interval_text(low: float | None, high: float | None, nothing: str = "-") -> str:
    """Return both ends of a ratio's interval; `nothing` for none, or for one that supports no statement."""
    if low is None or high is None or high / max(low, 1e-9) > WIDEST_FACTOR**2:
        return nothing
    return f"{low:.3f} to {high:.3f}"


def time_text(seconds: float | None) -> str:
    """Return seconds with the unit that suits them; a dash for none."""
    return "-" if seconds is None else format_duration(seconds * 1e9)
