# SPDX-License-Identifier: Apache-2.0
"""Makes the calls that a recording kept once more under the GPU's hardware counters, after it has ended.

Each kernel is measured by itself, in one pass, and belongs to the operator call that launched it, with the
layer and the ordinal that the table `work` has.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuprof import _native
from gpuprof.record.facts import Method, NativeReason, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.first_calls import COUNTER_FACTS, COUNTER_ROWS, WORK_ROWS, FirstCall, FirstCalls
from gpuprof.record.kernels import cupti_folders, why_no_cuda
from gpuprof.record.work.first_pass import CompiledLayers, call_again
from gpuprof.record.work.observe import Observer
from gpuprof.record.work.rows import TENSOR_TYPES, CountedPass, Observation

# What one call launches at most; more would take too much memory.
MOST_KERNELS = 16_384

# Never used twice, so that late launches of an earlier pass's thread have no owner.
_numbers = itertools.count()


class KernelObserver(Observer):
    """Informs the native core which operator call a thread's launches belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int | None] = []  # one for each row of the pass

    def begin(self) -> None:
        """Give what this thread launches from now on a number of its own."""
        self._threads.number = number = next(_numbers)
        _native.counters_enter(number)

    def end(self) -> None:
        """Let what this thread launches from now on have no owner."""
        _native.counters_enter(-1)

    def moves(self, reads: object, writes: object) -> None:
        """Do nothing: the counters measure it."""

    def take(self) -> Observation:
        """Note the number of the operator that ended last."""
        self.numbers.append(vars(self._threads).pop("number", None))
        return Observation(None, ())


def measure_first_calls(first: FirstCalls, segments: Path) -> tuple[SourceStatus, list[Note]]:
    """Write the counters of the kept calls; returns the source's status, and notes."""
    calls = [(call, device) for call in first.calls if (device := _device(call)) is not None]
    missing = _why_none(first.calls, calls)
    if missing is not None:
        return SourceStatus.off(missing), []
    notes: list[Note] = []
    rows: list[dict[str, Any]] = []
    opened: list[_Opened] = []
    for call, device in calls:
        with torch.cuda.device(device):
            reason = _measure(call, _types(segments), opened, rows, notes)
        if reason is not None and not opened:
            # Neither would the next call have any.
            return SourceStatus.off(Reason.COUNTERS_REFUSED, detail=reason), notes
        if reason is not None:
            notes.append(note(NoteCode.COUNTERS_NOT_READ, root=call.root, detail=reason))
    (segments / COUNTER_ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (segments / COUNTER_FACTS).write_text(json.dumps(opened[0].facts()), encoding="utf-8")
    return opened[0].status, notes


def _why_none(calls: Sequence[FirstCall], on_gpu: Sequence[object]) -> Reason | None:
    why = why_no_cuda(torch)
    if why is not None:
        return why
    if not torch.cuda.is_initialized():
        return Reason.NO_MODEL_ON_GPU
    if not calls:
        return Reason.NO_MODEL_CALLED
    return None if on_gpu else Reason.NO_MODEL_ON_GPU


def _device(call: FirstCall) -> torch.device | None:
    """Return the GPU that a call runs on: that of its first parameter, buffer or argument on one."""
    from torch.utils._pytree import tree_leaves

    arguments = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]
    for tensor in itertools.chain(call.module.parameters(), call.module.buffers(), arguments):
        if tensor.is_cuda:
            return tensor.device
    return None


def _types(segments: Path) -> list[str]:
    """Return what the counted operators calculate in, the type of the most FLOPs first."""
    flops: Counter[str] = Counter()
    for line in (segments / WORK_ROWS).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind = TENSOR_TYPES.get(row["dtype"] or "")
        if kind is not None and row["flops"]:
            flops[kind] += row["flops"]
    return [kind for kind, _ in flops.most_common()]


# ---- one call --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Opened:
    """The counters that are read, as the native core opened them."""

    chip: str
    path: str
    version: str
    passes: int
    metrics: list[dict[str, Any]]

    @property
    def status(self) -> SourceStatus:
        return SourceStatus.on(
            Method.RANGE_PROFILER, version=self.version, chip=self.chip, passes=self.passes
        )

    def facts(self) -> dict[str, Any]:
        return {
            "chip": self.chip,
            "cupti_version": self.version,
            "cupti_path": self.path,
            "passes": self.passes,
            "metrics": self.metrics,
        }


def _measure(
    call: FirstCall,
    types: list[str],
    opened: list[_Opened],
    rows: list[dict[str, Any]],
    notes: list[Note],
) -> NativeReason | None:
    """Add the rows of one call; returns why there are none, or None."""
    # A context of the thread's own, and no work of before.
    torch.cuda.synchronize()
    reason: NativeReason | None
    found = _native.counters_open([os.fsencode(folder) for folder in cupti_folders()], types, MOST_KERNELS)
    try:
        reason = found["reason"]
        if reason is not None:
            return reason
        session = _Opened(found["chip"], found["path"], found["version"], found["passes"], found["metrics"])
        if (reason := _native.counters_begin()) is not None:
            return reason
        opened.append(session)
        observer = KernelObserver()
        try:
            counted, _ = call_again(call, observer, notes, "counters")
            torch.cuda.synchronize()
        finally:
            measured = _native.counters_end()
    finally:
        _native.counters_close()
    reason = measured["reason"]
    if reason is not None:
        return reason
    if counted is not None:
        rows += _rows(call, counted, observer, session, measured, notes)
    return None


def _rows(
    call: FirstCall,
    counted: CountedPass,
    observer: KernelObserver,
    session: _Opened,
    measured: dict[str, Any],
    notes: list[Note],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each metric of each kernel; what is incomplete has one without a kernel and a value."""
    kernels: dict[int, list[tuple[str, list[float | None]]]] = defaultdict(list)
    for number, name, values in measured["kernels"]:
        kernels[number].append((name, values))
    incomplete = set(measured["incomplete"])
    compiled_layers = CompiledLayers(call)
    is_compiled = False
    for row, number in zip(counted.rows, observer.numbers, strict=True):
        compiled = compiled_layers.around(row.layer)
        if number is None or compiled is not None:
            is_compiled = is_compiled or compiled is not None
            continue
        place = {
            "root": call.root,
            "layer": row.layer,
            "ordinal": row.ordinal,
            "operator": row.operator,
            "phase": row.phase,
        }
        for kernel_number, (name, values) in enumerate(kernels[number]):
            kernel = {"kernel": name or "(lost name)", "kernel_number": kernel_number}
            yield from ({**place, **kernel, **each} for each in _values(session, values))
        if number in incomplete:
            nothing: dict[str, Any] = {"kernel": None, "kernel_number": None}
            yield from ({**place, **nothing, **each} for each in _values(session, None))
    if is_compiled:
        notes.append(note(NoteCode.COUNTERS_OF_COMPILED, root=call.root))


def _values(session: _Opened, values: list[float | None] | None) -> Iterator[dict[str, Any]]:
    """Yield the columns of each metric. `values` are those of the metrics that have a counter, in order."""
    left = iter(values or ())
    for metric in session.metrics:
        value = next(left, None) if metric["counter"] is not None else None
        yield {
            "metric": metric["name"],
            "counter": metric["counter"],
            "value": value,
            "unit": metric["unit"],
            "passes": session.passes,
        }
