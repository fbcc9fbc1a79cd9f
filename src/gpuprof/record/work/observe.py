# SPDX-License-Identifier: Apache-2.0
"""What an operator does to memory while the counting pass runs it: its page faults, and what it touches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gpuprof.record.work.rows import Observation, Touched
from gpuprof.record.work.sizes import Traffic, traffic_bytes


class Observer:
    """Watches one operator at a time on each thread: `begin`, `end`, `moves`, then `take`."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def begin(self) -> None:
        """Note the page faults so far. Operators use threads of their own, so all of the process count."""
        self._threads.before = page_faults()

    def end(self) -> None:
        """Note the page faults that came since `begin`."""
        before, now = self._threads.before, page_faults()
        self._threads.faults = None if before is None or now is None else now - before

    def moves(self, reads: Iterable[Traffic], writes: Iterable[Traffic]) -> None:
        """Note the memory that the operator touches."""
        self._threads.touched = (*_touched(reads, written=False), *_touched(writes, written=True))

    def take(self) -> Observation:
        """Return what was noted of the operator that ended last, and forget it."""
        state = vars(self._threads)
        return Observation(state.pop("faults", None), state.pop("touched", ()))


def page_faults() -> int | None:
    """Return the minor page faults of this process so far; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _touched(parts: Iterable[Traffic], *, written: bool) -> Iterator[Touched]:
    by_address: dict[int, list[torch.Tensor]] = {}
    for part in parts:
        address = None if isinstance(part, int) else _address(part)
        if address is None:
            yield Touched(None, traffic_bytes([part]), written)
        else:
            by_address.setdefault(address, []).append(part)
    for address, views in by_address.items():
        yield Touched(address, traffic_bytes(views), written)


def _address(tensor: Any) -> int | None:
    """Return where the memory behind a tensor begins: caches know addresses, not tensors."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None
