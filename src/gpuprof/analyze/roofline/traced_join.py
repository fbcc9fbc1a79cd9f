# SPDX-License-Identifier: Apache-2.0
"""Joins operators whose inputs were recorded to timed ones that the counting pass has no work for.

A stretch runs from one call of a root to the next: the call, and the loss, the backward pass and the
optimizer after it. In some stretches inputs were recorded: there each traced operator is one span. Another
stretch takes the work of a recorded one whose call had the same inputs, best after the same call before.
Where only sizes differ, as in the steps of a generation, the work is interpolated over the number of
elements: it is a polynomial of sizes, mostly of degree one or two, so three recorded stretches give it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.roofline.counted import CountedRow, plain_name
from gpuprof.analyze.roofline.device_activity import Executions, changes
from gpuprof.analyze.roofline.join import Join, Joined, align, by_operator
from gpuprof.analyze.roofline.measured_spans import OPERATOR, MeasuredSpans, levels_of, taken_or_none
from gpuprof.analyze.roofline.traced_inputs import InputWindow, SignatureSizes, TracedInputs
from gpuprof.record.work.rows import Exactness, Phase, Reuse

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

# What PyTorch calls the span around an optimizer's step.
_OPTIMIZER_STEP = "Optimizer.step#"
# Recorded stretches that give the work of one in between.
_POINTS = 3
# Traced operators are looked for a little further than a window has spans: other threads have some too.
_MORE_ROWS = 64

_Call = tuple[str, int]
# Parts of recorded rows that are added up, by row.
_Parts = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Operators from a root call to the next, in the order of their begins. `call` is None before the first.

    `before` is the call before it on its thread. Calls with unknown signatures have None.
    """

    thread: int
    root: str
    before: _Call | None
    call: _Call | None
    spans: Ints
    names: bytes


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A stretch with recorded inputs: for each of its spans the traced row or -1."""

    stretch: _Stretch
    rows: Ints


def join_traced(joined: Join, timed: MeasuredSpans, inputs: TracedInputs) -> tuple[Join, MeasuredSpans]:
    """Add the timed operators whose inputs are known; returns the spans without them among the uncounted."""
    stretches = _stretches(timed, inputs)
    recorded = list(_recorded(stretches, timed, inputs))
    found = _Found(len(timed.columns))
    _place(recorded, stretches, inputs, found)
    chosen = _chosen(joined, timed, inputs, found)
    if not len(chosen.spans):
        return joined, timed
    return _with_chosen(joined, timed, inputs, found, chosen)


# ---- stretches -------------------------------------------------------------------------------


def _stretches(timed: MeasuredSpans, inputs: TracedInputs) -> list[_Stretch]:
    """Return the operators of each thread that calls roots, split at these calls, with backward passes."""
    columns, places = timed.columns, timed.places
    calls = timed.calls[np.argsort(columns.start_ns[timed.calls], kind="stable")]
    threads = sorted({*columns.thread[calls].tolist(), *(window.thread_id for window in inputs.windows)})
    operators = np.flatnonzero(columns.kind == OPERATOR)
    operators = operators[np.lexsort((operators, columns.start_ns[operators]))]
    codes = _codes(columns.names)[columns.name]
    is_caller = np.isin(columns.thread[operators], threads)
    found = []
    for thread in threads:
        own_calls = calls[columns.thread[calls] == thread]
        is_own = columns.thread[operators] == thread
        if len(threads) == 1:  # else it is unknown whose backward pass another thread runs
            is_own |= ~is_caller & places.in_backward[operators]
        own = operators[is_own]
        at = np.searchsorted(columns.start_ns[own_calls], columns.start_ns[own], side="right")
        parts = np.split(own, np.searchsorted(at, np.arange(1, len(own_calls) + 1)))
        before: _Call | None = None
        for number, spans in enumerate(parts):
            root, call = "", None
            if number:
                span = int(own_calls[number - 1])
                root = columns.names[columns.name[span]]
                signature = inputs.numbers.get(int(columns.span_id[span]))
                call = None if signature is None else (root, signature)
            found.append(_Stretch(thread, root, before, call, spans, codes[spans].tobytes()))
            before = call
    return found


def _codes(names: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return a number for each name; names that differ by the mark of the in-place form have the same one."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(plain_name(name), len(numbers)) for name in names], np.int32)


def _recorded(
    stretches: Sequence[_Stretch], timed: MeasuredSpans, inputs: TracedInputs
) -> Iterator[_Recorded]:
    """Yield the recorded stretches with their traced rows."""
    columns, position = timed.columns, 0
    traced = set(inputs.names)
    for window in inputs.windows:
        stretch = _of_window(window, stretches)
        if stretch is None:
            continue
        start_ns = columns.start_ns[stretch.spans]
        inside = np.flatnonzero(
            (start_ns <= window.end_ns) & (bool(window.root) | (start_ns >= window.begin_ns))
        )
        names = [plain_name(columns.names[name]) for name in columns.name[stretch.spans[inside]].tolist()]
        known = [at for at, name in zip(inside.tolist(), names, strict=True) if name in traced]
        looked_for = [name for name in names if name in traced]
        slack = _MORE_ROWS + len(looked_for) // 4
        pairs = align(inputs.names[position : position + len(looked_for) + slack], looked_for)
        rows = np.full(len(stretch.spans), -1, np.int64)
        for row, at in pairs:
            rows[known[at]] = position + row
        position += pairs[-1][0] + 1 if pairs else 0
        yield _Recorded(stretch, rows)


def _of_window(window: InputWindow, stretches: Sequence[_Stretch]) -> _Stretch | None:
    """Return the stretch that a window was opened for; None where the recorded calls are not all known."""
    of_thread = [each for each in stretches if each.thread == window.thread_id and each.root == window.root]
    if window.root:
        of_thread = [each for each in of_thread if each.call is not None]
    return of_thread[window.call] if window.call < len(of_thread) else None


# ---- rows for spans --------------------------------------------------------------------------


class _Found:
    """For each span the work that was found, a number of `parts` or -1, and how well its stretch aligned."""

    def __init__(self, spans: int) -> None:
        self.work_of = np.full(spans, -1, np.int64)
        self.quality = np.zeros(spans)
        self.parts: list[_Parts] = []
        self._numbers: dict[_Parts, int] = {}

    def numbers(self, parts: Iterable[_Parts | None]) -> Ints:
        """Return a number for each work, -1 for none."""
        return np.array([-1 if each is None else self._number(each) for each in parts], np.int64)

    def add(self, spans: Ints, numbers: Ints, quality: float) -> None:
        """Set the work of spans."""
        self.work_of[spans] = numbers
        self.quality[spans] = quality

    def _number(self, parts: _Parts) -> int:
        number = self._numbers.setdefault(parts, len(self.parts))
        if number == len(self.parts):
            self.parts.append(parts)
        return number


def _place(
    recorded: Sequence[_Recorded], stretches: Sequence[_Stretch], inputs: TracedInputs, found: _Found
) -> None:
    """Find the work of the operators of each stretch."""
    own = {id(each.stretch): each for each in recorded}
    aligned: dict[tuple[int, bytes], tuple[Ints, float]] = {}
    for stretch in stretches:
        base = own.get(id(stretch)) or _followed_same(stretch, recorded)
        if base is None:
            _interpolate(stretch, recorded, inputs, found)
            continue
        key = (id(base), stretch.names)
        if key not in aligned:
            rows, quality = _aligned(base, stretch)
            aligned[key] = found.numbers(None if row < 0 else ((row, 1.0),) for row in rows), quality
        found.add(stretch.spans, *aligned[key])


def _followed_same(stretch: _Stretch, recorded: Sequence[_Recorded]) -> _Recorded | None:
    """Return a recorded stretch after a call with the same inputs, best after the same one before it."""
    if stretch.call is None:
        return None
    alike = [each for each in recorded if each.stretch.call == stretch.call]
    best = [each for each in alike if each.stretch.names == stretch.names] or alike
    return next((each for each in best if each.stretch.before == stretch.before), next(iter(best), None))


def _aligned(base: _Recorded, stretch: _Stretch) -> tuple[list[int], float]:
    """Return the row of each operator, and the fraction of both sides that matched."""
    left, right = _letters(base.stretch.names), _letters(stretch.names)
    rows = [-1] * len(right)
    pairs = align(left, right)
    for at, other in pairs:
        rows[other] = int(base.rows[at])
    return rows, 2 * len(pairs) / max(1, len(left) + len(right))


def _letters(names: bytes) -> list[str]:
    return list(map(str, np.frombuffer(names, np.int32).tolist()))


def _interpolate(
    stretch: _Stretch, recorded: Sequence[_Recorded], inputs: TracedInputs, found: _Found
) -> None:
    """Find the work of a stretch whose inputs differ in sizes alone from those of recorded ones."""
    sizes = _sizes(stretch, inputs)
    if sizes is None:
        return
    points = _points(stretch, sizes, recorded, inputs)
    nearest = sorted(points, key=lambda elements: (abs(elements - sizes.elements), elements))[:_POINTS]
    if not points or (len(nearest) < 2 and sizes.elements not in points):
        return
    weights = lagrange_weights([float(each) for each in nearest], float(sizes.elements))
    rows = np.stack([points[each].rows for each in nearest]).T.tolist()
    left, right = _letters(points[nearest[0]].stretch.names), _letters(stretch.names)
    parts: list[_Parts | None] = [None] * len(right)
    pairs = align(left, right)
    for at, other in pairs:
        if min(rows[at]) >= 0:
            parts[other] = tuple(zip(rows[at], weights, strict=True))
    found.add(stretch.spans, found.numbers(parts), 2 * len(pairs) / max(1, len(left) + len(right)))


def _points(
    stretch: _Stretch, sizes: SignatureSizes, recorded: Sequence[_Recorded], inputs: TracedInputs
) -> dict[int, _Recorded]:
    """Return recorded stretches with other sizes, by elements; all have the same operators."""
    by_names: dict[bytes, dict[int, _Recorded]] = defaultdict(dict)
    for each in recorded:
        other = _sizes(each.stretch, inputs)
        if each.stretch.root != stretch.root or other is None:
            continue
        if other.structure == sizes.structure:
            by_names[each.stretch.names].setdefault(other.elements, each)
    if stretch.names in by_names and len(by_names[stretch.names]) > 1:
        return by_names[stretch.names]
    return max(by_names.values(), key=len, default={})


def _sizes(stretch: _Stretch, inputs: TracedInputs) -> SignatureSizes | None:
    if stretch.call is None:
        return None
    root, number = stretch.call
    known = inputs.signatures.get(root, [])
    return known[number] if number < len(known) else None


def lagrange_weights(points: Sequence[float], at: float) -> list[float]:
    """Return the weights of values at `points` that give the polynomial through them, evaluated at `at`."""
    weights = []
    for number, point in enumerate(points):
        others = [other for which, other in enumerate(points) if which != number]
        weights.append(float(np.prod([(at - other) / (point - other) for other in others])))
    return weights


# ---- what is taken of it ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The outermost operators with work; `around` is the one that a span is in, or is, else -1."""

    spans: Ints
    around: Ints
    in_optimizer: Bools


def _chosen(joined: Join, timed: MeasuredSpans, inputs: TracedInputs, found: _Found) -> _Chosen:
    """Choose the outermost operators with work that neither contain a counted operator nor are in one."""
    columns = timed.columns
    is_counted = joined.row_of >= 0
    contains = np.zeros(len(columns), np.bool_)
    above = columns.parent[is_counted]
    while len(above := np.unique(above[above >= 0])):
        contains[above] = True
        above = columns.parent[above]
    has_work = np.array(
        [all(inputs.rows[row] is not None for row, _ in parts) for parts in found.parts], np.bool_
    )
    is_open = (found.work_of >= 0) & ~is_counted & ~contains
    is_open[is_open] = has_work[found.work_of[is_open]]
    is_step = np.array([name.startswith(_OPTIMIZER_STEP) for name in columns.names], np.bool_)[columns.name]
    # The last element is that of no span.
    around = np.full(len(columns) + 1, -1, np.int64)
    is_taken, in_optimizer = (np.zeros(len(columns) + 1, np.bool_) for _ in range(2))
    for level in levels_of(columns.parent):
        parent = columns.parent[level]
        is_new = is_open[level] & ~is_taken[parent] & (around[parent] < 0)
        around[level] = np.where(is_new, level, around[parent])
        is_taken[level] = is_taken[parent] | is_counted[level]
        in_optimizer[level] = in_optimizer[parent] | is_step[level]
    around = around[:-1]
    return _Chosen(np.flatnonzero(around == np.arange(len(around))), around, in_optimizer[:-1])


def _with_chosen(
    joined: Join, timed: MeasuredSpans, inputs: TracedInputs, found: _Found, chosen: _Chosen
) -> tuple[Join, MeasuredSpans]:
    columns, spans = timed.columns, chosen.spans
    executions = _executions_of(timed, chosen)
    row_of = joined.row_of.copy()
    rows = list(joined.rows)
    for members in _groups(timed, found, chosen):
        row_of[members] = len(rows)
        first = int(members[0])
        row = replace(
            _added_up(found.parts[found.work_of[first]], inputs),
            root=timed.root_of(first),
            layer=timed.layer_of(first),
            phase=_phase(first, timed, chosen),
            ordinal=len(rows),
        )
        quality = float(found.quality[members].mean())
        on_devices = _of_spans(timed, executions, members)
        rows.append(Joined(row, columns.duration_ns[members], quality, on_devices, is_traced=True))
    inside = np.flatnonzero(chosen.around >= 0)
    row_of[inside] = row_of[chosen.around[inside]]
    operators, operator_of = by_operator(rows)
    unmatched, other_work = (each[row_of[each] < 0] for each in (joined.unmatched, joined.other_work))
    inner_ns = timed.inner_ns.copy()
    outer = timed.places.outermost[spans]
    np.add.at(inner_ns, outer[outer >= 0], columns.duration_ns[spans[outer >= 0]])
    return (
        Join(rows, operators, row_of, operator_of, unmatched, other_work, joined.backward_passes),
        replace(timed, inner_ns=inner_ns, uncounted=timed.uncounted[row_of[timed.uncounted] < 0]),
    )


def _groups(timed: MeasuredSpans, found: _Found, chosen: _Chosen) -> list[Ints]:
    """Return the chosen operators with equal work, root, layer and phase, in the order of the first ones."""
    spans, places = chosen.spans, timed.places
    root = taken_or_none(timed.columns.name, places.root_call[spans])
    phase = 2 * places.in_backward[spans] + chosen.in_optimizer[spans]
    keys = (found.work_of[spans], root, places.layer[spans], phase)
    order = np.lexsort((spans, *keys))
    starts = np.flatnonzero(changes([key[order] for key in keys]))
    groups = np.split(spans[order], starts[1:])
    return sorted(groups, key=lambda members: int(members[0]))


def _phase(span: int, timed: MeasuredSpans, chosen: _Chosen) -> Phase:
    if timed.places.in_backward[span]:
        return "backward"
    return "optimizer" if chosen.in_optimizer[span] else "forward"


def _added_up(parts: _Parts, inputs: TracedInputs) -> CountedRow:
    """Return the work of a row, or of several with weights; between rows it is an estimate."""
    rows = [(row, weight) for at, weight in parts if (row := inputs.rows[at]) is not None]
    if len(rows) == 1:
        return rows[0][0]
    first = max(rows, key=lambda pair: pair[1])[0]
    is_unknown = any(row.exactness == "unknown" for row, _ in rows)
    return replace(
        first,
        flops=_weighted([(row.flops, weight) for row, weight in rows]),
        bytes=_weighted([(row.bytes, weight) for row, weight in rows]),
        exactness="unknown" if is_unknown else _between(rows, first),
        reuse=_scaled(first, _weighted([(row.bytes, weight) for row, weight in rows])),
    )


def _between(rows: Sequence[tuple[CountedRow, float]], first: CountedRow) -> Exactness:
    """Return "estimated" where the work differs between rows, else what the rows have."""
    is_same = all((row.flops, row.bytes) == (first.flops, first.bytes) for row, _ in rows)
    return first.exactness if is_same else "estimated"


def _weighted(values: Sequence[tuple[int | None, float]]) -> int | None:
    known = [value * weight for value, weight in values if value is not None]
    return max(0, round(sum(known))) if len(known) == len(values) else None


def _scaled(row: CountedRow, moved: int | None) -> tuple[Reuse, ...]:
    """Return the accesses to memory of a row, for other bytes in all."""
    if not row.bytes or moved is None:
        return row.reuse
    return tuple(replace(piece, bytes=round(piece.bytes * moved / row.bytes)) for piece in row.reuse)


# ---- GPUs ------------------------------------------------------------------------------------


def _executions_of(timed: MeasuredSpans, chosen: _Chosen) -> Mapping[int, list[int]]:
    """Return the executions on GPUs by the chosen operator that they are of."""
    found: dict[int, list[int]] = defaultdict(list)
    owners = timed.gpu.executions.owner
    for at, span in enumerate(chosen.around[owners].tolist() if len(owners) else ()):
        if span >= 0:
            found[span].append(at)
    return found


def _of_spans(
    timed: MeasuredSpans, executions: Mapping[int, list[int]], spans: Ints
) -> dict[str, Executions]:
    """Return the executions of operators by device."""
    if not executions:
        return {}
    which = np.array([at for span in spans.tolist() for at in executions.get(span, ())], np.int64)
    columns, devices = timed.gpu.executions, timed.gpu.activity.devices
    return {
        devices[device]: columns.taken(which[columns.device[which] == device])
        for device in np.unique(columns.device[which]).tolist()
    }
