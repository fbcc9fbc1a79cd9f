# SPDX-License-Identifier: Apache-2.0
"""The steps of a program, and what each consists of: the table `steps`.

Steps are the spans named `step`, or else end with the optimizer's step, or else are the repeated calls of one
layer outside all others. Their parts are the outermost calls: of layers, of the backward pass, of the
optimizer, of the data loader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuprof.run.outermost_calls import Call, ProgramCalls, after_closures

Ints = npt.NDArray[np.int64]

UNKNOWN = -1
# What the autograd engine needs between two nodes; a longer gap is the program's.
LONGEST_ENGINE_GAP_NS = 1_000_000

STEPS_QUERY = """
    SELECT process_id, number::INTEGER AS index, begin_ns, end_ns, kind, source,
        nullif(forward_ns, -1) AS forward_ns, nullif(backward_ns, -1) AS backward_ns,
        nullif(optimizer_ns, -1) AS optimizer_ns, nullif(data_ns, -1) AS data_ns,
        nullif(other_ns, -1) AS other_ns
    FROM batch ORDER BY process_id, number
"""


class Step(NamedTuple):
    """A row of the table `steps`; UNKNOWN for a part that was not recorded."""

    process_id: int
    number: int  # the column `index`
    begin_ns: int
    end_ns: int
    kind: str
    source: str
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    data_ns: int
    other_ns: int


def thread_of_steps(calls: ProgramCalls) -> int | None:
    """Return the thread that makes a process's steps; None if nothing in it is a step."""
    source, thread_id, _ = _source_of(calls)
    return None if source is None else thread_id


def find_steps(
    calls: ProgramCalls, process_id: int, *, has_operators: bool, breaks: Sequence[tuple[int, int]] = ()
) -> list[Step]:
    """Return the steps of a process in order; none if nothing in it is a step.

    A step begins after a break (begin and end) between it and the step before, as a checkpoint. Without
    operators, PyTorch announces neither the backward pass nor the optimizer nor the loader.
    """
    source, thread_id, layer = _source_of(calls)
    if source is None:
        return []
    calls = _of_steps(calls, thread_id)
    if source == "span":
        marks = calls.chosen(calls.call == Call.MARK)
        intervals = _apart(marks.start_ns, marks.end_ns)
    elif source == "optimizer":
        intervals = list(_intervals_by_optimizer(calls, [end for _, end in breaks]))
    else:
        repeated = calls.chosen((calls.call == Call.FORWARD) & (calls.layer == layer))
        intervals = _apart(repeated.start_ns, repeated.end_ns)
    return _measured(calls, process_id, source, intervals, has_operators=has_operators)


def steps_in(
    calls: ProgramCalls, process_id: int, thread_id: int, source: str, intervals: Sequence[tuple[int, int]]
) -> list[Step]:
    """Return steps of which begins and ends are known: those of a thread, without those inside another."""
    begin, end = np.array(intervals, dtype=np.int64).reshape(-1, 2).T
    known = _apart(begin, end)
    return _measured(_of_steps(calls, thread_id), process_id, source, known, has_operators=True)


def _of_steps(calls: ProgramCalls, thread_id: int) -> ProgramCalls:
    """Return the calls of a thread, and the backward pass of any, with losses as forward calls."""
    on_thread = (calls.thread_id == thread_id) | (calls.call == Call.BACKWARD)
    return _with_loss_and_gaps(calls.chosen(on_thread))


def _source_of(calls: ProgramCalls) -> tuple[str | None, int, str]:
    """Return the source of the steps, their thread, and the layer of repeated calls."""
    for source, call in (("span", Call.MARK), ("optimizer", Call.OPTIMIZER)):
        threads, counts = np.unique(calls.thread_id[calls.call == call], return_counts=True)
        if len(threads):
            return source, int(threads[counts.argmax()]), ""
    is_forward = calls.call == Call.FORWARD
    totals: dict[tuple[int, str], list[int]] = {}
    forward = calls.chosen(is_forward)
    durations = (forward.end_ns - forward.start_ns).tolist()
    for thread_id, layer, duration in zip(
        forward.thread_id.tolist(), forward.layer.tolist(), durations, strict=True
    ):
        found = totals.setdefault((thread_id, layer), [0, 0])
        found[0] += duration
        found[1] += 1
    if not totals:
        return None, 0, ""
    (thread_id, layer), (_, count) = max(totals.items(), key=lambda each: each[1][0])
    return ("calls", thread_id, layer) if count > 1 else (None, 0, "")


def _apart(start_ns: Ints, end_ns: Ints) -> list[tuple[int, int]]:
    """Return intervals without those inside an earlier one; tasks of one thread may overlap."""
    intervals: list[tuple[int, int]] = []
    for begin, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        if not intervals or begin >= intervals[-1][1]:
            intervals.append((begin, end))
    return intervals


def _with_loss_and_gaps(calls: ProgramCalls) -> ProgramCalls:
    """Have operators directly before a backward pass, as those of a loss, be forward; others are left out.

    A node of the backward pass lasts until the next one, if that follows at once.
    """
    kinds = calls.call.copy()
    is_said = ~np.isin(kinds, (Call.OPERATOR, Call.ZERO_GRAD, Call.MARK))
    places = np.where(is_said, np.arange(len(kinds)), len(kinds))
    following = np.minimum.accumulate(places[::-1])[::-1]
    next_kind = np.append(kinds, Call.OPERATOR)[following]
    kinds[(kinds == Call.OPERATOR) & (next_kind == Call.BACKWARD)] = Call.FORWARD
    ends = calls.end_ns.copy()
    is_backward = kinds == Call.BACKWARD
    gaps = calls.start_ns[1:] - ends[:-1]
    is_engines = is_backward[:-1] & is_backward[1:] & (gaps > 0) & (gaps <= LONGEST_ENGINE_GAP_NS)
    ends[:-1][is_engines] = calls.start_ns[1:][is_engines]
    joined = ProgramCalls(calls.layer, calls.thread_id, calls.start_ns, ends, kinds, calls.evaluated)
    return joined.chosen(kinds != Call.OPERATOR)


# ---- steps that end with the optimizer's -------------------------------------------------------------------


def _intervals_by_optimizer(calls: ProgramCalls, ends_of_breaks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each step.

    A step begins where the one before ends. If breaks or forward calls of an evaluation are in between, it
    begins after the last of them.
    """
    runs = _runs(calls)
    until: int | None = None
    at = 0
    for begin, end in _optimizer_groups(calls):
        window = []
        while at < len(runs) and runs[at].start_ns < end:
            window.append(runs[at])
            at += 1
        first = _first_of_step(window)
        if until is None or first > 0:
            earliest = min([begin, *(run.start_ns for run in window[first:])])
            begin = earliest if until is None else max(earliest, until)
        else:
            begin = until
        if until is not None:
            first_ns = min([end, *(run.start_ns for run in window[first:][:1])])
            place = bisect_right(ends_of_breaks, first_ns) - 1
            begin = max(begin, ends_of_breaks[place]) if place >= 0 else begin
        yield begin, end
        until = end


class _Run(NamedTuple):
    call: int
    start_ns: int
    end_ns: int
    layer: str  # of forward calls
    is_evaluation: bool


def _runs(calls: ProgramCalls) -> list[_Run]:
    """Return the calls but the optimizer's steps, those of one kind that follow one another as one.

    Forward calls are of one kind if they are of one layer in one mode.
    """
    calls = calls.chosen(~np.isin(calls.call, (Call.OPTIMIZER, Call.MARK)))
    if not len(calls.call):
        return []
    is_other = (np.diff(calls.call) != 0) | (np.diff(calls.evaluated.astype(np.int8)) != 0)
    is_other |= (calls.layer[1:] != calls.layer[:-1]) & (calls.call[1:] == Call.FORWARD)
    first = np.flatnonzero(np.append(True, is_other))
    last = np.append(first[1:], len(calls.call)) - 1
    columns = (
        calls.call[first],
        calls.start_ns[first],
        calls.end_ns[last],
        calls.layer[first],
        calls.evaluated[first],
    )
    return [_Run(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _first_of_step(window: list[_Run]) -> int:
    """Return where in a window a step begins: after the last evaluation.

    That is a forward run before other data, or one without gradients of a layer that is trained after it. A
    teacher, which is never trained, is part of a step.
    """
    if not any(run.call == Call.BACKWARD for run in window):
        return 0
    following: int = Call.BACKWARD
    trained: set[str] = set()
    for place in range(len(window) - 1, -1, -1):
        call, *_, layer, is_evaluation = window[place]
        if call == Call.FORWARD and (following == Call.DATA or (is_evaluation and layer in trained)):
            return place + 1
        if call == Call.FORWARD and not is_evaluation:
            trained.add(layer)
        if call != Call.ZERO_GRAD:
            following = call
    return 0


def _optimizer_groups(calls: ProgramCalls) -> list[tuple[int, int]]:
    """Return begin and end of the optimizers' steps; those without a backward pass in between are one."""
    steps = calls.chosen(calls.call == Call.OPTIMIZER)
    nodes = calls.start_ns[calls.call == Call.BACKWARD]
    before = np.searchsorted(nodes, steps.start_ns).tolist()
    groups: list[tuple[int, int]] = []
    for place, (begin, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        is_same = place and len(nodes) and before[place] == before[place - 1]
        if is_same or (groups and begin < groups[-1][1]):
            groups[-1] = (groups[-1][0], max(end, groups[-1][1]))
        else:
            groups.append((begin, end))
    return groups


# ---- parts of steps ----------------------------------------------------------------------------------------

# Where calls overlap, the first of these has the time: an optimizer's step may contain all others.
_PARTS = (
    ("data_ns", (Call.DATA,)),
    ("backward_ns", (Call.BACKWARD,)),
    ("forward_ns", (Call.FORWARD,)),
    ("optimizer_ns", (Call.OPTIMIZER, Call.ZERO_GRAD)),
)


def _measured(
    calls: ProgramCalls,
    process_id: int,
    source: str,
    intervals: list[tuple[int, int]],
    *,
    has_operators: bool,
) -> list[Step]:
    calls = _without_closures(calls)
    bounds = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    edges = np.unique(np.concatenate([calls.start_ns, calls.end_ns, bounds.ravel()]))
    places = np.searchsorted(edges, bounds)
    owned = np.zeros(len(edges), dtype=np.bool_)
    lengths = np.append(np.diff(edges), 0)
    parts: dict[str, list[int]] = {}
    for name, kinds in _PARTS:
        mine = _covered(edges, calls.chosen(np.isin(calls.call, kinds))) & ~owned
        owned |= mine
        until = np.concatenate([[0], np.cumsum(lengths * mine)])
        parts[name] = (until[places[:, 1]] - until[places[:, 0]]).tolist()
    steps = []
    for index, (begin, end) in enumerate(intervals):
        times = {name: values[index] for name, values in parts.items()}
        is_training = times["backward_ns"] + times["optimizer_ns"] > 0
        is_forward = has_operators and times["forward_ns"] > 0
        other_ns = end - begin - sum(times.values())
        if not has_operators:
            times = {name: UNKNOWN if name != "forward_ns" else value for name, value in times.items()}
            other_ns = UNKNOWN
        kind = "training" if is_training else "forward" if is_forward else "unknown"
        steps.append(Step(process_id, index, begin, end, kind, source, **times, other_ns=other_ns))
    return steps


def _without_closures(calls: ProgramCalls) -> ProgramCalls:
    """Have the optimizers' steps begin with the update: what a closure does besides is no part of it."""
    is_step, is_backward = calls.call == Call.OPTIMIZER, calls.call == Call.BACKWARD
    start_ns = calls.start_ns.copy()
    start_ns[is_step] = after_closures(
        calls.start_ns[is_step],
        calls.end_ns[is_step],
        calls.start_ns[calls.call == Call.FORWARD],
        calls.start_ns[is_backward],
        calls.end_ns[is_backward],
    )
    return replace(calls, start_ns=start_ns)


def _covered(edges: Ints, calls: ProgramCalls) -> npt.NDArray[np.bool_]:
    """Return for each edge whether a call lasts from it to the next one."""
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, calls.start_ns), 1)
    np.add.at(change, np.searchsorted(edges, calls.end_ns), -1)
    return np.cumsum(change) > 0
