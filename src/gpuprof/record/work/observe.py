# SPDX-License-Identifier: Apache-2.0
"""What an operator does to memory while the counting pass runs it: its page faults, and what it touches.

Of what it touches, the reuse distance is kept: how much memory was touched since the same data was touched
last, which is what a cache must hold to have it. This is the stack distance of a cache that replaces what was
used least recently. With the sizes of a machine's caches it shows which operator finds its data in which.
"""

from __future__ import annotations

import mmap
import statistics
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from gpuprof.record.work.rows import Observation, Reuse, Touched
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
        """Return what was recorded of the operator that ended last, and forget it."""
        state = vars(self._threads)
        return Observation(state.pop("faults", None), state.pop("touched", ()))


def page_faults() -> int | None:
    """Return the minor page faults of this process so far; None where the system does not report them."""
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
    """Return where the memory of a tensor begins: caches know addresses, not tensors."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None


# ---- the cost of page faults -----------------------------------------------------------------

# Large enough for several threads, and for the system to hand out huge pages where it does; and small
# enough that it does not.
_LARGE_BYTES = 64 << 20
_SMALL_BYTES = 3 << 19
_REPEATS = 5
_HUGE_FAULT_BYTES = 1 << 16


def page_fault_costs() -> list[dict[str, Any]]:
    """Return nanoseconds a fault, as rows of ceilings; none where the system does not report faults."""
    rows = []
    for found in (_cost(_SMALL_BYTES), _cost(_LARGE_BYTES)):
        if found is not None:
            fault_ns, fault_bytes, spread = found
            resource = "page_fault.huge" if fault_bytes > _HUGE_FAULT_BYTES else "page_fault"
            what = f"fill of fresh memory, {fault_bytes / 1024:,.0f} KiB a fault"
            method = f"{what}, {torch.get_num_threads()} threads"
            rows.append({"resource": resource, "value": fault_ns, "spread": spread, "method": method})
    # Where both are small pages, the large array shows the cost of a large output.
    return list({row["resource"]: row for row in rows}.values())


def _cost(size: int) -> tuple[float, float, float] | None:
    """Return ns a fault, bytes a fault and the relative IQR of the repeats."""
    costs, sizes = [], []
    for _ in range(_REPEATS):
        fresh = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        before = page_faults()
        first_ns = _fill_ns(fresh)
        faults = (page_faults() or 0) - (before or 0)
        again_ns = min(_fill_ns(fresh) for _ in range(2))
        if faults > 0 and first_ns > again_ns:
            costs.append((first_ns - again_ns) / faults)
            sizes.append(size / faults)
    if len(costs) < 3:
        return None
    quartiles = statistics.quantiles(costs, n=4, method="inclusive")
    median = statistics.median(costs)
    # The least, as for every ceiling: a fault can be disturbed, not flattered.
    return min(costs), statistics.median(sizes), (quartiles[2] - quartiles[0]) / median


def _fill_ns(tensor: torch.Tensor) -> int:
    start_ns = time.perf_counter_ns()
    tensor.fill_(1)
    return time.perf_counter_ns() - start_ns


# ---- reuse -----------------------------------------------------------------------------------

# Beyond every cache; larger distances are not distinguished.
FARTHEST_BYTES = 1 << 32


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
