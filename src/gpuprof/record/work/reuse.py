# SPDX-License-Identifier: Apache-2.0
"""How much memory was touched since an operator's data was touched last: what a cache must hold to have it.

This is the stack distance of a cache that replaces what was used least recently. With it, whoever knows the
sizes of a machine's caches knows which operator finds its data in which of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuprof.record.work.rows import Touched

# Beyond every cache; nothing further is told apart.
FARTHEST_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class Reuse:
    """Bytes that an operator reads or writes, with the cache that would hold them.

    `written` is set where they are written and were not read before: a store then may read the line first.

    `distance_bytes` is the size of all that was touched since, the bytes themselves included; None where
    they were not touched before or too long ago.
    """

    distance_bytes: int | None
    bytes: int
    written: bool


def reuse_distances(operators: Sequence[Iterable[Touched]]) -> list[list[Reuse]]:
    """Return the distances for a sequence of operators that runs again and again."""
    recent: OrderedDict[int, int] = OrderedDict()
    for touched in operators:
        _use(recent, touched)
    return [_use(recent, touched) for touched in operators]


def _use(recent: OrderedDict[int, int], touched: Iterable[Touched]) -> list[Reuse]:
    """Return the distances of one operator, then move what it touched to the front."""
    parts = list(touched)
    read = {part.key for part in parts if not part.written and part.key is not None}
    found = [
        Reuse(_distance(recent, part, parts), part.bytes, part.written and part.key not in read)
        for part in parts
    ]
    for part in parts:
        if part.key is not None:
            recent[part.key] = part.bytes
            recent.move_to_end(part.key)
    return found


def _distance(recent: OrderedDict[int, int], part: Touched, together: Sequence[Touched]) -> int | None:
    if part.key is None or part.key not in recent:
        return None
    # What the operator touches at the same time competes for the same cache.
    others = {other.key: other.bytes for other in together if other.key is not None}
    distance = sum(others.values())
    for key in reversed(recent):
        if key == part.key:
            return distance
        if key not in others:
            distance += recent[key]
        if distance > FARTHEST_BYTES:
            break
    return None
