# SPDX-License-Identifier: Apache-2.0
"""Waits of items for each other, in the columns of the native replay."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.whatif.intervals import Ints


class WaitsFor(enum.IntEnum):
    """Which time of an item is no earlier than which time of another one, as in csrc/analysis/replay.hpp."""

    START_AFTER_START = 0
    START_AFTER_END = 1
    END_AFTER_END = 2


@dataclass(slots=True)
class ItemWaits:
    """Waits of items for each other, in any order."""

    item: list[Ints] = field(default_factory=list)
    on: list[Ints] = field(default_factory=list)
    kind: list[Ints] = field(default_factory=list)
    lag_ns: list[Ints] = field(default_factory=list)

    def add(self, item: Any, on: Any, kind: WaitsFor, lag_ns: Any = 0) -> None:
        """Add waits of one kind: of one item, or columns."""
        item, on, lag_ns = (np.atleast_1d(np.asarray(each, dtype=np.int64)) for each in (item, on, lag_ns))
        self.item.append(item)
        self.on.append(on)
        self.kind.append(np.full(len(item), kind, dtype=np.int64))
        self.lag_ns.append(np.broadcast_to(lag_ns, item.shape))

    def columns(self, count: int) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that the replay reads; `count` items."""
        empty = [np.zeros(0, dtype=np.int64)]
        item, on, kind, lag = (
            np.concatenate([*each, *empty]) for each in (self.item, self.on, self.kind, self.lag_ns)
        )
        order = np.argsort(item, kind="stable")
        begin = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(item, minlength=count), out=begin[1:])
        return {
            "wait_begin": begin,
            "wait_item": on[order],
            "wait_kind": kind[order].astype(np.uint8),
            "wait_lag_ns": lag[order],
        }
