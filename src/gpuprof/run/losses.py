# SPDX-License-Identifier: Apache-2.0
"""What is missing from a run, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuprof.run.gpu_losses import gpu_losses

# What `totals` of meta.json counts: the thing and what became of it. The first two are lost data, the others
# spans of uncertain length.
_COUNTED = {
    "dropped_events": ("event", "dropped"),
    "damaged_events": ("event", "damaged"),
    "unmatched_ends": ("end", "without a beginning"),
    "unfinished_spans": ("span", "cut off at the end"),
}
# Damage of a segment that costs no events.
_HARMLESS = ("its last clock point", "a copy of a segment")
_MISSING = re.compile(r"process \d+: (\d+) segments? (?:is|are) missing")
_UNKNOWN = "what other processes lost is not known"


def losses(meta: Mapping[str, Any]) -> list[str]:
    """Return a few words for each thing that a run says is missing; an empty list where it says of none."""
    totals = meta.get("totals") or {}
    damage = [str(line) for line in meta.get("damage") or ()]
    lost = [_counted(totals[key], *words) for key, words in _COUNTED.items() if totals.get(key)]
    lost += gpu_losses(meta.get("gpu"))
    # Nobody can tell how many events, or which names.
    if segments := _damaged(damage, ".segment"):
        lost.append(f"events of {_counted(segments, 'damaged segment')}")
    if segments := sum(int(found[1]) for found in map(_MISSING.match, damage) if found):
        lost.append(f"events of {_counted(segments, 'missing segment')}")
    if any(line.endswith(_UNKNOWN) for line in damage):
        lost.append("what processes lost that found no room")
    if processes := _damaged(damage, ".names"):
        lost.append(f"names of {_counted(processes, 'process', plural='processes')}")
    return lost


def not_imported_text(meta: Mapping[str, Any]) -> str | None:
    """Return in one line what an imported run leaves out of its trace; None where that is nothing."""
    listed = [
        _counted(int(each["events"]), *_NOT_IMPORTED.get(str(each["kind"]), ("event", "of {}"))).format(
            each["name"]
        )
        for each in meta.get("not_imported") or ()
    ]
    return ", ".join(listed) or None


_NOT_IMPORTED = {
    "table": ("row", "of {}"),
    "nvtx event type": ("NVTX event", "of type {}"),
    "category": ("event", "of category {}"),
    "phase": ("event", "of phase {}"),
    "unknown device category": ("event", "on devices of the unknown category {}"),
    "forwarded operator": ("operator", "that only forwarded to {}"),
}


def _damaged(damage: Sequence[str], ending: str) -> int:
    """Return how many files of this kind something is missing from."""
    found = (line.partition(f"{ending}: ") for line in damage)
    return len({path for path, _, what in found if what and not what.startswith(_HARMLESS)})


def _counted(count: int, what: str, fate: str = "", plural: str = "") -> str:
    return f"{count:,} {what if count == 1 else plural or what + 's'} {fate}".rstrip()
