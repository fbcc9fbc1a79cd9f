# SPDX-License-Identifier: Apache-2.0
"""Which calls of a root do the same work as its first one, which was counted.

A recording knows no shapes, but a model that is trained on batches and then generates token by token takes
times that lie apart. So calls are told apart by their durations.
"""

from __future__ import annotations

from collections.abc import Sequence

# Durations that are further apart than this, with none in between, are of different work.
_APART = 2.0
# The first call also compiles, allocates and reads: it may take this much longer than its like.
_WARM_UP = 8.0
_WARM_UP_NS = 50e6


def similar_to_first(durations: Sequence[float]) -> list[bool]:
    """Tell for each call whether it does what the first did, as far as durations (in ns) show it.

    Those count that can be reached from the first without a step of more than two times. Where it stands
    alone, and the next faster ones are at most eight times or 50 ms faster, it is taken for a warm-up: they
    count, and it does not.
    """
    if not durations:
        return []
    groups: list[list[int]] = []
    order = sorted(range(len(durations)), key=lambda call: durations[call])
    for call in order:
        if groups and durations[call] <= _APART * max(durations[groups[-1][-1]], 1e-9):
            groups[-1].append(call)
        else:
            groups.append([call])
    at = next(number for number, group in enumerate(groups) if 0 in group)
    if groups[at] == [0] and at > 0:
        next_faster = durations[groups[at - 1][-1]]
        if durations[0] <= max(_WARM_UP * next_faster, next_faster + _WARM_UP_NS):
            at -= 1
    chosen = set(groups[at])
    return [call in chosen for call in range(len(durations))]
