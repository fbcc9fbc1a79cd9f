# SPDX-License-Identifier: Apache-2.0
"""Numbers with units: three significant digits, SI prefixes."""

from __future__ import annotations

_TIME_UNITS = ((1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s"))
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_duration(duration_ns: float | None) -> str:
    """Return nanoseconds with three significant digits and a suitable unit; None is `-`."""
    if duration_ns is None:
        return "-"
    for size, unit in _TIME_UNITS:
        # Compared after rounding, so that 999.9996 us reads "1.00 ms" and not "1000 us".
        if abs(duration_ns) / size < 999.5 or unit == "s":
            value = duration_ns / size
            break
    return f"{_three_digits(value) if size > 1 else format(value, '.0f')} {unit}"


def format_bytes(size_bytes: float) -> str:
    """Return a size with three significant digits in decimal units."""
    value, unit = float(size_bytes), 0
    while abs(value) >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1_000, unit + 1
    return f"{_three_digits(value) if unit else format(value, '.0f')} {_BYTE_UNITS[unit]}"


def format_count(count: int) -> str:
    """Return an integer with thousands separators."""
    return f"{count:,}"


def format_quantity(value: float | None) -> str:
    """Return a number with three significant digits and the prefix of its unit; None is `-`."""
    if value is None:
        return "-"
    size, prefix = next((pair for pair in _PREFIXES if value >= 0.9995 * pair[0]), (1, ""))
    return f"{_three_digits(value / size)} {prefix}".rstrip() if value else "0"


def format_share(share: float | None) -> str:
    """Return a fraction of 1 as a percentage; None is `-`."""
    return "-" if share is None else f"{share:.1%}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
