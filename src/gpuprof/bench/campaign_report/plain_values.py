# SPDX-License-Identifier: Apache-2.0
"""Plain values of a document, each of the kind that it must be; TypeError or ValueError says what it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Plain = Mapping[str, Any]
Value = TypeVar("Value")


def mapping(value: Any) -> Plain:
    """Return a table, empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{_shown(value)} stands where a table is expected")
    return value


def each_of(value: Any, read: Callable[[Any], Value]) -> tuple[Value, ...]:
    """Return a list with each entry read, empty for None."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{_shown(value)} stands where a list is expected")
    return tuple(read(each) for each in value)


def word(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} stands where a text is expected")
    return value


def text(value: Any) -> str | None:
    """Return a text or None."""
    return None if value is None else word(value)


def real(value: Any) -> float:
    """Return a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{_shown(value)} stands where a number is expected")
    return float(value)


def number(value: Any) -> float | None:
    """Return a number or None."""
    return None if value is None else real(value)


def whole(value: Any) -> int | None:
    """Return a whole number or None."""
    return None if value is None else int(real(value))


def count(value: Any) -> int:
    """Return a whole number."""
    return int(real(value))


def batch_size_of(value: Any) -> int:
    """Return a whole number from 1."""
    size = count(value)
    if size < 1:
        raise ValueError(f"{size} stands where a batch size is expected")
    return size


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
