# SPDX-License-Identifier: Apache-2.0
"""Which calls of a root do the same work as its first one, which was counted.

A recording knows no shapes, but a model that is trained on batches and then generates token by token takes
times that lie apart. So calls are told apart by their durations.
"""

from __future__ import annotations

from collections.abc import Sequence

# Durations that are further apart than both of these, with none in between, are of different work.
_APART = 2.0
_APART_NS = 1e6
# The first call also compiles, allocates and reads: it may take this much longer than its like.
_WARM_UP = 8.0
_WARM_UP_NS = 50e6


def similar_to_first(durations: Sequence[float]) -> list[bool]:
    """Tell for each call whether it does what the first did, as far as durations (in ns) show it.

    Those do that can be reached from the first without a step of more than two times and 1 ms. Where it
    stands alone, and the next faster ones are at most eight times or 50 ms faster, it is taken for a warm-up
    of those.
    """
    if not durations:
        return []
    groups: list[list[int]] = []
    for call in sorted(range(len(durations)), key=lambda call: durations[call]):
        if groups and not _are_apart(durations[groups[-1][-1]], durations[call]):
            groups[-1].append(call)
        else:
            groups.append([call])
    at = next(number for number, group in enumerate(groups) if 0 in group)
    chosen = set(groups[at])
    if chosen == {0} and at > 0:
        faster = durations[groups[at - 1][-1]]
        if durations[0] <= max(_WARM_UP * faster, faster + _WARM_UP_NS):
            chosen.update(groups[at - 1])
    return [call in chosen for call in range(len(durations))]


def _are_apart(faster: float, slower: float) -> bool:
    return slower > max(_APART * faster, faster + _APART_NS)
