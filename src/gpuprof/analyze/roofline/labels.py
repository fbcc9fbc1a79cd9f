# SPDX-License-Identifier: Apache-2.0
"""From how much of each roof is used to what binds, with how sure that is. Knows numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprof.record.work.rows import Exactness

Bound = Literal[
    "compute", "memory", "latency", "launch", "page faults", "balanced", "under-utilised", "unknown"
]
Resource = Literal["compute", "memory", "latency", "page faults"]

BOUND_FROM = 0.6
AHEAD_OF_NEXT = 1.25
# Above this a roof is not one: what was counted or what was measured is wrong.
ABOVE_ROOF = 1.05
# So far above it that the timed calls cannot have done the work that was counted.
IMPOSSIBLE = 1.5

_EXACTNESS: dict[Exactness, float] = {"exact": 1.0, "estimated": 0.9, "unknown": 0.5}
_SINGLE_CALL = 0.8


@dataclass(frozen=True, slots=True)
class Label:
    """What binds. `nearest` is the resource of the largest share `used`, `next` that of the second largest.

    `margin` is how far the numbers are from another label: 1 on the border, 2 where they could halve.
    """

    bound: Bound
    nearest: Resource | None
    used: float | None
    next: Resource | None
    next_used: float | None
    margin: float


def label(shares: dict[Resource, float | None]) -> Label:
    """Label the shares of roofs that an operator uses; None is a share that is not known.

    The class is the largest when it is at least 0.6 and at least 1.25 times the next. Where it is at
    least 0.6 and closer than that, the two are balanced. Below 0.6 nothing binds. Above 1.5 the timed calls
    did other work than what was counted, and nothing is known.
    """
    known: list[tuple[float, Resource]] = sorted(
        ((share, resource) for resource, share in shares.items() if share is not None),
        key=lambda pair: -pair[0],
    )
    if not known or known[0][0] <= 0:
        return Label("unknown", None, None, None, None, 0.0)
    used, nearest = known[0]
    next_used, second = known[1] if len(known) > 1 else (0.0, None)
    apart = used / (AHEAD_OF_NEXT * next_used) if next_used > 0 else float("inf")
    if used > IMPOSSIBLE and nearest != "latency":
        return Label("unknown", nearest, used, second, next_used, 0.0)
    over = used / BOUND_FROM
    if over < 1:
        # With a part of the roofs unknown, one of these may be what binds.
        return Label("under-utilised", nearest, used, second, next_used, 1 / over)
    if apart >= 1:
        return Label(nearest, nearest, used, second, next_used, min(over, apart))
    return Label("balanced", nearest, used, second, next_used, min(over, 1 / apart))


@dataclass(frozen=True, slots=True)
class Doubts:
    """What a label's confidence is made of, besides its margin.

    Spreads are relative; `drift` is the change of the ceiling around the recording; `join` is the share of
    the timed operators nearby that found their counted partner; `exactness` is that of the count.
    """

    exactness: Exactness = "exact"
    ceiling_spread: float = 0.0
    drift: float = 0.0
    timing_spread: float | None = 0.0
    join: float = 1.0
    unsure_bytes: float = 0.0


def confidence(found: Label, doubts: Doubts) -> float:
    """Return 0 to 1: the product of what the margin and each doubt leave."""
    if found.bound == "unknown" or found.used is None:
        return 0.0
    timing = _SINGLE_CALL if doubts.timing_spread is None else 1 / (1 + doubts.timing_spread)
    impossible = min(1.0, (ABOVE_ROOF / found.used) ** 2) if found.nearest != "latency" else 1.0
    unsure = 1 - doubts.unsure_bytes / 2 if "memory" in (found.nearest, found.next) else 1.0
    return (
        min(1.0, found.margin / 2 + 0.25)
        * _EXACTNESS[doubts.exactness]
        / (1 + doubts.ceiling_spread / 2)
        / (1 + abs(doubts.drift))
        * timing
        * doubts.join
        * impossible
        * unsure
    )
