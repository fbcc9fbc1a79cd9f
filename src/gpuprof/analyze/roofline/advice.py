# SPDX-License-Identifier: Apache-2.0
"""One sentence for a finding, from its own figures. Where the figures suggest nothing, nothing is said."""

from __future__ import annotations

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.ceilings.text import operation_unit
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.labels import Label
from gpuprof.analyze.roofline.machine import DRAM, Machine
from gpuprof.analyze.roofline.use import Use, may_use_tf32
from gpuprof.analyze.text_table import format_bytes, format_count, format_duration

# A faster type is worth a sentence from here on.
_WORTH_CHANGING = 1.5
# A third of the time is worth a sentence even where it does not bind.
_WORTH_SAVING = 1 / 3
# So close to what PyTorch's own product reaches here, a larger or better laid out one gains little.
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


def advice(
    found: Label, row: CountedRow, use: Use, machine: Machine, *, time_ns: float, previous: CountedRow | None
) -> str | None:
    """Return what to try, or None."""
    binding = found.nearest
    if binding in ("page faults", "latency") and (found.used or 0) < _WORTH_SAVING:
        return None
    if binding == "page faults" and row.page_faults:
        return _preallocate(row, use, time_ns)
    if found.bound == "launch":
        return _launch_ahead(row, use, time_ns)
    if binding == "latency":
        return _fewer_calls(row, use, time_ns)
    if binding == "memory":
        return _move_less(found, row, use, machine, previous)
    if binding == "compute":
        return _calculate_faster(found, row, use, machine, time_ns)
    return None


def _preallocate(row: CountedRow, use: Use, time_ns: float) -> str:
    fresh = sum(part.bytes for part in row.reuse if part.written)
    if (use.fault_ns or 0) >= time_ns:
        cost = f"whose page faults alone are worth all of its {format_duration(time_ns)}"
    else:
        cost = f"which takes {format_duration(use.fault_ns)} of {format_duration(time_ns)}"
    return (
        f"each call writes {format_bytes(fresh)} of fresh memory, {cost}: preallocate the result (out=, or "
        "in place), or keep the buffer and use it again"
    )


def _fewer_calls(row: CountedRow, use: Use, time_ns: float) -> str:
    moved = "no work" if not row.bytes else format_bytes(row.bytes)
    empty = format_duration(use.latency_ns)
    is_longer = time_ns > (use.latency_ns or 0)
    near = f"near the {empty} that any call takes" if is_longer else f"no more than an empty one ({empty})"
    return (
        f"a call of {format_duration(time_ns)} does {moved}, {near}: fuse it with its neighbours "
        "(torch.compile), or batch several calls into one"
    )


def _launch_ahead(row: CountedRow, use: Use, time_ns: float) -> str:
    moved = "no work" if not row.bytes else format_bytes(row.bytes)
    return (
        f"a call has the GPU do {moved} in {format_duration(time_ns)}, near the "
        f"{format_duration(use.latency_ns)} of empty kernels, and the GPU waits for the host before it: "
        "capture the step in a CUDA graph (torch.compile(mode='reduce-overhead')), fuse small operators, or "
        "take larger batches"
    )


def _move_less(
    found: Label, row: CountedRow, use: Use, machine: Machine, previous: CountedRow | None
) -> str | None:
    if use.traffic is None:
        return None
    level = use.traffic.level.name
    if _is_product(row) and (row.intensity or 0) < _ridge(row, machine):
        rows = max(1, round(_ridge(row, machine) / max(row.intensity or 1e-9, 1e-9)))
        return (
            f"it does {row.intensity:.2g} FLOP a byte, this machine {_ridge(row, machine):.2g}: batch "
            f"about {format_count(rows)} times as many rows, so that its weights are read once for all"
        )
    if found.bound not in ("memory", "balanced"):
        return None
    if previous is not None and level == DRAM and _feeds(previous, row):
        return (
            f"it reads what {previous.operator} has just written, and moves "
            f"{format_bytes(use.traffic.bytes)} through {level}: fuse the two (torch.compile), or work on "
            "pieces that stay in the cache"
        )
    if row.dtype == "float32":
        return (
            f"it moves {format_bytes(use.traffic.bytes)} through {level} for {row.intensity or 0:.2g} FLOP "
            "a byte: bfloat16 would halve the bytes"
        )
    return None


def _calculate_faster(
    found: Label, row: CountedRow, use: Use, machine: Machine, time_ns: float
) -> str | None:
    reached = (row.flops or 0) / time_ns * 1e9
    peak, half = use.peak, machine.peak("bfloat16")
    library = None if peak is None or peak.dtype is None else _library_of(peak.dtype, row, machine)
    slow = found.bound == "under-utilised"
    if slow and library is not None and reached < _AS_GOOD_AS_LIBRARY * library.value:
        what = "a larger product" if _is_product(row) else "a 3x3 convolution of 64 channels in channels_last"
        unit = operation_unit(library.dtype)
        here = f"it reaches {_rate(reached, unit)} where {what} reaches {_rate(library.value, unit)} here"
        mend = "batch more rows into it" if _is_product(row) else "change its layout to channels_last"
        return f"{here}: {mend}"
    shortened = _faster(peak, machine.find("compute", "tf32"))
    if may_use_tf32(row, machine) and shortened is not None and shortened >= _WORTH_CHANGING:
        return (
            f"it reaches {_rate(reached)} in fp32, and TF32 is {shortened:.1f} times as fast on this GPU: "
            "allow it where 10 bits of mantissa suffice (for products "
            "torch.set_float32_matmul_precision('high'))"
        )
    faster = _faster(library, _library_of("bf16", row, machine)) if slow else _faster(peak, half)
    if row.dtype == "float32" and faster is not None and faster >= _WORTH_CHANGING:
        return (
            f"it reaches {_rate(reached)} in fp32, and bfloat16 is {faster:.1f} times as fast on this "
            "machine: change the dtype (torch.autocast)"
        )
    return None


def _feeds(previous: CountedRow, row: CountedRow) -> bool:
    """Whether an operator may read the other's result: same pass, and as much is written as is read."""
    written = {part.bytes for part in previous.reuse if part.written}
    read = {part.bytes for part in row.reuse if not part.written}
    return previous.phase == row.phase and bool(written & read)


def _is_product(row: CountedRow) -> bool:
    return row.operator.split("::")[-1] in _PRODUCTS


def _ridge(row: CountedRow, machine: Machine) -> float:
    """Return the FLOPs a byte from which calculating takes longer than reading memory."""
    peak, dram = machine.peak(row.dtype), machine.find(f"memory.{DRAM}")
    return 0.0 if peak is None or dram is None else peak.value / dram.value


def _library_of(dtype: str, row: CountedRow, machine: Machine) -> Ceiling | None:
    if _is_product(row):
        return machine.find("compute.matmul", dtype)
    return machine.find("compute.convolution", dtype) if "convolution" in row.operator else None


def _faster(now: Ceiling | None, then: Ceiling | None) -> float | None:
    return None if now is None or then is None else then.value / now.value


def _rate(value: float, unit: str = "FLOP/s") -> str:
    return f"{value / 1e12:.3g} T{unit}" if value >= 1e12 else f"{value / 1e9:.3g} G{unit}"
