# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run: its counted work, its timed operators and its ceilings brought together."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuprof.analyze.ceiling_rows import Ceiling, Drift, relative_spread
from gpuprof.analyze.roofline.advice import advice
from gpuprof.analyze.roofline.counted import CountedRow, load_counted
from gpuprof.analyze.roofline.evidence import evidence, roof_name
from gpuprof.analyze.roofline.join import Join, Joined, join, names_to_look_for
from gpuprof.analyze.roofline.labels import Doubts, Label, confidence, label
from gpuprof.analyze.roofline.layers import layer_rows
from gpuprof.analyze.roofline.machine import Machine
from gpuprof.analyze.roofline.measured import load_measured, with_measured
from gpuprof.analyze.roofline.rows import Roofline, RooflineRow, Unmatched
from gpuprof.analyze.roofline.similar import given_alike
from gpuprof.analyze.roofline.timed import Timed, load_timed
from gpuprof.analyze.roofline.use import Use, use_of
from gpuprof.errors import RunError

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

# Findings that get a sentence: the first ones that take at least this share of the time.
_ADVISED = 5
_WORTH_ADVICE = 0.02
_Key = tuple[str, str, str | None, int | None]
_ON_GPU = "its kernels ran on a GPU, whose ceilings this version does not measure"


def build_roofline(folder: RunFolder) -> Roofline:
    """Classify what a run holds. Raises RunError for a run without counted work or without ceilings."""
    work = folder.meta.get("work")
    if not work:
        raise RunError(
            f"{folder.path} holds no counted work: record it with gpuprof.profile(model, work=True) "
            "or gpuprof run --work"
        )
    counted = with_measured(load_counted(folder), load_measured(folder))
    if not counted:
        reasons = [note for note in folder.meta.get("notes", []) if str(note).startswith("work")]
        raise RunError(
            f"{folder.path}: no work could be counted: {'; '.join(reasons) or 'no model was called'}"
        )
    machine = load_machine(folder)
    process_id = int(folder.meta.get("process_id") or 0)
    timed = load_timed(folder, process_id, *names_to_look_for(counted))
    joined = join(counted, timed, given_alike(folder, process_id))
    return _assemble(folder, machine, timed, joined)


def load_machine(folder: RunFolder) -> Machine:
    """Return the run's ceilings. Raises RunError where it holds none."""
    columns = "device, resource, dtype, value, unit, spread, method"
    rows = [Ceiling(*row) for row in folder.sql("FROM ceilings").select(columns).fetchall()]
    facts = folder.meta.get("ceilings") or {}
    if not any(row.is_roof for row in rows):
        notes = "; ".join(map(str, facts.get("notes", []))) or "they were not measured"
        raise RunError(f"{folder.path} holds no ceilings ({notes}): record it again when no recording runs")
    work = folder.meta["work"]
    drifts = [Drift(**drift) for drift in facts.get("drift", [])]
    return Machine(rows, threads=work.get("threads"), caches=work.get("caches") or (), drifts=drifts)


def _assemble(folder: RunFolder, machine: Machine, timed: Timed, joined: Join) -> Roofline:
    operators = sorted(_operator_rows(joined, machine, timed.total_ns), key=lambda row: -row.total_ns)
    matched = sum(row.total_ns for row in operators)
    return Roofline(
        operators=tuple(_advised(operators, joined, machine)),
        layers=tuple(layer_rows(joined, timed, machine)),
        unmatched=tuple(_unmatched(joined, timed)),
        ceilings=tuple(_roofs(machine)),
        device=machine.device,
        total_ns=timed.total_ns,
        matched_share=matched / timed.total_ns if timed.total_ns else None,
        notes=tuple(_notes(folder, joined, machine)),
    )


# ---- operators -------------------------------------------------------------------------------


def _operator_rows(joined: Join, machine: Machine, whole_ns: int) -> Iterator[RooflineRow]:
    for found in joined.rows:
        if found.durations_ns:
            yield _operator_row(found, machine, whole_ns)


def _operator_row(joined: Joined, machine: Machine, whole_ns: int) -> RooflineRow:
    row = joined.row
    time_ns = float(statistics.median(joined.durations_ns))
    use = use_of(row, machine, time_ns)
    shares = use.shares(time_ns)
    found = Label("unknown", None, None, None, None, 0.0) if joined.on_gpu else label(shares)
    if row.exactness == "unknown" and found.bound == "under-utilised":
        found = replace(found, bound="unknown")  # what is not known may be what binds
    spread = relative_spread(joined.durations_ns)
    total_ns = sum(joined.durations_ns)
    return RooflineRow(
        kind="operator",
        name=f"{row.operator.removeprefix('aten::')} @ {row.layer or '(outside)'}",
        root=row.root,
        layer=row.layer,
        operator=row.operator,
        ordinal=row.ordinal,
        phase=row.phase,
        dtype=row.dtype,
        calls=len(joined.durations_ns),
        time_ns=time_ns,
        total_ns=total_ns,
        time_share=total_ns / whole_ns if whole_ns else None,
        timing_spread=spread,
        flops=row.flops,
        bytes=row.bytes,
        exactness=row.exactness,
        bound=found.bound,
        nearest=found.nearest,
        roof=roof_name(found.nearest, use),
        roof_share=found.used,
        used=shares,
        memory_level=None if use.traffic is None else use.traffic.level.name,
        memory_bytes=None if use.traffic is None else use.traffic.bytes,
        confidence=confidence(found, _doubts(joined, found, use, machine, spread)),
        evidence=_ON_GPU
        if joined.on_gpu
        else evidence(found, use, flops=row.flops, faults=row.page_faults, time_ns=time_ns),
    )


def _doubts(joined: Joined, found: Label, use: Use, machine: Machine, spread: float | None) -> Doubts:
    ceiling = ceiling_of(found, use, machine)
    return Doubts(
        exactness=joined.row.exactness,
        ceiling_spread=((ceiling.spread or 0.0) if ceiling is not None else 0.0)
        + _excess(found, use, float(statistics.median(joined.durations_ns))),
        drift=0.0 if ceiling is None else machine.drift(ceiling),
        timing_spread=spread,
        join=joined.quality,
        unsure_bytes=use.unsure_bytes,
    )


def _excess(found: Label, use: Use, time_ns: float) -> float:
    """Return by how much memory was faster than its ceiling, which then says little."""
    if found.nearest != "memory" or use.memory_ns is None or time_ns <= 0:
        return 0.0
    return max(0.0, use.memory_ns / time_ns - 1)


def ceiling_of(found: Label, use: Use, machine: Machine) -> Ceiling | None:
    """Return the ceiling that a label rests on."""
    if found.nearest == "compute":
        return use.peak
    if found.nearest == "memory":
        return None if use.traffic is None else use.traffic.level.ceiling
    return machine.find("launch" if found.nearest == "latency" else "page_fault")


def _advised(rows: Sequence[RooflineRow], joined: Join, machine: Machine) -> list[RooflineRow]:
    """Add advice to those that take the most time, one sentence for each kind of finding."""
    counted: dict[_Key, CountedRow] = {_key(each.row): each.row for each in joined.rows}
    before = _previous(joined)
    said: set[str] = set()
    advised = []
    for row in rows:
        sentence = None
        worth = (row.time_share or 0) >= _WORTH_ADVICE and row.bound != "unknown"
        if worth and len(said) < _ADVISED:
            key = (row.root, row.layer, row.phase, row.ordinal)
            use = use_of(counted[key], machine, row.time_ns)
            sentence = advice(
                label(row.used), counted[key], use, machine, time_ns=row.time_ns, previous=before.get(key)
            )
        # The same mend is told once, where it saves the most.
        mend = "" if sentence is None else sentence.rpartition(": ")[2]
        advised.append(replace(row, advice=None if mend in said else sentence))
        said.update(filter(None, [mend]))
    return advised


def _key(row: CountedRow) -> _Key:
    return row.root, row.layer, row.phase, row.ordinal


def _previous(joined: Join) -> dict[_Key, CountedRow]:
    """Return the operator before each one that moves bytes, views left out."""
    found: dict[_Key, CountedRow] = {}
    last: CountedRow | None = None
    for each in joined.rows:
        if last is not None and last.root == each.row.root:
            found[_key(each.row)] = last
        if each.row.bytes:
            last = each.row
    return found


# ---- what is left ----------------------------------------------------------------------------


def _unmatched(joined: Join, timed: Timed) -> list[Unmatched]:
    """Fold the timed operators without a partner by layer and name."""
    calls: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for span in joined.unmatched:
        calls[span.name, span.layer, "its order does not fit what was counted"].append(span.duration_ns)
    for span in joined.other_work:
        reason = "in calls with other inputs than the counted one: other work"
        calls[span.name, span.layer, reason].append(span.duration_ns)
    for span in timed.uncounted:
        rest = span.duration_ns - span.inner_ns
        reason = "around operators that were counted" if span.inner_ns else _why(span.root, span.in_backward)
        calls[span.name, span.layer, reason].append(max(0, rest))
    rows = [
        Unmatched(
            name,
            layer,
            len(times),
            sum(times),
            sum(times) / timed.total_ns if timed.total_ns else None,
            reason,
        )
        for (name, layer, reason), times in calls.items()
    ]
    return sorted(rows, key=lambda row: -row.total_ns)


def _why(root: str, in_backward: bool) -> str:
    if in_backward:
        return "its backward pass was not counted"
    return "not in the counted call" if root else "outside of the counted models"


def _roofs(machine: Machine) -> Iterator[Ceiling]:
    types = ("fp64", "fp32", "bf16", "fp16", "int8")
    wanted: list[tuple[str, str | None]] = [("compute", dtype) for dtype in types]
    wanted += [(f"memory.{level.name}", None) for level in machine.levels]
    wanted += [("launch", None), ("page_fault", None), ("page_fault.huge", None)]
    for resource, dtype in wanted:
        ceiling = machine.find(resource, dtype)
        if ceiling is not None:
            yield ceiling


def _notes(folder: RunFolder, joined: Join, machine: Machine) -> Iterator[str]:
    yield from (str(note) for note in folder.meta.get("notes", []))
    facts = folder.meta.get("ceilings") or {}
    yield from (f"ceilings: {note}" for note in facts.get("notes", []))
    large = [drift for drift in (Drift(**each) for each in facts.get("drift", [])) if drift.is_large]
    if large:
        worst = max(large, key=lambda drift: abs(drift.change))
        name = f"{worst.resource} {worst.dtype or ''}".rstrip()
        yield (
            f"{len(large)} ceilings differ by more than 10% from when they were measured first ({name} "
            f"{worst.change:+.0%}): the machine is busy; labels are less sure"
        )
    unknown = sorted({each.row.operator for each in joined.rows if each.row.exactness == "unknown"})
    if unknown:
        listed = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        yield f"the work of these operators is not known: {listed}"
    if any(each.on_gpu for each in joined.rows):
        yield f"no label for what ran on a GPU: {_ON_GPU}"
    missing = sorted({each.row.dtype for each in joined.rows if each.row.flops and each.row.dtype} - {None})
    without = [dtype for dtype in missing if machine.peak(dtype) is None]
    if without:
        yield f"no ceiling was measured for calculations in {', '.join(without)}"
