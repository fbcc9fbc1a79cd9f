# SPDX-License-Identifier: Apache-2.0
"""How throughput grows with the batch, and the largest batch that a limit allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

SATURATED = 0.9
FEWEST_SIZES = 3  # for a saturation point
NEIGHBOURS = 2
LARGEST_BATCH = 1 << 20

# Whether a batch size may be used: "ok", over the latency's target, "open" where its interval lies on both
# sides of that, beyond the memory, or not to be measured at all.
ProbeOutcome = Literal["ok", "missed", "open", "does not fit", "failed"]
_ENDS: tuple[ProbeOutcome, ...] = ("does not fit", "failed")


def saturation_point(throughput_of: dict[int, float]) -> int | None:
    """Return the smallest batch size that reaches 90% of the best throughput.

    None for under FEWEST_SIZES sizes, and where that is the largest one: throughput may continue to grow.
    """
    if len(throughput_of) < FEWEST_SIZES:
        return None
    best = max(throughput_of.values())
    found = min(size for size, throughput in throughput_of.items() if throughput >= SATURATED * best)
    return found if found < max(throughput_of) else None


@dataclass(slots=True)
class LargestBatch:
    """What a search for the largest batch found: None where not even one sample is allowed.

    `why` is the reason against the next larger size that was tried; `outcomes` all that were. A size whose
    outcome is open is not allowed, and may be: the largest one may be larger than `batch_size`.
    """

    batch_size: int | None
    why: ProbeOutcome | None
    outcomes: dict[int, ProbeOutcome] = field(default_factory=dict)

    @property
    def open_sizes(self) -> list[int]:
        """The larger sizes of which it is not known whether they meet the target."""
        above = self.batch_size or 0
        return [size for size, outcome in self.outcomes.items() if outcome == "open" and size > above]


def largest_batch(probe: Callable[[int], ProbeOutcome], *, most: int = LARGEST_BATCH) -> LargestBatch:
    """Search the largest batch size that `probe` allows.

    Latency is not monotone in the batch size: a size that suits the hardware may be faster than a smaller.
    So sizes are doubled until one fails and the next multiple fails too, or memory ends; then the gap is
    halved; then the neighbors above the best one, and the next multiples of 8, are tried.
    """
    outcomes: dict[int, ProbeOutcome] = {}

    def allowed(size: int) -> bool:
        if size not in outcomes:
            outcomes[size] = probe(size)
        return outcomes[size] == "ok"

    best, failed = _bracket(allowed, outcomes, most)
    if failed is not None:
        while failed - best > 1:
            middle = (best + failed) // 2
            best, failed = (middle, failed) if allowed(middle) else (best, middle)
        end = min([most + 1, *(size for size, outcome in outcomes.items() if outcome in _ENDS)])
        next_eight = (best // 8 + 1) * 8
        for size in sorted({*range(best + 1, best + 1 + NEIGHBOURS), next_eight, next_eight + 8}):
            if size < end and allowed(size):
                best = size
    above = [size for size in outcomes if size > best and outcomes[size] != "ok"]
    why = outcomes[min(above)] if above else None
    return LargestBatch(best or None, why, dict(sorted(outcomes.items())))


def _bracket(
    allowed: Callable[[int], bool], outcomes: dict[int, ProbeOutcome], most: int
) -> tuple[int, int | None]:
    """Double from 1; returns the last size that is allowed (0 for none) and the first that is not."""
    best, failed, size = 0, None, 1
    while size <= most:
        if allowed(size):
            best, failed = size, None
        elif outcomes[size] in _ENDS or failed is not None:
            return best, failed or size
        else:
            failed = size
        size *= 2
    return best, failed
