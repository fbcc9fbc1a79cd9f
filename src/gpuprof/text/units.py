# SPDX-License-Identifier: Apache-2.0
"""Numbers with units: significant digits, SI prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Units = tuple[tuple[float, str], ...]
TIMES_NS: Units = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))
BYTES: Units = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
PREFIXES: Units = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_ATTACHED = "/%×"  # what begins so has no blank before it


def significant(value: float, digits: int = 3) -> str:
    """Return so many significant digits, with an exponent only where the number is unreadable without."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # Of the rounded value: 0.9996 is 1.00.
    rounded = f"{value:.{digits - 1}e}"
    magnitude, exponent = abs(float(rounded)), int(rounded.partition("e")[2])
    if not 1e-4 <= magnitude < 1e9:
        return rounded
    return f"{value:,.{max(digits - 1 - exponent, 0)}f}"


def scaled(value: float, units: Units, digits: int = 3) -> tuple[str, str]:
    """Return a number, and the unit in which it has no more digits than these before its point."""
    rounds_up = 1 - 0.5 / 10**digits
    size, unit = next((pair for pair in units if abs(value) >= rounds_up * pair[0]), units[-1])
    return significant(value / size, digits), unit


def format_duration(duration_ns: float | None) -> str:
    """Return nanoseconds with three significant digits and a suitable unit; None is `-`."""
    return "-" if duration_ns is None else " ".join(duration_parts(duration_ns))


def duration_parts(duration_ns: float) -> tuple[str, str]:
    """Return the number and the unit of `format_duration`."""
    return (f"{duration_ns:.0f}", "ns") if abs(duration_ns) < 999.5 else scaled(duration_ns, TIMES_NS)


def format_duration_range(low_ns: float, high_ns: float) -> str:
    """Return a time from `low_ns` to `high_ns`; one number if both read alike."""
    return _range(format_duration(low_ns), format_duration(high_ns))


def format_bytes(size_bytes: float) -> str:
    """Return a size with three significant digits in decimal units."""
    return f"{size_bytes:.0f} B" if abs(size_bytes) < 999.5 else " ".join(scaled(size_bytes, BYTES))


def format_number(value: float) -> str:
    """Return a number with up to four significant digits, all digits before the point, and separators."""
    return f"{value:,.0f}" if 9_999.5 <= abs(value) < 1e15 else f"{value:,.4g}"


def format_rate(per_second: float) -> str:
    """Return a rate per second as a number with its unit."""
    return f"{format_number(per_second)}/s"


def format_count(count: int) -> str:
    """Return an integer with thousands separators."""
    return f"{count:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun; without `plural`, that is the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_missing_ranks(ranks: Sequence[int]) -> str:
    """Return that ranks are missing: their numbers in order, stretches of them by their ends."""
    places = [place for place, rank in enumerate(ranks) if not place or rank != ranks[place - 1] + 1]
    stretches = [ranks[begin:end] for begin, end in zip(places, [*places[1:], len(ranks)], strict=True)]
    words = [f"{each[0]} to {each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in stretches]
    who = f"rank {words[0]} was" if len(ranks) == 1 else f"ranks {', '.join(words)} were"
    return f"{who} not recorded, or had no steps"


def format_quantity(value: float | None) -> str:
    """Return a number with three significant digits and the prefix of its unit; None is `-`."""
    return "-" if value is None else " ".join(scaled(value, PREFIXES)).rstrip()


def format_share(share: float | None) -> str:
    """Return a fraction of 1 as a percentage; None is `-`."""
    return "-" if share is None else f"{share:.1%}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """How figures of one kind are written: significant digits or `decimals`, and the unit that suits them.

    A figure times `scale` is in the unit of size 1. Below `whole_below` it is a whole number.
    """

    units: Units = ((1, ""),)
    scale: float = 1.0
    digits: int = 4
    decimals: int | None = None
    is_signed: bool = False
    whole_below: float = 0.0

    def __call__(self, value: float) -> str:
        """Return a figure with its unit."""
        return "".join(self._parts(value))

    def interval(self, low: float | None, high: float | None) -> str:
        """Return the ends of an interval, with the unit once where it is the same; empty without an end."""
        if low is None or high is None:
            return ""
        (low_text, low_unit), (high_text, high_unit) = self._parts(low), self._parts(high)
        return f"{low_text}{'' if low_unit == high_unit else low_unit} to {high_text}{high_unit}"

    def axis(self, largest: float) -> tuple[float, str]:
        """Return what figures up to the largest are multiplied with on an axis, and their unit there."""
        size, unit = next((pair for pair in self.units if largest * self.scale >= pair[0]), self.units[-1])
        return self.scale / size, unit

    def _parts(self, value: float) -> tuple[str, str]:
        if abs(value) < self.whole_below:
            number, unit = f"{value:,.0f}", self.units[-1][1]
        elif self.decimals is not None:
            size, unit = self.units[-1]
            # What rounds to zero has no sign.
            rounded = round(value * self.scale / size, self.decimals) + 0.0
            number = f"{rounded:{'+' if self.is_signed else ''},.{self.decimals}f}"
        else:
            number, unit = scaled(value * self.scale, self.units, self.digits)
        return number, unit if unit[:1] in _ATTACHED else f" {unit}"


_LARGE_RATIO, _LARGEST_RATIO = 10, 1_000_000


def format_change(change: float, decimals: int = 1) -> str:
    """Return a relative change as a percentage with its sign, and from ten times on as a multiple."""
    if change < _LARGE_RATIO - 1:
        return f"{change:+.{decimals}%}"
    ratio = 1 + change
    return f"{ratio:,.0f}x" if ratio <= _LARGEST_RATIO else f"more than {_LARGEST_RATIO:,}x"


def format_share_range(low: float, high: float) -> str:
    """Return a part from `low` to `high` of a whole; one number if both read alike."""
    return _range(format_share(low), format_share(high))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
