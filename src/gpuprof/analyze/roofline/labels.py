# SPDX-License-Identifier: Apache-2.0
"""From the utilization of each resource to the bottleneck, and the confidence in it. Knows numbers only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from gpuprof.record.work.rows import Exactness

if TYPE_CHECKING:
    from gpuprof.analyze.roofline.device_activity import HostDelay


class Code(str, Enum):
    """A fact that is one of a few; its text is its value (`enum.StrEnum` of Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, format_spec: str) -> str:
        return format(str(self.value), format_spec)


class Resource(Code):
    """What an operator can use up."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"
    PAGE_FAULTS = "page faults"


class Bound(Code):
    """The bottleneck of an operator, or why it has none; in the order of legends."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"
    PAGE_FAULTS = "page faults"
    NO_DOMINANT = "no dominant bottleneck"
    UNDERUTILIZED = "underutilized"
    UNKNOWN = "unknown"
    LAUNCH = "launch"


BOUND_FROM = 0.6
AHEAD_OF_NEXT = 1.25
# Above this the count or the ceiling is wrong.
ABOVE_CEILING = 1.05
# Above this the timed calls cannot have done the counted work.
IMPOSSIBLE = 1.5

_EXACTNESS: dict[Exactness, float] = {"exact": 1.0, "estimated": 0.9, "unknown": 0.5}
_SINGLE_CALL = 0.8


@dataclass(frozen=True, slots=True)
class Label:
    """The bottleneck. `nearest` is the resource with the largest utilization `used`, `next` the second.

    `margin` is how far the numbers are from another label: 1 on the border, 2 where they could halve.
    """

    bound: Bound
    nearest: Resource | None
    used: float | None
    next: Resource | None
    next_used: float | None
    margin: float


class LabeledCalls(Protocol):
    """What a rule can use of the calls of an operator, a kernel or a layer, besides their utilization."""

    @property
    def count(self) -> int:
        """The number of calls."""

    @property
    def time_ns(self) -> float:
        """The median time of a call."""

    @property
    def total_ns(self) -> int:
        """The time of all calls."""

    @property
    def delay(self) -> HostDelay | None:
        """How often the GPU waited for the host before them; None on the host."""


def label(shares: dict[Resource, float | None], calls: LabeledCalls | None = None) -> Label:
    """Label an operator, a kernel or a layer by its utilization of each resource, then by its calls.

    None is an unknown utilization; without `calls`, only the utilization counts.
    """
    found = _by_utilization(shares)
    if calls is None:
        return found
    if found.bound == Bound.LATENCY and calls.delay is not None and calls.delay.is_usual:
        # Besides doing next to nothing, the GPU waited for the host.
        return replace(found, bound=Bound.LAUNCH)
    return found


def _by_utilization(shares: dict[Resource, float | None]) -> Label:
    """Label by the utilization of each resource.

    The bottleneck is the largest utilization when it is at least 0.6 and at least 1.25 times the next. At
    least 0.6 and closer than that: no dominant bottleneck. Below 0.6: underutilized. Above 1.5 the timed
    calls did other work than was counted: unknown.
    """
    known: list[tuple[float, Resource]] = sorted(
        ((share, resource) for resource, share in shares.items() if share is not None),
        key=lambda pair: -pair[0],
    )
    if not known or known[0][0] <= 0:
        return Label(Bound.UNKNOWN, None, None, None, None, 0.0)
    used, nearest = known[0]
    next_used, second = known[1] if len(known) > 1 else (0.0, None)
    apart = used / (AHEAD_OF_NEXT * next_used) if next_used > 0 else float("inf")
    if used > IMPOSSIBLE and nearest != Resource.LATENCY:
        return Label(Bound.UNKNOWN, nearest, used, second, next_used, 0.0)
    over = used / BOUND_FROM
    if over < 1:
        # With an unknown utilization, that resource may be the bottleneck.
        return Label(Bound.UNDERUTILIZED, nearest, used, second, next_used, 1 / over)
    if apart >= 1:
        return Label(Bound(nearest), nearest, used, second, next_used, min(over, apart))
    return Label(Bound.NO_DOMINANT, nearest, used, second, next_used, min(over, 1 / apart))


@dataclass(frozen=True, slots=True)
class Doubts:
    """The factors of a label's confidence besides its margin.

    Uncertainties are relative; `drift` is the change of the ceiling around the recording; `join` is the part
    of the timed operators nearby that were matched with counted ones; `exactness` is that of the count.
    """

    exactness: Exactness = "exact"
    ceiling_uncertainty: float = 0.0
    drift: float = 0.0
    timing_spread: float | None = 0.0
    join: float = 1.0
    uncertain_bytes: float = 0.0


def confidence(found: Label, doubts: Doubts) -> float:
    """Return 0 to 1: the product of the factors of the margin and of each doubt."""
    if found.bound == Bound.UNKNOWN or found.used is None:
        return 0.0
    timing = _SINGLE_CALL if doubts.timing_spread is None else 1 / (1 + doubts.timing_spread)
    impossible = min(1.0, (ABOVE_CEILING / found.used) ** 2) if found.nearest != Resource.LATENCY else 1.0
    uncertain = 1 - doubts.uncertain_bytes / 2 if Resource.MEMORY in (found.nearest, found.next) else 1.0
    return (
        min(1.0, found.margin / 2 + 0.25)
        * _EXACTNESS[doubts.exactness]
        / (1 + doubts.ceiling_uncertainty / 2)
        / (1 + abs(doubts.drift))
        * timing
        * doubts.join
        * impossible
        * uncertain
    )
