# SPDX-License-Identifier: Apache-2.0
"""How much of each roof an operator uses in the time that it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.roofline.counted import CountedRow, Reuse
from gpuprof.analyze.roofline.labels import ABOVE_ROOF, Resource
from gpuprof.analyze.roofline.machine import Level, Machine

# A cache that is shared, or does not replace in strict order, holds less than its size for sure, and has
# lost for sure only what is far beyond its size.
_SURELY_HELD = 0.5
_SURELY_LOST = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a level of memory must deliver or take, and the least time that this needs."""

    level: Level
    bytes: float
    least_ns: float
    surely: float  # of the bytes, those that no nearer level can have
    source: str = ""  # "measured" by counters, or "ideal", where the run has counters


@dataclass(frozen=True, slots=True)
class Use:
    """The least times that each resource needs, in ns; None where work or ceiling is not known.

    `traffic` is of the level that the memory time is of; `unsure_bytes` the share of the bytes whose
    place in the caches is not certain. Where `peak_is_sure` is not set, nobody knows whether the operator
    could use TF32, and the peak is the better one.
    """

    compute_ns: float | None
    memory_ns: float | None
    latency_ns: float | None
    fault_ns: float | None
    peak: Ceiling | None
    traffic: Traffic | None
    unsure_bytes: float
    peak_is_sure: bool = True
    operations: float | None = None  # of the tensor cores, as measured; None: what was counted

    def shares(self, time_ns: float) -> dict[Resource, float | None]:
        """Return each of them over the time that was taken; all but the FLOPs are at most all of it."""

        def share(least_ns: float | None, most: float = float("inf")) -> float | None:
            return None if least_ns is None or time_ns <= 0 else min(most, least_ns / time_ns)

        return {
            "compute": share(self.compute_ns),
            # What was moved faster than ever measured is the roof from then on.
            "memory": share(self.memory_ns, 1.0),
            "latency": share(self.latency_ns, 1.0),
            "page faults": share(self.fault_ns, 1.0),
        }


def use_of(row: CountedRow, machine: Machine, time_ns: float, launches: float = 1) -> Use:
    """Return what an operator needs at least; on a GPU it had `launches` kernels run."""
    peak, peak_is_sure = _peak(row, machine)
    launch = machine.find("launch")
    traffic = _slowest(row, machine, time_ns)
    operations = (row.measured and row.measured.tensor_operations) or None
    compute_ns: float | None = 0.0 if row.flops == 0 else None
    if (work := operations or row.flops) and peak is not None:
        compute_ns = work / peak.value * 1e9
    memory_ns = None if traffic is None else traffic.least_ns
    if row.bytes == 0:
        memory_ns = 0.0
    return Use(
        compute_ns,
        memory_ns,
        None if launch is None else launch.value * launches,
        _fault_ns(row, machine),
        peak,
        traffic,
        0.0 if traffic is not None and traffic.source == "measured" else _unsure(row, machine),
        peak_is_sure,
        operations,
    )


# Operators that cuDNN does, which has a switch of its own.
_BY_CUDNN = ("convolution", "cudnn")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation")


def _peak(row: CountedRow, machine: Machine) -> tuple[Ceiling | None, bool]:
    """Return the peak of an operator, and whether it is sure."""
    own, shortened = machine.peak(row.dtype), machine.find("compute", "tf32")
    kind = _tf32_kind(row.operator)
    if shortened is None or kind is None or not may_use_tf32(row, machine):
        return own, True
    allowed = machine.tf32.get(kind)
    if allowed is False:
        return own, True
    better = shortened if own is None or shortened.value > own.value else own
    return better, allowed is True


def may_use_tf32(row: CountedRow, machine: Machine) -> bool:
    """Tell whether there is a switch that has an operator multiply shortened fp32 numbers."""
    return machine.is_gpu and row.dtype == "float32" and _tf32_kind(row.operator) is not None


def _tf32_kind(operator: str) -> str | None:
    name = operator.rsplit("::", maxsplit=1)[-1]
    if any(part in name for part in _BY_CUDNN):
        return "convolution"
    return "matmul" if name in _PRODUCTS or "attention" in name else None


def _slowest(row: CountedRow, machine: Machine, time_ns: float) -> Traffic | None:
    """Return the traffic of the level that needs the longest.

    Where that is longer than what was measured, the bytes did not come from there: a nearer level had
    them, unless they are far more than it holds.
    """
    found = [traffic for traffic in _levels(row, machine) if traffic.bytes > 0]
    possible = [
        traffic
        for traffic in found
        if traffic.least_ns <= ABOVE_ROOF * time_ns or traffic.surely >= traffic.bytes / 2
    ]
    if possible:
        return max(possible, key=lambda traffic: traffic.least_ns)
    return min(found, key=lambda traffic: traffic.least_ns, default=None)


def _levels(row: CountedRow, machine: Machine) -> Iterable[Traffic]:
    nearer = 0
    for level in machine.levels:
        write_traffic = machine.write_traffic if level.holds_bytes is None else 1.0
        moved = _beyond(row, nearer, write_traffic)
        surely = _beyond(row, _SURELY_LOST * nearer, write_traffic, lost_bytes=nearer) if nearer else moved
        source = "" if row.measured is None else "ideal"
        if level.holds_bytes is None and row.measured is not None and row.measured.dram_bytes is not None:
            moved = surely = row.measured.dram_bytes
            source = "measured"
        yield Traffic(level, moved, moved / level.ceiling.value * 1e9, surely, source)
        nearer = level.holds_bytes or nearer


def _beyond(row: CountedRow, held_bytes: int, write_traffic: float, lost_bytes: int = 0) -> float:
    """Return the bytes that a cache of that size does not have, and so what the level behind it moves.

    What was touched in no pass before counts if it is more than `lost_bytes` at once.
    """
    if not row.reuse:
        return float(row.bytes or 0) if (row.bytes or 0) > held_bytes else 0.0
    return sum(
        part.bytes * (write_traffic if part.written else 1.0)
        for part in row.reuse
        if held_bytes == 0 or _is_beyond(part, held_bytes, lost_bytes)
    )


def _is_beyond(part: Reuse, held_bytes: int, lost_bytes: int) -> bool:
    if part.distance_bytes is None:
        return part.bytes > lost_bytes
    return part.distance_bytes > held_bytes


def _unsure(row: CountedRow, machine: Machine) -> float:
    """Return the share of bytes that nearly fill the last cache: they may be in it or not."""
    held = [level.holds_bytes for level in machine.levels if level.holds_bytes is not None]
    total = sum(part.bytes for part in row.reuse)
    if not held or not total:
        return 0.0
    near = (
        part.bytes
        for part in row.reuse
        if part.distance_bytes is not None and _SURELY_HELD * held[-1] < part.distance_bytes <= 2 * held[-1]
    )
    return sum(near) / total


def _fault_ns(row: CountedRow, machine: Machine) -> float | None:
    if row.page_faults is None or machine.is_gpu:
        return None
    if row.page_faults == 0:
        return 0.0
    written = sum(part.bytes for part in row.reuse if part.written)
    cost = machine.fault_ns(written / row.page_faults)
    return None if cost is None else row.page_faults * cost
