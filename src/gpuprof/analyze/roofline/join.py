# SPDX-License-Identifier: Apache-2.0
"""Joins counted operators to timed ones, by layer and by their order in it.

In the forward pass each layer of each call of a root is aligned by itself. Times of the backward pass have no
layers: what runs between two forward passes is aligned with the counted backward passes of the roots that
were called before it, the last one first. Calls with equal sequences of operators are aligned once, together.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.roofline.counted import COMPILED, CountedRow, mean_row, plain_name
from gpuprof.analyze.roofline.device_activity import Executions, changes
from gpuprof.analyze.roofline.measured_spans import LAYER, MeasuredSpans, Wanted
from gpuprof.analyze.roofline.similar_calls import similar_to_first

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

# The alignment stores rows of bits for its way back: at most so many bits, 64 MB.
_MOST_BITS = 1 << 29
# A backward pass belongs to one of the forward passes shortly before it.
_FORWARD_PASSES_BEFORE = 8
# An operator of a layer with more different amounts of work than this has one row for all of them.
_MOST_ROWS_OF_AN_OPERATOR = 8


@dataclass(frozen=True, slots=True)
class Joined:
    """A counted operator, the durations of its timed calls, and how well its surroundings aligned.

    GPU work of its calls is in `executions`, by device; the durations are then those of the host. `quality`
    is the matched fraction of the operators nearby, 1 where none was timed. `is_traced` marks those that the
    counting pass did not see: their inputs were recorded.
    """

    row: CountedRow
    durations_ns: Ints
    quality: float
    executions: Mapping[str, Executions]
    is_traced: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether any of its calls had GPU work."""
        return bool(self.executions)


@dataclass(frozen=True, slots=True)
class Join:
    """Counted operators with their timed calls, and the timed operators without a counted partner.

    `rows` has every counted operator; in `operators` those of one layer with equal work are one. `row_of` is
    the number of a span's row or -1, `operator_of` that of a row's operator. `unmatched` are spans whose
    order differs, `other_work` those in calls with other inputs than the counted call.
    """

    rows: list[Joined]
    operators: list[Joined]
    row_of: Ints
    operator_of: Ints
    unmatched: Ints
    other_work: Ints
    backward_passes: int


@dataclass(frozen=True, slots=True)
class _Segments:
    """Sequences of candidates, each aligned by itself: `spans[starts[n] : ends[n]]` with `keys[n]`."""

    spans: Ints
    starts: Ints
    ends: Ints
    keys: list[Hashable]


class _Joiner:
    def __init__(self, counted: Sequence[CountedRow], timed: MeasuredSpans) -> None:
        self._names = [COMPILED if row.is_compiled else plain_name(row.operator) for row in counted]
        self._timed = timed
        self.row_of = np.full(len(timed.columns), -1, np.int64)
        self.quality = np.zeros(len(timed.columns))
        plain = [plain_name(name) for name in timed.columns.names]
        self._texts = sorted({COMPILED, *plain})
        code_of = {text: code for code, text in enumerate(self._texts)}
        self._code_of_name = np.array([code_of[text] for text in plain], np.int32)
        self._compiled = code_of[COMPILED]

    def match(self, segments: _Segments, counted: Mapping[Hashable, Sequence[int]]) -> None:
        """Align each segment with the counted rows that have its key."""
        columns, spans = self._timed.columns, segments.spans
        is_layer = columns.kind[spans] == LAYER
        codes = np.where(is_layer, self._compiled, self._code_of_name[columns.name[spans]]).astype(np.int32)
        raw, size = codes.tobytes(), codes.itemsize
        alike: dict[tuple[Hashable, bytes], list[int]] = defaultdict(list)
        bounds = zip(
            segments.keys, (segments.starts * size).tolist(), (segments.ends * size).tolist(), strict=True
        )
        for number, (key, start, end) in enumerate(bounds):
            alike[key, raw[start:end]].append(number)
        for (key, _), numbers in alike.items():
            first, last = int(segments.starts[numbers[0]]), int(segments.ends[numbers[0]])
            rows, quality = self._aligned(counted.get(key, ()), codes[first:last])
            at = segments.starts[numbers][:, np.newaxis] + np.arange(last - first)
            self.row_of[spans[at]] = rows
            self.quality[spans[at]] = quality

    def _aligned(self, counted: Sequence[int], codes: npt.NDArray[np.int32]) -> tuple[Ints, float]:
        """Return the counted row of each timed operator or -1, and the matched fraction of both sides."""
        rows = np.full(len(codes), -1, np.int64)
        pairs = align([self._names[row] for row in counted], [self._texts[code] for code in codes.tolist()])
        for left, right in pairs:
            rows[right] = counted[left]
        return rows, 2 * len(pairs) / (len(counted) + len(codes)) if pairs else 0.0


def names_to_look_for(counted: Iterable[CountedRow]) -> Wanted:
    """Return the names to search the timed side for, without the mark of the in-place form."""
    forward, backward = set(), set()
    for row in counted:
        if row.phase == "backward":
            backward.add(plain_name(row.operator))
        elif row.is_compiled:
            forward.add((row.root, f"{COMPILED}{row.layer}"))
        else:
            forward.add((row.root, plain_name(row.operator)))
    return Wanted(frozenset(forward), frozenset(backward))


def join(
    counted: Sequence[CountedRow], timed: MeasuredSpans, given: Mapping[int, bool] | None = None
) -> Join:
    """Find the timed calls of each counted operator.

    `given` has the root calls by `span_id`, as far as known: True for inputs like those of the counted one.
    """
    given = given or {}
    joiner = _Joiner(counted, timed)
    alike = similar_calls(timed, given)
    other_forward = _join_forward(joiner, counted, timed, alike)
    is_given = all(span_id in given for span_id in timed.columns.span_id[timed.calls].tolist())
    passes = _backward_passes(counted, timed)
    is_alike = _alike_passes(passes, timed, set(alike.tolist()) if is_given else None)
    other_backward = _join_backward(joiner, counted, timed, passes, is_alike)
    candidates = np.flatnonzero(timed.places.is_candidate)
    other_work = np.concatenate((other_forward, other_backward))
    in_call = timed.places.in_backward[candidates] | (timed.places.root_call[candidates] >= 0)
    is_left = in_call & (joiner.row_of[candidates] < 0) & ~np.isin(candidates, other_work)
    rows = _joined_rows(counted, timed, joiner)
    operators, operator_of = by_operator(rows)
    return Join(
        rows, operators, joiner.row_of, operator_of, candidates[is_left], other_work, len(passes.starts)
    )


# ---- forward ---------------------------------------------------------------------------------


def _join_forward(joiner: _Joiner, counted: Sequence[CountedRow], timed: MeasuredSpans, alike: Ints) -> Ints:
    """Join the operators of each layer of each call; returns the candidates in calls with other inputs."""
    columns, places = timed.columns, timed.places
    by_layer: dict[Hashable, list[int]] = defaultdict(list)
    for number, row in enumerate(counted):
        if row.phase != "backward":
            by_layer[row.root, row.layer].append(number)
    spans = np.flatnonzero(places.is_candidate & ~places.in_backward & (places.root_call >= 0))
    is_alike = np.isin(places.root_call[spans], alike)
    other, spans = spans[~is_alike], spans[is_alike]
    order = np.lexsort((spans, places.layer[spans], places.root_call[spans]))
    spans = spans[order]
    call, layer = places.root_call[spans], places.layer[spans]
    starts = np.flatnonzero(changes((call, layer)))
    names = columns.names
    roots, layers = columns.name[call[starts]].tolist(), layer[starts].tolist()
    keys: list[Hashable] = [(names[root], names[at]) for root, at in zip(roots, layers, strict=True)]
    ends = np.append(starts, len(spans))[1:]
    joiner.match(_Segments(spans, starts, ends, keys), by_layer)
    return other


def similar_calls(timed: MeasuredSpans, given: Mapping[int, bool]) -> Ints:
    """Return the root calls that do what the first call of their root did: by `given`, or by duration."""
    columns, places = timed.columns, timed.places
    is_forward = places.is_candidate & ~places.in_backward & (places.root_call >= 0)
    call_ns = np.zeros(len(columns), np.int64)
    np.add.at(call_ns, places.root_call[is_forward], columns.duration_ns[is_forward])
    chosen = []
    for root in np.unique(columns.name[timed.calls]).tolist():
        calls = timed.calls[columns.name[timed.calls] == root]
        found = [given.get(span_id) for span_id in columns.span_id[calls].tolist()]
        is_known = None not in found
        is_alike = found if is_known else similar_to_first(call_ns[calls].tolist())
        chosen.append(calls[np.array(is_alike, np.bool_)])
    return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


# ---- backward --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Passes:
    """Backward passes: `spans[starts[n] : ends[n]]`, after the root calls `calls[n]`, the last one first."""

    spans: Ints
    starts: Ints
    ends: Ints
    calls: list[tuple[int, ...]]


def _backward_passes(counted: Sequence[CountedRow], timed: MeasuredSpans) -> _Passes:
    """Return what ran between forward passes, in the order of time."""
    columns, places = timed.columns, timed.places
    roots = {row.root for row in counted if row.phase == "backward"}
    operators = np.flatnonzero(places.is_candidate & places.in_backward)
    events = np.sort(np.concatenate((operators, timed.calls)))
    events = events[np.argsort(columns.start_ns[events], kind="stable")]
    is_call = ~places.in_backward[events]
    changes = np.flatnonzero(is_call[1:] != is_call[:-1]) + 1
    bounds = [0, *changes.tolist(), len(events)]
    starts, ends, before = [], [], []
    calls: list[int] = []
    for start, end in itertools.pairwise(bounds):
        if start == end:
            continue
        if is_call[start]:
            calls = events[start:end].tolist()
        else:
            known = [call for call in calls if columns.names[columns.name[call]] in roots]
            starts.append(start)
            ends.append(end)
            before.append(tuple(reversed(known[-_FORWARD_PASSES_BEFORE:])))
    return _Passes(events, np.array(starts, np.int64), np.array(ends, np.int64), before)


def _alike_passes(passes: _Passes, timed: MeasuredSpans, alike: Collection[int] | None) -> list[bool]:
    """Return which passes do what the first did: after `alike` calls, or by duration where that is None."""
    if alike is not None:
        return [all(call in alike for call in calls) for calls in passes.calls]
    before = np.concatenate(([0], np.cumsum(timed.columns.duration_ns[passes.spans])))
    return similar_to_first((before[passes.ends] - before[passes.starts]).tolist())


def _join_backward(
    joiner: _Joiner,
    counted: Sequence[CountedRow],
    timed: MeasuredSpans,
    passes: _Passes,
    is_alike: Sequence[bool],
) -> Ints:
    """Join each backward pass; returns the candidates in those that do other work."""
    by_root: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(counted):
        if row.phase == "backward":
            by_root[row.root].append(number)
    columns = timed.columns
    expected = [tuple(columns.names[columns.name[call]] for call in calls) for calls in passes.calls]
    chosen = np.flatnonzero(np.array(is_alike, np.bool_))
    keys: list[Hashable] = [expected[number] for number in chosen.tolist()]
    rows_of: dict[Hashable, list[int]] = {
        roots: [number for root in roots for number in by_root[root]] for roots in set(expected)
    }
    joiner.match(_Segments(passes.spans, passes.starts[chosen], passes.ends[chosen], keys), rows_of)
    others = np.flatnonzero(~np.array(is_alike, np.bool_)).tolist()
    parts = [passes.spans[passes.starts[number] : passes.ends[number]] for number in others]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


# ---- rows ------------------------------------------------------------------------------------


def _joined_rows(counted: Sequence[CountedRow], timed: MeasuredSpans, joiner: _Joiner) -> list[Joined]:
    """Return each counted row with its timed calls."""
    spans = np.flatnonzero(joiner.row_of >= 0)
    by_row = _split_by(joiner.row_of[spans], spans, len(counted))
    executions = timed.gpu.executions
    row_of_execution = joiner.row_of[executions.owner]
    known = np.flatnonzero(row_of_execution >= 0)
    executions_by_row = _split_by(row_of_execution[known], known, len(counted))
    devices = timed.gpu.activity.devices
    return [
        Joined(
            row,
            timed.columns.duration_ns[calls],
            float(joiner.quality[calls].mean()) if len(calls) else 1.0,
            {
                devices[device]: executions.taken(which[executions.device[which] == device])
                for device in np.unique(executions.device[which]).tolist()
            },
        )
        for row, calls, which in zip(counted, by_row, executions_by_row, strict=True)
    ]


def _split_by(group: Ints, values: Ints, groups: int) -> list[Ints]:
    """Return the values of each group, in their order."""
    order = np.argsort(group, kind="stable")
    return np.split(values[order], np.searchsorted(group[order], np.arange(1, groups))) if groups else []


def by_operator(rows: Sequence[Joined]) -> tuple[list[Joined], Ints]:
    """Fold the calls of an operator in a layer, as of a loop: those with equal work, or all where it varies.

    Returns the folded rows, and the number of the folded row of each row.
    """
    works: dict[Hashable, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, each in enumerate(rows):
        row = each.row
        key = (row.root, row.layer, row.phase, row.operator, row.dtype, row.exactness, tuple(each.executions))
        works[key][row.flops, row.bytes].append(number)
    groups = [
        members
        for by_work in works.values()
        for members in (
            by_work.values()
            if len(by_work) <= _MOST_ROWS_OF_AN_OPERATOR
            else [[number for each in by_work.values() for number in each]]
        )
    ]
    groups.sort(key=lambda members: members[0])
    operator_of = np.zeros(len(rows), np.int64)
    for number, members in enumerate(groups):
        operator_of[members] = number
    return [_folded([rows[number] for number in members]) for members in groups], operator_of


def _folded(members: Sequence[Joined]) -> Joined:
    """Return counted operators as one, whose work is the mean of those that were timed."""
    if len(members) == 1:
        return members[0]
    timed = [each for each in members if len(each.durations_ns) or each.executions] or members
    calls = [len(each.durations_ns) for each in timed]
    quality = np.average([each.quality for each in timed], weights=calls if any(calls) else None)
    return Joined(
        mean_row([each.row for each in timed]),
        np.concatenate([each.durations_ns for each in timed]),
        float(quality),
        {
            device: _concatenated([each.executions[device] for each in timed])
            for device in timed[0].executions
        },
    )


def _concatenated(parts: Sequence[Executions]) -> Executions:
    return Executions(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Executions.__slots__)
    )


# ---- alignment -------------------------------------------------------------------------------


def align(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return index pairs of equal names, rising on both sides, as many as there can be.

    Sequences that are too long for that are aligned in parts, which may find fewer pairs.
    """
    head = 0
    while head < min(len(left), len(right)) and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < min(len(left), len(right)) - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    inner_left, inner_right = left[head : len(left) - tail], right[head : len(right) - tail]
    middle = [(head + i, head + j) for i, j in _aligned_parts(inner_left, inner_right)]
    ends = [(len(left) - at, len(right) - at) for at in range(tail, 0, -1)]
    return [*((at, at) for at in range(head)), *middle, *ends]


def _aligned_parts(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    if len(left) * len(right) <= _MOST_BITS:
        return _longest_common(left, right)
    half_left, half_right = len(left) // 2, len(right) // 2
    first = _aligned_parts(left[:half_left], right[:half_right])
    second = _aligned_parts(left[half_left:], right[half_right:])
    return [*first, *((half_left + i, half_right + j) for i, j in second)]


def _longest_common(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Bit-parallel dynamic programming (Hyyro 2004): a row of the table is one number, a column one bit."""
    if not left or not right:
        return []
    everything = (1 << len(right)) - 1
    where: dict[str, int] = {}
    for at, name in enumerate(right):
        where[name] = where.get(name, 0) | 1 << at
    rows, row = [everything], everything
    for name in left:
        hit = row & where.get(name, 0)
        row = ((row + hit) | (row - hit)) & everything
        rows.append(row)
    return _way_back(rows, left, right)


def _way_back(rows: list[int], left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Walk from the last corner. A bit that is 0 means that the length grows by one in that column."""
    pairs = []
    i, j = len(left), len(right)
    while i > 0 and j > 0:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]
