# SPDX-License-Identifier: Apache-2.0
"""The steps of a trace of another tool: by annotations, by the optimizer, by layers, or by repetition.

A trace has no program that could mark its steps. The first of these that a process has is their source:

- `span`: spans named `step`
- `annotation`: ranges that a program or a profiler numbers, such as `ProfilerStep#3` or `iteration 12`
- `optimizer`, `calls`: as in recordings
- `repetition`: operators that repeat in the same order, with a wait for the GPU in each repetition
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.run.outermost_calls import Call, ProgramCalls, read_outermost_calls
from gpuprof.run.steps import Step, find_steps, steps_in

if TYPE_CHECKING:
    import duckdb

Ints = npt.NDArray[np.int64]

# The words of an annotation of steps, without its NVTX domain, its number and what is around it.
_OF_STEPS = re.compile(
    r"([^:]+: )?\W*"
    r"(profilerstep|(train(ing)?|eval|decode|generation|inference)?[ _]?(step|iteration|iter|batch))"
    r"\W*(\d+)?\W*",
    re.IGNORECASE,
)
_RANGES = """
    SELECT process_id, thread_id, name, start_ns AS begin_ns, start_ns + duration_ns AS end_ns
    FROM read_parquet($spans) WHERE kind IN ('span', 'nvtx') AND name IN (SELECT unnest($names))
    ORDER BY process_id, start_ns, end_ns DESC
"""
_WAITS = """
    SELECT process_id, thread_id, start_ns FROM read_parquet($spans)
    WHERE regexp_matches(name, '^(cuda|hip)(Stream|Device|Event)Synchronize$|^aten::_local_scalar_dense$')
    ORDER BY start_ns
"""
_FEWEST_REPETITIONS = 3
_MOST_ANCHORS = 64
_MOST_CALLS = 2_000_000  # of all layers and operators; more take too much memory
_EQUAL = 0.8  # of the repetitions have the same operators
_LEAST_TIME = 0.5  # of the time of all operators is in the repetitions


def imported_steps(
    connection: duckdb.DuckDBPyConnection, spans: Path, tree: dict[str, Any], names: Sequence[str]
) -> list[Step]:
    """Return the steps of all processes of a trace, by its table `spans` and its call tree."""
    files = str(spans / "**" / "*.parquet")
    annotations = [name for name in dict.fromkeys(names) if name != "step" and _OF_STEPS.fullmatch(name)]
    query = {"spans": files, "names": annotations}
    ranges = connection.execute(_RANGES, query).fetchnumpy() if annotations else None
    waits = connection.execute(_WAITS, {"spans": files}).fetchnumpy()
    is_small = int(np.maximum(tree["calls"], 0).sum()) <= _MOST_CALLS
    outermost = read_outermost_calls(connection, spans, tree, names, None, are_needed=is_small)
    found: list[Step] = []
    for process_id, calls in outermost.by_process():
        if not (calls.call == Call.MARK).any() and ranges is not None:
            thread_id, intervals = _annotated(ranges, process_id)
            if intervals:
                found += steps_in(_with_forward(calls), process_id, thread_id, "annotation", intervals)
                continue
        of_program = find_steps(calls, process_id, has_operators=True)
        found += of_program or _repeated(calls, process_id, waits)
    return found


def _with_forward(calls: ProgramCalls) -> ProgramCalls:
    """Have all operators be forward in a program without layers and without a backward pass."""
    if np.isin(calls.call, (Call.FORWARD, Call.BACKWARD)).any():
        return calls
    kinds = np.where(calls.call == Call.OPERATOR, int(Call.FORWARD), calls.call)
    return ProgramCalls(calls.layer, calls.thread_id, calls.start_ns, calls.end_ns, kinds, calls.evaluated)


def _annotated(ranges: dict[str, Any], process_id: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the thread and the intervals of the annotation that covers the most time of a process."""
    groups: dict[tuple[int, str], list[tuple[int, int]]] = {}
    columns = [np.asarray(ranges[name]) for name in ("process_id", "thread_id", "name", "begin_ns", "end_ns")]
    for process, thread, name, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        if process == process_id:
            words = re.sub(r"\d+", "", str(name)).strip().lower()
            groups.setdefault((thread, words), []).append((begin, end))
    if not groups:
        return 0, []
    (thread_id, _), intervals = max(
        groups.items(), key=lambda each: (sum(end - begin for begin, end in each[1]), len(each[1]))
    )
    return thread_id, intervals


# ---- repetition --------------------------------------------------------------------------------------------


def _repeated(calls: ProgramCalls, process_id: int, waits: dict[str, Any]) -> list[Step]:
    """Return the repetitions of operators on the thread with the most time in them."""
    operators = calls.chosen(calls.call == Call.OPERATOR)
    if not len(operators.call):
        return []
    threads, place = np.unique(operators.thread_id, return_inverse=True)
    thread_id = int(threads[np.bincount(place, operators.end_ns - operators.start_ns).argmax()])
    own = operators.chosen(operators.thread_id == thread_id)
    on_thread = (waits["process_id"] == process_id) & (waits["thread_id"] == thread_id)
    intervals = _repetitions(own, waits["start_ns"][on_thread].astype(np.int64))
    return steps_in(_with_forward(calls), process_id, thread_id, "repetition", intervals) if intervals else []


def _repetitions(operators: ProgramCalls, waits_ns: Ints) -> list[tuple[int, int]]:
    """Return begin and end of each repetition; none if nothing repeats with a wait for the GPU in it.

    Without a wait in each of them, repetitions may be the equal layers of one step.
    """
    _, name = np.unique(operators.layer.astype(str), return_inverse=True)
    best: tuple[int, list[tuple[int, int]]] = (0, [])
    for starts in _anchors(name):
        lengths = np.diff(starts)
        equal = [
            at
            for at in range(len(lengths))
            if lengths[at] == lengths[-1]
            and np.array_equal(name[starts[at] : starts[at + 1]], name[starts[-2] : starts[-1]])
        ]
        if len(equal) < max(_FEWEST_REPETITIONS - 1, _EQUAL * len(lengths)):
            continue
        last = min(int(starts[-1] + lengths[-1]), len(name)) - 1
        edges = [*operators.start_ns[starts].tolist(), int(operators.end_ns[last])]
        inside = np.diff(np.searchsorted(waits_ns, edges))
        if (inside[:-1] == 0).any():
            continue
        intervals = list(itertools.pairwise(edges))
        if edges[-1] - edges[0] > best[0]:
            best = edges[-1] - edges[0], intervals
    whole_ns = int((operators.end_ns - operators.start_ns).sum())
    first, until = (best[1][0][0], best[1][-1][1]) if best[1] else (0, 0)
    inside = (operators.start_ns >= first) & (operators.end_ns <= until)
    covered_ns = int((operators.end_ns - operators.start_ns)[inside].sum())
    return best[1] if covered_ns >= _LEAST_TIME * whole_ns else []


def _anchors(name: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the places of each operator that may begin the repetitions, the rarest first."""
    counts = np.bincount(name)
    order = np.argsort(counts, kind="stable")
    candidates = [int(each) for each in order.tolist() if counts[each] >= _FEWEST_REPETITIONS]
    for each in candidates[:_MOST_ANCHORS]:
        yield np.flatnonzero(name == each)
