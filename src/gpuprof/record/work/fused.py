# SPDX-License-Identifier: Apache-2.0
"""A compiled layer as one node: its operators are fused, so none of them can be timed by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpuprof.record.work.rows import Observation, OperatorWork

FORWARD, BACKWARD = "(compiled)", "CompiledFunctionBackward"


class Region:
    """Adds up the FLOPs of a region, and finds the bytes that must come in from outside of it.

    Bytes are those that are read before the region wrote them, each piece of memory once, and those that
    its last operator writes: the least that any fusion can do with.
    """

    def __init__(self) -> None:
        self._flops: list[int | None] = []
        self._by_dtype: Counter[str | None] = Counter()
        self._made: set[int] = set()
        self._came_in: dict[int, int] = {}
        self._without_address = 0
        self._last_written = 0

    def add(self, row: OperatorWork, observation: Observation) -> None:
        """Add the next operator."""
        self._flops.append(row.flops)
        self._by_dtype[row.dtype] += row.flops or 0
        written = [part for part in observation.touched if part.written]
        for part in observation.touched:
            if part.written:
                continue
            if part.key is None:
                self._without_address += part.bytes
            elif part.key not in self._made:
                self._came_in[part.key] = max(part.bytes, self._came_in.get(part.key, 0))
        self._made.update(part.key for part in written if part.key is not None)
        if written:
            self._last_written = sum(part.bytes for part in written)

    def row(self, root: str, layer: str, phase: str) -> dict[str, Any]:
        """Return the region as a row of the table `work`."""
        known = [flops for flops in self._flops if flops is not None]
        complete = len(known) == len(self._flops)
        moved = sum(self._came_in.values()) + self._without_address + self._last_written
        return {
            "root": root,
            "layer": layer,
            "ordinal": 0,
            "operator": BACKWARD if phase == "backward" else FORWARD,
            "overload": "",
            "phase": phase,
            "flops": sum(known) if complete else None,
            "bytes": moved or None,
            "exactness": "estimated" if complete else "unknown",
            "dtype": self._by_dtype.most_common(1)[0][0],
            "input_shapes": "",
            "page_faults": None,
            "reuse_distance_bytes": [None],
            "reuse_bytes": [moved],
            "reuse_written": [False],
            "compiled": layer,
        }
