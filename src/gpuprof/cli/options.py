# SPDX-License-Identifier: Apache-2.0
"""Parsers of option values that several commands use."""

from __future__ import annotations

import click

_MOST_DIGITS = 12  # Python refuses a number of several thousand digits


def numbers(_context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse 1,8,32; `auto` is an empty tuple."""
    if value is None:
        return None
    if value == "auto" and parameter.name == "batch_sizes":
        return ()
    words = [word.strip() for word in value.replace("x", ",").split(",")]
    if not all(
        word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) for word in words
    ):
        raise click.BadParameter(f"{value!r} is not a list of positive integers; hint: write 1,8.")
    return tuple(map(int, words))


def seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse a value that is not a positive, finite time."""
    # A comparison with NaN is false.
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a time; hint: write seconds above 0, such as 600.")
    return value


def fraction(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Parse 2% or 0.02 as a fraction."""
    text = value.strip()
    try:
        value_read = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a fraction; hint: write 2% or 0.02.") from None
    if 1 <= value_read < 100 and not text.endswith("%"):
        raise click.BadParameter(f"{value!r} is not a fraction; hint: write {text}% or {value_read / 100:g}.")
    if not 0 <= value_read < 1:
        raise click.BadParameter(f"{value!r} is not between 0% and 100%.")
    return value_read
