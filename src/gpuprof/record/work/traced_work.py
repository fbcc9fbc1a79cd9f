# SPDX-License-Identifier: Apache-2.0
"""The work of the operators in an execution trace, as rows of the table `operator_inputs`.

Nothing is run again: each kind of call is counted once, on tensors without contents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from gpuprof.record.facts import error_line
from gpuprof.record.work.call_work import computed_in, count_call, is_composite
from gpuprof.record.work.observe import reuse_distances
from gpuprof.record.work.rows import Exactness, Reuse, Touched, known_sum, worst_of
from gpuprof.record.work.sizes import Traffic, storage_key, traffic_bytes
from gpuprof.record.work.traced_operators import (
    TracedOperator,
    UnreadableCallError,
    call_of,
    kind_of_call,
    read_trace,
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What calls of one kind have in common; memory is the number of a storage in the call, None for other.

    `is_whole` is unset for an operator that is made of others, whose work it has.
    """

    is_whole: bool
    flops: int | None
    bytes: int | None
    exactness: Exactness
    dtype: str | None
    shapes: str
    touched: tuple[tuple[int | None, int, bool], ...] = ()
    error: str | None = None


_UNREADABLE = _Kind(False, None, None, "unknown", None, "")


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of one call, with what it does to memory."""

    flops: int | None
    bytes: int | None
    exactness: Exactness
    dtype: str | None
    reuse: tuple[Reuse, ...] = ()


def traced_rows(trace: Path) -> list[dict[str, Any]]:
    """Return a row for each operator of a trace, in the order of their begins. Raises OSError."""
    operators = read_trace(trace)
    kinds: dict[str, _Kind] = {}
    storages: list[list[int]] = []
    of_operator: list[_Kind] = []
    for each in operators:
        name = kind_of_call(each)
        if name not in kinds:
            kinds[name] = _kind(each)
        of_operator.append(kinds[name])
        storages.append(each.storages())
    works = _works(operators, of_operator, storages)
    numbers = {each.number: at for at, each in enumerate(operators)}
    rows = zip(operators, of_operator, works, strict=True)
    return [
        _row(at, numbers.get(each.parent), each, kind, work) for at, (each, kind, work) in enumerate(rows)
    ]


def _kind(traced: TracedOperator) -> _Kind:
    try:
        call, operator, memory = call_of(traced)
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in call.input_shapes)
        dtype = computed_in(call.inputs or call.outputs)
        if is_composite(operator, call.inputs):
            return _Kind(False, 0, 0, "exact", dtype, shapes)
        work = count_call(call, operator)
    # Of an operator that this process does not have, or whose arguments are no plain data.
    except (UnreadableCallError, AttributeError, RuntimeError, TypeError, ValueError, IndexError) as error:
        return replace(_UNREADABLE, error=error_line(error))
    slots = memory.slots()
    touched = (*_touched(work.reads, slots, written=False), *_touched(work.writes, slots, written=True))
    failure = next(iter(work.errors), None)
    return _Kind(True, work.flops, work.bytes, work.exactness, dtype, shapes, touched, failure)


def _touched(
    parts: Iterable[Traffic], slots: dict[int, int], *, written: bool
) -> Iterator[tuple[int | None, int, bool]]:
    by_slot: dict[int | None, list[Traffic]] = defaultdict(list)
    for part in parts:
        key = None if isinstance(part, int) else storage_key(part)
        by_slot[None if key is None else slots.get(key)].append(part)
    for slot, members in by_slot.items():
        yield slot, traffic_bytes(members), written


# ---- calls -----------------------------------------------------------------------------------


def _works(
    operators: Sequence[TracedOperator], kinds: Sequence[_Kind], storages: Sequence[list[int]]
) -> list[_Work | None]:
    """Return the work of each call; None for those inside of a call that is counted as a whole."""
    number = {each.number: at for at, each in enumerate(operators)}
    parents = [number.get(each.parent) for each in operators]
    is_inside: list[bool] = []
    for parent in parents:
        is_inside.append(parent is not None and (is_inside[parent] or kinds[parent].is_whole))
    wholes = [at for at, kind in enumerate(kinds) if kind.is_whole and not is_inside[at]]
    reuse = reuse_distances([_addressed(kinds[at], storages[at]) for at in wholes])
    works: list[_Work | None] = [None] * len(kinds)
    for at, pieces in zip(wholes, reuse, strict=True):
        kind = kinds[at]
        works[at] = _Work(kind.flops, kind.bytes, kind.exactness, kind.dtype, tuple(pieces))
    children: dict[int, list[_Work]] = defaultdict(list)
    for at in reversed(range(len(kinds))):
        if is_inside[at]:
            continue
        work = works[at]
        if work is None:
            work = works[at] = _together(kinds[at], children[at][::-1])
        parent = parents[at]
        if parent is not None:
            children[parent].append(work)
    return works


def _addressed(kind: _Kind, storages: Sequence[int]) -> list[Touched]:
    return [
        Touched(None if slot is None else storages[slot], size, written)
        for slot, size, written in kind.touched
    ]


def _together(kind: _Kind, parts: Sequence[_Work]) -> _Work:
    """Return the work of an operator that is made of others, or that cannot be read: that of its parts."""
    if not parts:
        return _Work(kind.flops, kind.bytes, kind.exactness, kind.dtype)
    main = max(parts, key=lambda part: (part.flops or 0, part.bytes or 0))
    is_known = all(part.flops is not None and part.bytes is not None for part in parts)
    return _Work(
        known_sum(part.flops for part in parts) if is_known else None,
        known_sum(part.bytes for part in parts) if is_known else None,
        worst_of(part.exactness for part in parts),
        main.dtype,
        tuple(chain.from_iterable(part.reuse for part in parts)),
    )


def _row(
    position: int, parent: int | None, traced: TracedOperator, kind: _Kind, work: _Work | None
) -> dict[str, Any]:
    reuse = () if work is None else work.reuse
    return {
        "position": position,
        "parent": parent,
        "thread": traced.thread,
        "runs_backward": traced.runs_backward,
        "operator": traced.name,
        "overload": traced.overload,
        "flops": None if work is None else work.flops,
        "bytes": None if work is None else work.bytes,
        "exactness": None if work is None else work.exactness,
        "dtype": None if work is None else work.dtype,
        "input_shapes": kind.shapes,
        "reuse_distance_bytes": [each.distance_bytes for each in reuse],
        "reuse_bytes": [each.bytes for each in reuse],
        "reuse_written": [each.written for each in reuse],
        "error": None if work is None else kind.error,
    }
