# SPDX-License-Identifier: Apache-2.0
"""Kernels, copies and fills held against the roofs of their GPU.

The work of an operator is never split: its kernel has it where there was no other. Else only what hardware
counters measured of a kernel is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpuprof.analyze.ceilings.ceiling import relative_spread
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.device_work import Execution, Piece
from gpuprof.analyze.roofline.evidence import WORK_UNKNOWN, evidence
from gpuprof.analyze.roofline.join import Join, Joined
from gpuprof.analyze.roofline.labels import Doubts, Label, confidence, label
from gpuprof.analyze.roofline.machines import Machines
from gpuprof.analyze.roofline.operators import (
    CROSSES,
    NOTHING_KNOWN,
    Calls,
    ceiling_of,
    ceiling_spread,
    launch_bound,
    usage_fields,
)
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.analyze.roofline.timed import Timed
from gpuprof.analyze.roofline.use import Use, use_of


@dataclass(slots=True)
class _Kernel:
    """All launches of a kernel for one operator, or in one layer outside of what was counted."""

    root: str
    layer: str
    operator: str | None
    joined: Joined | None
    pieces: list[Piece] = field(default_factory=list)
    together: int = 1  # how many pieces the operator's calls have at most


_Key = tuple[str, str, str, str | None, int | None]


def kernel_rows(joined: Join, timed: Timed, machines: Machines) -> list[RooflineRow]:
    """Return a row for each kernel of each operator, the longest first."""
    found: dict[_Key, _Kernel] = {}
    for number, each in enumerate(joined.rows):
        for executions in each.executions.values():
            for execution in executions:
                _add_execution(found, number, each, execution)
    for name, layer, root, piece in _rest(joined, timed):
        key = (piece.device, piece.name, f"{root}/{layer}", name, None)
        found.setdefault(key, _Kernel(root, layer, name, None)).pieces.append(piece)
    rows = [_row(kernel, machines, timed) for kernel in found.values()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _add_execution(found: dict[_Key, _Kernel], number: int, each: Joined, execution: Execution) -> None:
    row = each.row
    for piece in execution.pieces:
        key = (piece.device, piece.name, row.layer, row.operator, number)
        kernel = found.setdefault(key, _Kernel(row.root, row.layer, row.operator, each))
        kernel.pieces.append(piece)
        kernel.together = max(kernel.together, len(execution.pieces))


def _rest(joined: Join, timed: Timed) -> Iterator[tuple[str | None, str, str, Piece]]:
    """Yield operator, layer, root and piece of what no counted operator has."""
    for span in (*joined.unmatched, *joined.other_work, *timed.uncounted):
        for piece in span.pieces:
            yield span.name, span.layer, span.root, piece
    for launcher, piece in timed.stray:
        where = ("", "") if launcher is None else (launcher.layer, launcher.root)
        yield None, *where, piece


def _row(kernel: _Kernel, machines: Machines, timed: Timed) -> RooflineRow:
    device = kernel.pieces[0].device
    executions = [Execution(device, (piece,)) for piece in kernel.pieces]
    calls = Calls(machines.of(device), [piece.duration_ns for piece in kernel.pieces], executions)
    counted = kernel.joined.row if kernel.joined is not None and kernel.together == 1 else None
    use = use_of(counted or _nothing_counted(kernel), calls.machine, calls.time_ns)
    shares = use.shares(calls.time_ns)
    found = launch_bound(label(shares), calls.delay)
    if calls.crosses or (
        found.bound == "under-utilised" and (counted is None or counted.exactness == "unknown")
    ):
        found = NOTHING_KNOWN
    return RooflineRow(
        kind="kernel",
        name=f"{kernel.pieces[0].name} @ {kernel.layer or '(outside)'}",
        root=kernel.root,
        layer=kernel.layer,
        operator=kernel.operator,
        ordinal=None if kernel.joined is None else kernel.joined.row.ordinal,
        phase=None if kernel.joined is None else kernel.joined.row.phase,
        dtype=None if counted is None else counted.dtype,
        **calls.fields(timed.device_ns[device]),
        flops=None if counted is None else counted.flops,
        bytes=None if counted is None else counted.bytes,
        exactness="unknown" if counted is None else counted.exactness,
        **usage_fields(found, use, shares),
        confidence=confidence(found, _doubts(kernel, found, use, calls)),
        evidence=_evidence(kernel, counted, found, use, calls),
        device=device,
    )


def _nothing_counted(kernel: _Kernel) -> CountedRow:
    name = kernel.operator or ""
    row = CountedRow(kernel.root, kernel.layer, 0, name, "forward", None, None, "unknown", None, "", None, ())
    if kernel.joined is None or kernel.joined.row.measured is None:
        return row
    measured = kernel.joined.row.measured.kernel(kernel.pieces[0].name)
    return replace(row, dtype=kernel.joined.row.dtype, measured=measured)


def _doubts(kernel: _Kernel, found: Label, use: Use, calls: Calls) -> Doubts:
    ceiling = ceiling_of(found, use, calls.machine)
    known = kernel.joined is not None and kernel.together == 1
    return Doubts(
        # That a kernel does next to nothing is known without its work.
        exactness=kernel.joined.row.exactness if known and kernel.joined is not None else "exact",
        ceiling_spread=ceiling_spread(found, use, calls.machine),
        drift=0.0 if ceiling is None else calls.machine.drift(ceiling),
        timing_spread=relative_spread(calls.times_ns),
        join=1.0 if kernel.joined is None else kernel.joined.quality,
        unsure_bytes=use.unsure_bytes,
    )


def _evidence(kernel: _Kernel, counted: CountedRow | None, found: Label, use: Use, calls: Calls) -> str:
    device = calls.machine.device
    if calls.crosses:
        return f"{device}: {CROSSES}"
    if found.nearest is None and counted is not None and counted.exactness == "unknown":
        return f"{device}: {WORK_UNKNOWN}"
    if found.bound != "unknown" or counted is not None:
        flops = int(use.operations or 0) if counted is None else counted.flops
        line = evidence(found, use, flops=flops, faults=None, time_ns=calls.time_ns, delay=calls.delay)
        return f"{device}: {line}"
    if kernel.operator is None:
        return f"{device}: launched outside of every recorded operator"
    if kernel.joined is None:
        return f"{device}: the work of {kernel.operator} was not counted"
    return f"{device}: one of {kernel.together} that {kernel.operator} launches, whose work is not split"
