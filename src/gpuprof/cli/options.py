# SPDX-License-Identifier: Apache-2.0
"""Values of options that several commands read alike."""

from __future__ import annotations

import click

_MOST_DIGITS = 12  # Python itself refuses to read some thousands


def numbers(_context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read 1,8,32; `auto` is an empty tuple."""
    if value is None:
        return None
    if value == "auto" and parameter.name == "batch_sizes":
        return ()
    words = [word.strip() for word in value.replace("x", ",").split(",")]
    if not all(
        word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) for word in words
    ):
        raise click.BadParameter(f"{value!r} is no list of whole numbers from 1, such as 1,8.")
    return tuple(map(int, words))


def seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse what is no time."""
    # Comparing lets what is no number through.
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is no time: take seconds above 0, such as 600.")
    return value


def share(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Read 2% or 0.02 as a share."""
    text = value.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no share: write 2% or 0.02.") from None
    if 1 <= share < 100 and not text.endswith("%"):
        raise click.BadParameter(f"{value!r} is no share: write {text}% or {share / 100:g}.")
    if not 0 <= share < 1:
        raise click.BadParameter(f"{value!r} is not between 0% and 100%.")
    return share
