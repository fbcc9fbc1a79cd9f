# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run: its counted work, its timed operators and its ceilings brought together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.ceilings.ceiling import ALL_CORES, GPU, Ceiling, CeilingNote, Drift
from gpuprof.analyze.layer_groups import classes_of_layers, layer_groups
from gpuprof.analyze.roofline.counted import CountedRow, load_counted, load_measured, with_measured
from gpuprof.analyze.roofline.evidence import NoLabel, RooflineNote, RooflineNoteCode, advice
from gpuprof.analyze.roofline.join import Join, join, names_to_look_for
from gpuprof.analyze.roofline.labels import Bound, label
from gpuprof.analyze.roofline.layers import layer_rows
from gpuprof.analyze.roofline.measured_spans import MeasuredSpans, load_measured_spans, taken_or_none
from gpuprof.analyze.roofline.operators import kernel_rows, operator_rows
from gpuprof.analyze.roofline.rows import RooflineData, RooflineDevice, RooflineKind, RooflineRow, Unmatched
from gpuprof.analyze.roofline.similar_calls import given_alike
from gpuprof.analyze.roofline.table import roofline_text
from gpuprof.analyze.roofline.traced_inputs import load_inputs
from gpuprof.analyze.roofline.traced_join import join_traced
from gpuprof.analyze.roofline.utilization import Machine, Machines, load_machines, utilization_of
from gpuprof.errors import RunError
from gpuprof.record.facts import NoteCode
from gpuprof.run.facts import notes_of, statuses_of, work_status
from gpuprof.run.messages import missing_work_text, note_text

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

    Ints = npt.NDArray[np.int64]
    Codes = npt.NDArray[np.int32]
    # Calls and their time by operator, layer, reason and device.
    _Sums = dict[tuple[str, str, NoLabel, str], tuple[int, int]]

# Findings that get a sentence: the first ones that take at least this fraction of the time.
_ADVISED = 5
_WORTH_ADVICE = 0.02
_ABOUT_WORK = (NoteCode.WORK_NO_MODEL, NoteCode.CALL_NOT_COUNTED, NoteCode.CALL_COUNTED_PARTLY)
_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


class Roofline(RooflineData):
    """The bottleneck of each layer and operator of a run; `print` shows it. See `RooflineData`."""

    def __str__(self) -> str:
        return self.to_text()

    def to_text(
        self, by: RooflineKind = "operator", top: int | None = None, width: int = 100, *, flat: bool = False
    ) -> str:
        """Return the table, the advice and the notes as plain text; `top` None shows the rows that matter.

        Repeated layers are one row; with `flat`, each layer has its own.
        """
        return roofline_text(self, by, top, width, flat=flat)


def build_roofline(folder: RunFolder) -> Roofline:
    """Classify the operators of a run. Raises RunError for a run without counted work or without ceilings."""
    work = folder.meta.get("work")
    if not work:
        raise _no_work(folder)
    counted = with_measured(load_counted(folder), load_measured(folder))
    if not counted:
        reasons = "; ".join(_work_notes(folder.meta)) or "no model was called"
        raise RunError(
            "work_not_counted",
            f"{folder.path}: no work could be counted: {reasons}",
            hint="record a program that calls a model, or try gpuprof.count_work(model, inputs)",
        )
    machines = load_machines(folder)
    process_id = int(folder.meta.get("process_id") or 0)
    timed = load_measured_spans(folder, process_id, names_to_look_for(counted))
    joined = join(counted, timed, given_alike(folder, process_id))
    inputs = load_inputs(folder, process_id)
    if inputs is not None:
        joined, timed = join_traced(joined, timed, inputs)
    return _assemble(folder, machines, timed, joined)


def _assemble(folder: RunFolder, machines: Machines, timed: MeasuredSpans, joined: Join) -> Roofline:
    lost = _roots_without_kernels(folder, timed)
    operators = sorted(operator_rows(joined, machines, timed, lost), key=lambda row: -row.total_ns)
    devices = tuple(_devices(operators, timed, machines))
    layers = layer_rows(joined, timed, machines, lost)
    groups = layer_groups({row.layer for row in (*operators, *layers)}, classes_of_layers(folder.meta))
    return Roofline(
        operators=_with_groups(_advised(operators, joined, machines), groups),
        layers=_with_groups(layers, groups),
        unmatched=tuple(unmatched_rows(operators, joined, timed)),
        ceilings=tuple(each for device in devices for each in _ceilings(_machine(machines, device))),
        device=devices[0].device,
        total_ns=devices[0].total_ns,
        matched_share=devices[0].matched_share,
        notes=tuple(_notes(folder, joined, machines, lost)),
        kernels=_with_groups(kernel_rows(joined, timed, machines), groups),
        devices=devices,
    )


def _with_groups(rows: Iterable[RooflineRow], groups: Mapping[str, str]) -> tuple[RooflineRow, ...]:
    """Return the rows with the groups of repeated layers that they are in."""
    return tuple(replace(row, group=groups[row.layer]) if row.layer in groups else row for row in rows)


def _devices(
    operators: Sequence[RooflineRow], timed: MeasuredSpans, machines: Machines
) -> Iterator[RooflineDevice]:
    """Yield the GPUs with work, then the host where operators ran there, or nothing else did."""
    gpus = sorted(timed.gpu.device_ns.items(), key=lambda pair: -pair[1])
    for device, total_ns in [*gpus, (machines.host.device, timed.total_ns)]:
        rows = [row for row in operators if row.device == device]
        if device == machines.host.device and not rows and gpus:
            continue
        matched = sum(row.total_ns for row in rows if row.bound != Bound.UNKNOWN)
        name = machines.gpus[device].name if device in machines.gpus else None
        yield RooflineDevice(device, name, total_ns, matched / total_ns if total_ns else None)


def _machine(machines: Machines, device: RooflineDevice) -> Machine:
    return machines.host if device.device == machines.host.device else machines.of(device.device)


def _roots_without_kernels(folder: RunFolder, timed: MeasuredSpans) -> frozenset[str]:
    """Return the roots that ran on a GPU of which nothing was recorded: the host's times are not theirs."""
    if timed.gpu.device_ns:
        return frozenset()
    gpu = (folder.meta.get("work") or {}).get("gpu") or {}
    return frozenset(gpu.get("roots") or ())


def _ceilings(machine: Machine) -> Iterator[Ceiling]:
    wanted: list[tuple[str, str | None]] = [("compute", dtype) for dtype in _TYPES]
    wanted += [(f"memory.{level.name}", None) for level in machine.levels]
    wanted += [("launch", None), ("page_fault", None), ("page_fault.huge", None)]
    for resource, dtype in wanted:
        ceiling = machine.find(resource, dtype)
        if ceiling is not None:
            yield ceiling


# ---- advice ----------------------------------------------------------------------------------


def _advised(rows: Sequence[RooflineRow], joined: Join, machines: Machines) -> list[RooflineRow]:
    """Add advice to the rows with the most time, each fix once: where it saves the most."""
    counted = {_key(each.row): each.row for each in joined.operators}
    before = _previous(joined)
    given: set[Hashable] = set()
    advised = []
    for row in rows:
        found = None
        if (row.time_share or 0) >= _WORTH_ADVICE and row.bound != Bound.UNKNOWN and len(given) < _ADVISED:
            key = (row.root, row.layer, row.phase, row.ordinal)
            machine = machines.gpus.get(row.device, machines.host)
            use = utilization_of(counted[key], machine, row.time_ns, row.launches or 1)
            labelled = replace(label(row.used), bound=row.bound)
            previous = before.get(key)
            found = advice(labelled, counted[key], use, machine, time_ns=row.time_ns, previous=previous)
        is_new = found is not None and found.key not in given
        advised.append(replace(row, advice=found) if is_new else row)
        given.update([found.key] if found is not None else [])
    return advised


def _key(row: CountedRow) -> Hashable:
    return row.root, row.layer, row.phase, row.ordinal


def _previous(joined: Join) -> dict[Hashable, CountedRow]:
    """Return the operator before each one that moves bytes, views left out."""
    found: dict[Hashable, CountedRow] = {}
    last: CountedRow | None = None
    for each in joined.rows:
        if last is not None and last.root == each.row.root:
            found[_key(each.row)] = last
        if each.row.bytes:
            last = each.row
    return found


# ---- without a label -------------------------------------------------------------------------


def unmatched_rows(rows: Sequence[RooflineRow], joined: Join, timed: MeasuredSpans) -> list[Unmatched]:
    """Return the operators without a row, and the rows without a label, the longest first."""
    unknown = [
        Unmatched(
            row.operator or row.name,
            row.layer,
            row.calls,
            row.total_ns,
            row.time_share,
            row.evidence.reason or NoLabel.NO_WORK_OR_CEILING,
            row.device if row.device.startswith(GPU) else ALL_CORES,
        )
        for row in rows
        if row.bound == Bound.UNKNOWN
    ]
    return sorted([*_without_partner(joined, timed), *unknown], key=lambda row: -row.total_ns)


def _without_partner(joined: Join, timed: MeasuredSpans) -> Iterator[Unmatched]:
    """Yield what was timed and has no row, by layer and name: operators, and kernels outside of any."""
    sums: _Sums = defaultdict(lambda: (0, 0))
    duration_ns = timed.columns.duration_ns
    for spans, reason in (
        (joined.unmatched, NoLabel.ORDER_DIFFERS),
        (joined.other_work, NoLabel.OTHER_INPUTS),
    ):
        _add_operators(sums, timed, spans, duration_ns[spans], reason)
    for spans, reason in _uncounted(timed):
        rest_ns = np.maximum(0, duration_ns[spans] - timed.inner_ns[spans])
        _add_operators(sums, timed, spans, rest_ns, reason)
    _add_stray(sums, timed)
    for (name, layer, reason, device), (calls, total_ns) in sums.items():
        whole_ns = timed.whole_ns(device)
        share = total_ns / whole_ns if whole_ns else None
        yield Unmatched(name, layer, calls, total_ns, share, reason, device)


def _uncounted(timed: MeasuredSpans) -> Iterator[tuple[Ints, NoLabel]]:
    """Yield the outermost operators without counted work by reason."""
    spans = timed.uncounted
    # The time of an operator on a GPU is in the candidates inside of it.
    spans = spans[timed.gpu.on_gpu[spans] | ~timed.gpu.inner_on_gpu[spans]]
    is_around = timed.inner_ns[spans] > 0
    in_backward = timed.places.in_backward[spans]
    in_call = timed.places.root_call[spans] >= 0
    yield spans[is_around], NoLabel.CONTAINS_COUNTED
    yield spans[~is_around & in_backward], NoLabel.BACKWARD_NOT_COUNTED
    yield spans[~is_around & ~in_backward & in_call], NoLabel.NOT_IN_COUNTED_CALL
    yield spans[~is_around & ~in_backward & ~in_call], NoLabel.OUTSIDE_MODELS


def _add_operators(sums: _Sums, timed: MeasuredSpans, spans: Ints, host_ns: Ints, reason: NoLabel) -> None:
    """Add the time of operators: on GPUs where they had GPU work, else the host's."""
    names, layer = timed.columns.names, timed.places.layer
    on_host = ~timed.gpu.on_gpu[spans]
    host = spans[on_host]
    _add(sums, timed, names, (timed.columns.name[host], layer[host]), host_ns[on_host], reason, ALL_CORES)
    executions = timed.gpu.executions
    for device, name in enumerate(timed.gpu.activity.devices):
        which = np.flatnonzero((executions.device == device) & np.isin(executions.owner, spans))
        # Replays of a graph belong to the call that was captured.
        owners, call = np.unique(executions.owner[which], return_inverse=True)
        time_ns = np.zeros(len(owners), np.int64)
        np.add.at(time_ns, call.reshape(-1), executions.time_ns[which])
        _add(sums, timed, names, (timed.columns.name[owners], layer[owners]), time_ns, reason, name)


def _add_stray(sums: _Sums, timed: MeasuredSpans) -> None:
    """Add what ran on GPUs outside of operators."""
    activity = timed.gpu.activity
    for device, name in enumerate(activity.devices):
        which = np.flatnonzero((timed.gpu.owner < 0) & (activity.device == device))
        layer = taken_or_none(timed.places.layer, timed.gpu.launcher[which])
        keys = (activity.name[which], layer)
        time_ns = activity.duration_ns[which]
        _add(sums, timed, activity.names, keys, time_ns, NoLabel.OUTSIDE_OPERATORS, name)


def _add(
    sums: _Sums,
    timed: MeasuredSpans,
    names: Sequence[str],
    keys: tuple[Ints, Ints] | tuple[Codes, Codes],
    time_ns: Ints,
    reason: NoLabel,
    device: str,
) -> None:
    """Add calls and times by (name, layer), given as indices."""
    if not len(time_ns):
        return
    pairs, group = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    totals = np.zeros(len(pairs), np.int64)
    np.add.at(totals, group, time_ns)
    counts = np.bincount(group)
    for (name, layer), calls, total_ns in zip(pairs.tolist(), counts.tolist(), totals.tolist(), strict=True):
        key = (names[name], "" if layer < 0 else timed.columns.names[layer], reason, device)
        before = sums[key]
        sums[key] = (before[0] + calls, before[1] + total_ns)


# ---- why there is no work, and notes ---------------------------------------------------------


def _no_work(folder: RunFolder) -> RunError:
    """Return why, with a hint."""
    status = work_status(folder.meta)
    if not status.is_on:
        reason, hint = missing_work_text(status)
        return RunError("no_work", f"{folder.path} holds no counted work: {reason}", hint=hint)
    notes = "".join(f"; {each}" for each in _work_notes(folder.meta))
    return RunError(
        "lost_work",
        f"{folder.path} holds no counted work: the program did not end normally (killed, or os._exit){notes}",
        hint="record it again and let it end",
    )


def _work_notes(meta: Mapping[str, Any]) -> list[str]:
    return [note_text(each) for each in notes_of(meta) if each.code in _ABOUT_WORK]


def _notes(
    folder: RunFolder, joined: Join, machines: Machines, lost: Collection[str]
) -> Iterator[RooflineNote]:
    facts = folder.meta.get("ceilings") or {}
    for note in notes_of(folder.meta):
        if note.code is not NoteCode.STACKS_TORN:  # stacks have no part in a roofline
            yield RooflineNote(RooflineNoteCode.RECORDING, recording=note)
    for about_ceilings in map(CeilingNote.from_plain, facts.get("notes", [])):
        yield RooflineNote(RooflineNoteCode.CEILINGS, ceilings=about_ceilings)
    yield from _drift_note(facts)
    unknown = sorted({each.row.operator for each in joined.rows if each.row.exactness == "unknown"})
    if unknown:
        yield RooflineNote(RooflineNoteCode.WORK_UNKNOWN, tuple(unknown))
    if lost:
        yield _lost_note(folder.meta, lost)
    used = {device for each in joined.rows for device in each.executions}
    for gpu in sorted(used - set(machines.gpus)):
        yield RooflineNote(RooflineNoteCode.GPU_WITHOUT_CEILINGS, device=gpu)
    yield from _type_notes(joined, machines)


def _type_notes(joined: Join, machines: Machines) -> Iterator[RooflineNote]:
    for device, machine in ((None, machines.host), *machines.gpus.items()):
        rows = [
            each.row for each in joined.rows if (device in each.executions if device else not each.on_gpu)
        ]
        types = sorted({str(row.dtype) for row in rows if row.flops and row.dtype})
        without = tuple(dtype for dtype in types if machine.peak(dtype) is None)
        if without:
            yield RooflineNote(RooflineNoteCode.TYPE_WITHOUT_CEILING, without, device)


def _drift_note(facts: Mapping[str, Any]) -> Iterator[RooflineNote]:
    """Note the largest change of a ceiling; GPUs are compared with the cache even with ceilings="around"."""
    large = [drift for drift in (Drift(**each) for each in facts.get("drift", [])) if drift.is_large]
    if large:
        worst = max(large, key=lambda drift: abs(drift.change))
        around = bool(facts.get("around")) and not worst.device.startswith(GPU)
        yield RooflineNote(RooflineNoteCode.DRIFT, drift=worst, count=len(large), around=around)


def _lost_note(meta: Mapping[str, Any], lost: Collection[str]) -> RooflineNote:
    status = statuses_of(meta).get("kernels")
    return RooflineNote(RooflineNoteCode.KERNELS_NOT_RECORDED, tuple(sorted(lost)), status=status)
