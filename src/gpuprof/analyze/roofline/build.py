# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run: its counted work, its timed operators and its ceilings brought together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.ceilings.ceiling import ALL_CORES, GPU, Ceiling, Drift
from gpuprof.analyze.roofline.advice import advice
from gpuprof.analyze.roofline.counted import CountedRow, load_counted
from gpuprof.analyze.roofline.device_work import Piece
from gpuprof.analyze.roofline.join import Join, join, names_to_look_for
from gpuprof.analyze.roofline.kernels import kernel_rows
from gpuprof.analyze.roofline.labels import label
from gpuprof.analyze.roofline.layers import layer_rows
from gpuprof.analyze.roofline.machine import Machine
from gpuprof.analyze.roofline.machines import Machines, load_machines
from gpuprof.analyze.roofline.measured import load_measured, with_measured
from gpuprof.analyze.roofline.operators import operator_rows
from gpuprof.analyze.roofline.rows import Roofline, RooflineDevice, RooflineRow, Unmatched
from gpuprof.analyze.roofline.similar import given_alike
from gpuprof.analyze.roofline.timed import Span, Timed, load_timed
from gpuprof.analyze.roofline.use import use_of
from gpuprof.errors import RunError
from gpuprof.record.facts import NoteCode
from gpuprof.run.facts import notes_of, statuses_of
from gpuprof.text.facts import note_text, reason_text

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

# Findings that get a sentence: the first ones that take at least this share of the time.
_ADVISED = 5
_WORTH_ADVICE = 0.02
_Key = tuple[str, str, str | None, int | None]


def build_roofline(folder: RunFolder) -> Roofline:
    """Classify what a run holds. Raises RunError for a run without counted work or without ceilings."""
    work = folder.meta.get("work")
    if not work:
        raise RunError(f"{folder.path} holds no counted work{_why_no_work(folder.meta)}")
    counted = with_measured(load_counted(folder), load_measured(folder))
    if not counted:
        reasons = "; ".join(_work_notes(folder.meta)) or "no model was called"
        raise RunError(f"{folder.path}: no work could be counted: {reasons}")
    machines = load_machines(folder)
    process_id = int(folder.meta.get("process_id") or 0)
    timed = load_timed(folder, process_id, *names_to_look_for(counted))
    joined = join(counted, timed, given_alike(folder, process_id))
    return _assemble(folder, machines, timed, joined)


def _why_no_work(meta: dict[str, Any]) -> str:
    """Say why, with the mend: a run that was recorded with work is not told to record it."""
    status = statuses_of(meta).get("work")
    if status is not None and not status.is_on:
        return f": {reason_text(status.to_plain())}"
    if status is None:
        return ": record it with gpuprof.profile(model, work=True) or gpuprof run --work"
    why = ", since the program did not end in order (killed, or os._exit)"
    return "; ".join([why, *_work_notes(meta), "record it again and let it end"])


def _work_notes(meta: dict[str, Any]) -> list[str]:
    return [note_text(each.to_plain()) for each in notes_of(meta) if each.code in _OF_WORK]


_OF_WORK = (NoteCode.WORK_NO_MODEL, NoteCode.CALL_NOT_COUNTED, NoteCode.CALL_COUNTED_PARTLY)


def _assemble(folder: RunFolder, machines: Machines, timed: Timed, joined: Join) -> Roofline:
    lost = _roots_without_kernels(folder, timed)
    operators = sorted(operator_rows(joined, machines, timed, lost), key=lambda row: -row.total_ns)
    devices = tuple(_devices(operators, timed, machines))
    return Roofline(
        operators=tuple(_advised(operators, joined, machines)),
        layers=tuple(layer_rows(joined, timed, machines, lost)),
        unmatched=tuple(_not_labelled(operators, joined, timed)),
        ceilings=tuple(each for device in devices for each in _roofs(_machine(machines, device))),
        device=devices[0].device,
        total_ns=devices[0].total_ns,
        matched_share=devices[0].matched_share,
        notes=tuple(_notes(folder, joined, machines, lost)),
        kernels=tuple(kernel_rows(joined, timed, machines)),
        devices=devices,
    )


def _devices(operators: Sequence[RooflineRow], timed: Timed, machines: Machines) -> Iterator[RooflineDevice]:
    """Yield GPUs that had something to do, then the host where operators ran there, or nothing else did."""
    totals = [*timed.device_ns.most_common(), (machines.host.device, timed.total_ns)]
    for device, total_ns in totals:
        rows = [row for row in operators if row.device == device]
        if device == machines.host.device and not rows and timed.device_ns:
            continue
        matched = sum(row.total_ns for row in rows if row.bound != "unknown")
        name = machines.gpus[device].name if device in machines.gpus else None
        yield RooflineDevice(device, name, total_ns, matched / total_ns if total_ns else None)


def _machine(machines: Machines, device: RooflineDevice) -> Machine:
    return machines.host if device.device == machines.host.device else machines.of(device.device)


def _roots_without_kernels(folder: RunFolder, timed: Timed) -> frozenset[str]:
    """Return the roots that ran on a GPU of which nothing was recorded: the host's times say nothing."""
    if timed.device_ns:
        return frozenset()
    gpu = (folder.meta.get("work") or {}).get("gpu") or {}
    return frozenset(gpu.get("roots") or ())


def _advised(rows: Sequence[RooflineRow], joined: Join, machines: Machines) -> list[RooflineRow]:
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
            machine = machines.gpus.get(row.device, machines.host)
            use = use_of(counted[key], machine, row.time_ns, row.launches or 1)
            found = replace(label(row.used), bound=row.bound)
            sentence = advice(
                found, counted[key], use, machine, time_ns=row.time_ns, previous=before.get(key)
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


def _not_labelled(rows: Sequence[RooflineRow], joined: Join, timed: Timed) -> list[Unmatched]:
    """Return what has no row, and the rows that say nothing, the longest first."""
    unknown = [
        Unmatched(
            row.operator or row.name,
            row.layer,
            row.calls,
            row.total_ns,
            row.time_share,
            row.evidence.rpartition(": ")[2],
            row.device if row.device.startswith(GPU) else ALL_CORES,
        )
        for row in rows
        if row.bound == "unknown"
    ]
    return sorted([*_unmatched(joined, timed), *unknown], key=lambda row: -row.total_ns)


def _unmatched(joined: Join, timed: Timed) -> list[Unmatched]:
    """Fold what was timed and has no partner by layer and name: of operators, and kernels outside of any."""
    calls: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)

    def add(span: Span, host_ns: int, reason: str) -> None:
        for device, time_ns in _times(span, host_ns):
            calls[span.name, span.layer, reason, device].append(time_ns)

    for span in joined.unmatched:
        add(span, span.duration_ns, "its order does not fit what was counted")
    for span in joined.other_work:
        add(span, span.duration_ns, "in calls with other inputs than the counted one: other work")
    for span in timed.uncounted:
        reason = "around operators that were counted" if span.inner_ns else _why(span.root, span.in_backward)
        if span.pieces or not span.inner_on_gpu:
            add(span, max(0, span.duration_ns - span.inner_ns), reason)
    for launcher, piece in timed.stray:
        layer = "" if launcher is None else launcher.layer
        calls[piece.name, layer, "launched outside of every recorded operator", piece.device].append(
            piece.duration_ns
        )
    return [
        Unmatched(name, layer, len(times), sum(times), _share(sum(times), device, timed), reason, device)
        for (name, layer, reason, device), times in calls.items()
    ]


def _times(span: Span, host_ns: int) -> Iterator[tuple[str, int]]:
    """Yield the time of a call: on GPUs where it had something done there, else the host's."""
    by_device: dict[str, list[Piece]] = defaultdict(list)
    for piece in span.pieces:
        by_device[piece.device].append(piece)
    for device, pieces in by_device.items():
        yield device, sum(piece.duration_ns for piece in pieces)
    if not by_device:
        yield ALL_CORES, host_ns


def _share(time_ns: int, device: str, timed: Timed) -> float | None:
    whole_ns = timed.device_ns.get(device, timed.total_ns)
    return time_ns / whole_ns if whole_ns else None


def _why(root: str, in_backward: bool) -> str:
    if in_backward:
        return "its backward pass was not counted"
    return "not in the counted call" if root else "outside of the counted models"


def _roofs(machine: Machine) -> Iterator[Ceiling]:
    types = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
    wanted: list[tuple[str, str | None]] = [("compute", dtype) for dtype in types]
    wanted += [(f"memory.{level.name}", None) for level in machine.levels]
    wanted += [("launch", None), ("page_fault", None), ("page_fault.huge", None)]
    for resource, dtype in wanted:
        ceiling = machine.find(resource, dtype)
        if ceiling is not None:
            yield ceiling


def _drift_note(facts: dict[str, Any]) -> Iterator[str]:
    """Say which of two measurements was disturbed: a machine is never faster than it is."""
    large = [drift for drift in (Drift(**each) for each in facts.get("drift", [])) if drift.is_large]
    if not large:
        return
    worst = max(large, key=lambda drift: abs(drift.change))
    # GPUs are held against the cache even then.
    around = bool(facts.get("around")) and not worst.device.startswith(GPU)
    is_faster = (worst.change > 0) != worst.resource.startswith("launch")  # a time, the others are rates
    name = f"{worst.resource} {worst.dtype or ''}".rstrip()
    some = "1 ceiling differs" if len(large) == 1 else f"{len(large)} ceilings differ"
    first = "right before the recording" if around else "when they were measured first"
    change = f"{some} by more than 10% from {first} ({name} {worst.change:+.0%})"
    if not is_faster:
        yield f"{change}: the machine is busy; labels are less sure"
    elif around:
        yield f"{change}: the machine was busier then; labels are less sure"
    else:
        yield f"{change}: the machine was busier then; on a quiet one, gpuprof doctor --ceilings --refresh"


def _notes(folder: RunFolder, joined: Join, machines: Machines, lost: Collection[str]) -> Iterator[str]:
    yield from (str(note) for note in folder.meta.get("notes", []))
    facts = folder.meta.get("ceilings") or {}
    yield from (f"ceilings: {note}" for note in facts.get("notes", []))
    yield from _drift_note(facts)
    unknown = sorted({each.row.operator for each in joined.rows if each.row.exactness == "unknown"})
    if unknown:
        listed = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        yield f"the work of these operators is not known: {listed}"
    if lost:
        why = (folder.meta.get("sources") or {}).get("kernels") or "nobody knows why"
        roots = ", ".join(sorted(lost))
        yield f"no label for {roots}: on a GPU, and none of its kernels was recorded ({why})"
    used = {device for each in joined.rows for device in each.executions}
    for gpu in sorted(used - set(machines.gpus)):
        yield f"no label for what ran on {gpu}: its ceilings were not measured"
    for device, machine in ((None, machines.host), *machines.gpus.items()):
        rows = [
            each.row for each in joined.rows if (device in each.executions if device else not each.on_gpu)
        ]
        types = sorted({str(row.dtype) for row in rows if row.flops and row.dtype})
        without = [dtype for dtype in types if machine.peak(dtype) is None]
        if without:
            where = f" on {device}" if device else ""
            yield f"no ceiling was measured for calculations in {', '.join(without)}{where}"
