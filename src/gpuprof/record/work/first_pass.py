# SPDX-License-Identifier: Apache-2.0
"""Counts the work of the calls that a recording kept, after it has ended, as plain data for the run."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gpuprof.errors import WorkError
from gpuprof.record.call_arguments import CallArguments
from gpuprof.record.facts import Note, NoteCode, error_line, note
from gpuprof.record.first_calls import (
    INPUT_ROWS,
    WORK_FACTS,
    WORK_ROWS,
    FirstCall,
    FirstCalls,
    gpu_facts,
)
from gpuprof.record.layers import is_compiled
from gpuprof.record.work.observe import Observer, page_fault_costs, reuse_distances
from gpuprof.record.work.padding import padding_of
from gpuprof.record.work.rows import CountedPass, Observation, OperatorWork
from gpuprof.record.work.run import PassError, count_operators
from gpuprof.record.work.traced_work import traced_rows


def count_first_calls(first: FirstCalls, segments: Path) -> list[Note]:
    """Write the work of the kept calls; returns what a reader must know of it."""
    notes: list[Note] = []
    rows: list[dict[str, Any]] = []
    for call in first.calls:
        counted, backward = call_again(call, Observer(), notes, "work")
        if counted is not None:
            rows += _rows(call, counted)
            notes += [
                note(NoteCode.WORK_UNKNOWN, root=call.root, operator=each.operator, error=each.error)
                for each in counted.unknown
            ]
            notes += _changes(call)
            if backward and not any(row.phase == "backward" for row in counted.rows):
                notes.append(note(NoteCode.WORK_NO_BACKWARD, root=call.root))
    if first.left_out:
        counts = {"counted": len(first.calls), "left_out": len(first.left_out)}
        notes.append(note(NoteCode.WORK_MODELS_LEFT_OUT, **counts))
    facts = {
        "roots": [call.root for call in first.calls],
        "threads": max((call.threads for call in first.calls), default=None),
        "page_faults": page_fault_costs() if rows else [],
        "given": first.given.as_rows(),
        "signatures": first.given.signatures(),
        "trace": _count_trace(first, segments),
        "gpu": gpu_facts(torch, ((call.root, call.gpu) for call in first.calls)),
        "padding": _paddings(first),
    }
    (segments / WORK_ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (segments / WORK_FACTS).write_text(json.dumps(facts), encoding="utf-8")
    if not first.calls:
        notes.append(note(NoteCode.WORK_NO_MODEL))
    return notes


def _paddings(first: FirstCalls) -> list[dict[str, Any]]:
    """Return the padding of the calls' batches; what cannot be read is left out, as on a GPU that failed."""
    found = []
    for call in first.calls:
        with contextlib.suppress(RuntimeError, TypeError, AttributeError):
            found.append(padding_of(call))
    return [each for each in found if each is not None]


def _count_trace(first: FirstCalls, segments: Path) -> dict[str, Any] | None:
    """Write the work of the operators whose inputs were recorded; returns the facts of the windows."""
    if first.windows is None:
        return None
    rows = traced_rows(first.windows.path) if first.windows.path.exists() else []
    (segments / INPUT_ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    first.windows.path.unlink(missing_ok=True)
    return first.windows.facts()


def call_again(
    call: FirstCall, observer: Observer, notes: list[Note], what: str
) -> tuple[CountedPass | None, bool]:
    """Make a kept call once more under the counting mode; `what` is wanted of it, for the notes.

    Returns what was counted, or as much of it as could be, and whether a backward pass was asked for.
    """
    backward = call.grad and not call.inference and _needs_gradient(call)
    inputs = CallArguments(call.args, call.kwargs)
    with contextlib.ExitStack() as modes:
        try:
            modes.enter_context(_modes(call))
            return count_operators(
                call.module, inputs, backward=backward, fake=False, observer=observer, names=call.names
            ), backward
        except PassError as failure:
            notes.append(_failed(NoteCode.CALL_COUNTED_PARTLY, call, what, failure.reason))
            return failure.counted, False
        except WorkError as error:
            notes.append(_failed(NoteCode.CALL_NOT_COUNTED, call, what, str(error)))
        except (Exception, SystemExit) as error:
            notes.append(_failed(NoteCode.CALL_NOT_COUNTED, call, what, error_line(error)))
    return None, False


def _needs_gradient(call: FirstCall) -> bool:
    if any(parameter.requires_grad for parameter in call.module.parameters()):
        return True
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves((call.args, call.kwargs))
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


@contextlib.contextmanager
def _modes(call: FirstCall) -> Iterator[None]:
    """Bring back the modes of the call; the model's own mode is put back as it is now afterwards."""
    now = {module: module.training for module in call.module.modules()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(call.inference))
        stack.enter_context(torch.set_grad_enabled(call.grad))
        for kind in ("cpu", "cuda"):
            dtype = call.autocast.get(kind)
            if dtype is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        if call.module.training != call.training:
            stack.callback(_set_training, now)
            call.module.train(call.training)
        yield


def _set_training(modes: dict[torch.nn.Module, bool]) -> None:
    for module, training in modes.items():
        vars(module)["training"] = training


def _failed(code: NoteCode, call: FirstCall, what: str, error: str) -> Note:
    return note(code, what=what, root=call.root, error=error)


def _changes(call: FirstCall) -> list[Note]:
    changed = sum(tensor._version != version for tensor, version in call.versions)
    if not changed:
        return []
    return [note(NoteCode.WORK_INPUTS_CHANGED, root=call.root, count=changed)]


# ---- rows ------------------------------------------------------------------------------------


def _rows(call: FirstCall, counted: CountedPass) -> list[dict[str, Any]]:
    observed = counted.observed or []
    reuse = reuse_distances([each.touched for each in observed])
    compiled_layers = CompiledLayers(call)
    rows: list[dict[str, Any]] = []
    regions: dict[tuple[str, str], Region] = {}
    for row, observation, distances in zip(counted.rows, observed, reuse, strict=True):
        compiled = compiled_layers.around(row.layer)
        if compiled is not None:
            regions.setdefault((compiled, row.phase), Region()).add(row, observation)
            continue
        rows.append(
            {
                "root": call.root,
                "layer": row.layer,
                "ordinal": row.ordinal,
                "operator": row.operator,
                "overload": row.overload,
                "phase": row.phase,
                "flops": row.flops,
                "bytes": row.bytes,
                "exactness": row.exactness,
                "dtype": row.dtype,
                "input_shapes": _shapes(row),
                "page_faults": observation.page_faults,
                "reuse_distance_bytes": [each.distance_bytes for each in distances],
                "reuse_bytes": [each.bytes for each in distances],
                "reuse_written": [each.written for each in distances],
                "compiled": None,
            }
        )
    return [*rows, *(region.row(call.root, *key) for key, region in regions.items())]


class CompiledLayers:
    """Which layers of a call are compiled."""

    def __init__(self, call: FirstCall) -> None:
        self._root = call.root
        self._names = [
            call.names.get(module, path)
            for path, module in call.module.named_modules()
            if is_compiled(module) and not path.endswith("_orig_mod")
        ]

    def around(self, layer: str) -> str | None:
        """Return the compiled layer that a layer is part of."""
        if self._root in self._names:
            return self._root
        return next((each for each in self._names if layer == each or layer.startswith(each + ".")), None)


def _shapes(row: OperatorWork) -> str:
    return ", ".join("x".join(map(str, shape)) or "1" for shape in row.input_shapes)


# ---- compiled layers -------------------------------------------------------------------------

FORWARD, BACKWARD = "(compiled)", "CompiledFunctionBackward"


class Region:
    """A compiled layer as one row: its operators are fused, so none of them can be timed by itself.

    Adds up the FLOPs of the region, and finds the bytes that must come in from outside of it.

    Bytes are those that are read before the region wrote them, each piece of memory once, and those that
    its last operator writes: the least that any fusion can do with.
    """

    def __init__(self) -> None:
        self._flops: list[int | None] = []
        self._by_dtype: Counter[str | None] = Counter()
        self._made: set[int] = set()
        self._came_in: dict[int, int] = {}
        self._without_address = 0
        self._last_written = 0

    def add(self, row: OperatorWork, observation: Observation) -> None:
        """Add the next operator."""
        self._flops.append(row.flops)
        self._by_dtype[row.dtype] += row.flops or 0
        written = [part for part in observation.touched if part.written]
        for part in observation.touched:
            if part.written:
                continue
            if part.key is None:
                self._without_address += part.bytes
            elif part.key not in self._made:
                self._came_in[part.key] = max(part.bytes, self._came_in.get(part.key, 0))
        self._made.update(part.key for part in written if part.key is not None)
        if written:
            self._last_written = sum(part.bytes for part in written)

    def row(self, root: str, layer: str, phase: str) -> dict[str, Any]:
        """Return the region as a row of the table `work`."""
        known = [flops for flops in self._flops if flops is not None]
        complete = len(known) == len(self._flops)
        moved = sum(self._came_in.values()) + self._without_address + self._last_written
        return {
            "root": root,
            "layer": layer,
            "ordinal": 0,
            "operator": BACKWARD if phase == "backward" else FORWARD,
            "overload": "",
            "phase": phase,
            "flops": sum(known) if complete else None,
            "bytes": moved or None,
            "exactness": "estimated" if complete else "unknown",
            "dtype": self._by_dtype.most_common(1)[0][0],
            "input_shapes": "",
            "page_faults": None,
            "reuse_distance_bytes": [None],
            "reuse_bytes": [moved],
            "reuse_written": [False],
            "compiled": layer,
        }
