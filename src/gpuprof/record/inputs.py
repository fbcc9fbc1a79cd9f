# SPDX-License-Identifier: Apache-2.0
"""Whether a call of a root was given inputs like those of its first call, noted for each call in order."""

from __future__ import annotations

import threading
from typing import Any

# Of a program with more calls than these the durations have to tell.
MOST_CALLS = 1_000_000
# Changes from alike to not alike and back: what they take in memory and in the run.
MOST_CHANGES = 10_000
_MOST_ITEMS = 64
_LONGEST_TEXT = 80

Signature = object


def signature_of(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return what of its arguments decides how much work a call is: shapes, types and switches."""
    return tuple(_sign(torch, each) for each in args), tuple(
        (name, _sign(torch, each)) for name, each in sorted(kwargs.items())
    )


def _sign(torch: Any, value: Any, depth: int = 0) -> Signature:
    if isinstance(value, torch.Tensor):
        # A size that is a symbol must not be compared: that would bind it.
        sizes = tuple(size if type(size) is int else type(size) for size in value.shape)
        return sizes, value.dtype, value.device.type
    # Numbers are left out: a step's index or a learning rate would make every call another one.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if depth < 4 and type(value) in (list, tuple):
        return type(value), len(value), tuple(_sign(torch, each, depth + 1) for each in value[:_MOST_ITEMS])
    if depth < 4 and type(value) is dict:
        first = list(value.items())[:_MOST_ITEMS]
        return dict, len(value), tuple((str(key), _sign(torch, each, depth + 1)) for key, each in first)
    return type(value)


class CallsGiven:
    """For each root and thread the numbers of calls that were alike, then not, then alike again..."""

    def __init__(self) -> None:
        self._first: dict[str, Signature] = {}
        self._stretches: dict[tuple[str, int], list[int]] = {}
        self._calls = 0
        self._changes = 0

    def note(self, root: str, signature: Signature) -> bool:
        """Note a call of the calling thread, in order. Returns whether more can be noted."""
        if self._calls >= MOST_CALLS or self._changes >= MOST_CHANGES:
            return False
        self._calls += 1
        is_alike = self._first.setdefault(root, signature) == signature
        stretches = self._stretches.setdefault((root, threading.get_native_id()), [0])
        if is_alike != (len(stretches) % 2 == 1):
            stretches.append(0)
            self._changes += 1
        stretches[-1] += 1
        return True

    def as_rows(self) -> list[dict[str, Any]]:
        """Return a row for each root and thread, as plain data."""
        return [
            {"root": root, "thread_id": thread, "stretches": stretches}
            for (root, thread), stretches in self._stretches.items()
        ]
