# SPDX-License-Identifier: Apache-2.0
"""What to try for a finding, from its own figures, as values. The sentences are in text.py."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.labels import Bound, Code, Label, Resource
from gpuprof.analyze.roofline.utilization import DRAM, Machine, Utilization, may_use_tf32

# A faster type is worth a sentence from here on.
_WORTH_CHANGING = 1.5
# A third of the time is worth a sentence even where it is not the bottleneck.
_WORTH_SAVING = 1 / 3
# This close to the rate of PyTorch's own product, a larger or better laid out one gains little.
_AS_GOOD_AS_LIBRARY = 0.8
_PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "linear",
    "addmv",
    "mv",
    "_addmm_activation",
)


class Fix(Code):
    """What to try."""

    PREALLOCATE = "preallocate"
    FUSE_OR_BATCH_CALLS = "fuse or batch calls"
    CUDA_GRAPH = "CUDA graph"
    BATCH_ROWS = "batch rows"
    FUSE_WITH_PREVIOUS = "fuse with previous"
    HALVE_BYTES = "halve bytes"
    LARGER_PRODUCT = "larger product"
    CHANNELS_LAST = "channels last"
    ALLOW_TF32 = "allow TF32"
    FASTER_TYPE = "faster type"


@dataclass(frozen=True, slots=True)
class Advice:
    """A fix with the figures that suggest it; None where a fix has no use for one.

    Times and bytes are those of a call; `limit_ns` the cost of its page faults or empty dispatches. `rows` is
    the factor of a larger batch, `intensity` and `ridge` are in FLOPs a byte, rates in operations a second of
    `dtype`, `speedup` the factor of a faster type.
    """

    fix: Fix
    time_ns: float | None = None
    limit_ns: float | None = None
    bytes: float | None = None
    level: str | None = None
    previous: str | None = None
    intensity: float | None = None
    ridge: float | None = None
    rows: int | None = None
    per_s: float | None = None
    library_per_s: float | None = None
    dtype: str | None = None
    speedup: float | None = None

    @property
    def key(self) -> Hashable:
        """What makes two pieces of advice the same for a reader."""
        return self.fix, self.rows


def advice(
    found: Label,
    row: CountedRow,
    use: Utilization,
    machine: Machine,
    *,
    time_ns: float,
    previous: CountedRow | None,
) -> Advice | None:
    """Return what to try, or None where the figures suggest nothing."""
    nearest = found.nearest
    if nearest in (Resource.PAGE_FAULTS, Resource.LATENCY) and (found.used or 0) < _WORTH_SAVING:
        return None
    if nearest == Resource.PAGE_FAULTS and row.page_faults:
        fresh = sum(part.bytes for part in row.reuse if part.written)
        return Advice(Fix.PREALLOCATE, time_ns, use.fault_ns, fresh)
    if nearest == Resource.LATENCY:
        fix = Fix.CUDA_GRAPH if found.bound == Bound.LAUNCH else Fix.FUSE_OR_BATCH_CALLS
        return Advice(fix, time_ns, use.latency_ns, row.bytes)
    if nearest == Resource.MEMORY:
        return _move_less(found, row, use, machine, previous)
    if nearest == Resource.COMPUTE:
        return _compute_faster(found, row, use, machine, time_ns)
    return None


def _move_less(
    found: Label, row: CountedRow, use: Utilization, machine: Machine, previous: CountedRow | None
) -> Advice | None:
    if use.traffic is None:
        return None
    level, ridge = use.traffic.level.name, _ridge(row, machine)
    if _is_product(row) and (row.intensity or 0) < ridge:
        rows = max(1, round(ridge / max(row.intensity or 1e-9, 1e-9)))
        return Advice(Fix.BATCH_ROWS, intensity=row.intensity or 0, ridge=ridge, rows=rows)
    if found.bound not in (Bound.MEMORY, Bound.NO_DOMINANT):
        return None
    if previous is not None and level == DRAM and _feeds(previous, row):
        moved = use.traffic.bytes
        return Advice(Fix.FUSE_WITH_PREVIOUS, bytes=moved, level=level, previous=previous.operator)
    if row.dtype == "float32":
        return Advice(Fix.HALVE_BYTES, bytes=use.traffic.bytes, level=level, intensity=row.intensity or 0)
    return None


def _compute_faster(
    found: Label, row: CountedRow, use: Utilization, machine: Machine, time_ns: float
) -> Advice | None:
    per_s = (row.flops or 0) / time_ns * 1e9
    peak, half = use.peak, machine.peak("bfloat16")
    library = None if peak is None or peak.dtype is None else _library_of(peak.dtype, row, machine)
    is_slow = found.bound == Bound.UNDERUTILIZED
    if is_slow and library is not None and per_s < _AS_GOOD_AS_LIBRARY * library.value:
        fix = Fix.LARGER_PRODUCT if _is_product(row) else Fix.CHANNELS_LAST
        return Advice(fix, per_s=per_s, library_per_s=library.value, dtype=library.dtype)
    shortened = _faster(peak, machine.find("compute", "tf32"))
    if may_use_tf32(row, machine) and shortened is not None and shortened >= _WORTH_CHANGING:
        return Advice(Fix.ALLOW_TF32, per_s=per_s, speedup=shortened)
    faster = _faster(library, _library_of("bf16", row, machine)) if is_slow else _faster(peak, half)
    if row.dtype == "float32" and faster is not None and faster >= _WORTH_CHANGING:
        return Advice(Fix.FASTER_TYPE, per_s=per_s, speedup=faster)
    return None


def _feeds(previous: CountedRow, row: CountedRow) -> bool:
    """Return whether an operator may read the other's result: same pass, and equal bytes written and read."""
    written = {part.bytes for part in previous.reuse if part.written}
    read = {part.bytes for part in row.reuse if not part.written}
    return previous.phase == row.phase and bool(written & read)


def _is_product(row: CountedRow) -> bool:
    return row.operator.split("::")[-1] in _PRODUCTS


def _ridge(row: CountedRow, machine: Machine) -> float:
    """Return the FLOPs a byte above which compute takes longer than memory."""
    peak, dram = machine.peak(row.dtype), machine.find(f"memory.{DRAM}")
    return 0.0 if peak is None or dram is None else peak.value / dram.value


def _library_of(dtype: str, row: CountedRow, machine: Machine) -> Ceiling | None:
    if _is_product(row):
        return machine.find("compute.matmul", dtype)
    return machine.find("compute.convolution", dtype) if "convolution" in row.operator else None


def _faster(now: Ceiling | None, then: Ceiling | None) -> float | None:
    return None if now is None or then is None else then.value / now.value
