# SPDX-License-Identifier: Apache-2.0
"""What it costs to write to memory that the system has not handed out yet, measured as operators do it."""

from __future__ import annotations

import mmap
import statistics
import time
from typing import Any

import torch

from gpuprof.record.work.observe import page_faults

# Large enough for several threads, and for the system to hand out huge pages where it does; and small
# enough that it does not.
_LARGE_BYTES = 64 << 20
_SMALL_BYTES = 3 << 19
_REPEATS = 5
_HUGE_FAULT_BYTES = 1 << 16


def page_fault_costs() -> list[dict[str, Any]]:
    """Return nanoseconds a fault, as rows of ceilings; none where the system does not tell of faults."""
    small = _cost(_SMALL_BYTES)
    large = _cost(_LARGE_BYTES)
    rows = []
    for found in (small, large):
        if found is not None:
            fault_ns, fault_bytes, spread = found
            resource = "page_fault.huge" if fault_bytes > _HUGE_FAULT_BYTES else "page_fault"
            what = f"fill of fresh memory, {fault_bytes / 1024:,.0f} KiB a fault"
            method = f"{what}, {torch.get_num_threads()} threads"
            rows.append({"resource": resource, "value": fault_ns, "spread": spread, "method": method})
    # Where both are small pages, the large array says what a large output costs.
    return list({row["resource"]: row for row in rows}.values())


def _cost(size: int) -> tuple[float, float, float] | None:
    """Return ns a fault, bytes a fault and the relative spread of the repeats."""
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
