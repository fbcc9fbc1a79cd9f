# SPDX-License-Identifier: Apache-2.0
"""Random programs of spans on several threads, run for real, against a slow reading in plain Python."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuprof

NAMES = "abc"
# (thread, name) enters a span; (thread, None, how deep) leaves one that is open, 0 being the innermost.
Step = tuple[int, str | None, int]


@dataclass
class Expected:
    """What one thread must have recorded: each span's name, its parent's number, its depth."""

    spans: list[tuple[str, int | None, int]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def enter(self, name: str) -> None:
        parent = self.open[-1] if self.open else None
        self.open.append(len(self.spans))
        self.spans.append((name, parent, 0 if parent is None else self.spans[parent][2] + 1))

    def leave(self, place: int) -> str:
        """Leave the open span at `place` from the top; the innermost of its name is the one that ends."""
        name = self.spans[self.open[-1 - place]][0]
        innermost = max(number for number in self.open if self.spans[number][0] == name)
        self.open.remove(innermost)
        return name


@st.composite
def programs(draw: st.DrawFn, in_order: bool) -> list[Step]:
    """Draw steps of up to three threads, each leaving only what it has open."""
    steps: list[Step] = []
    open_spans: Counter[int] = Counter()
    for _ in range(draw(st.integers(0, 40))):
        thread = draw(st.integers(0, 2))
        if open_spans[thread] and draw(st.booleans()):
            place = 0 if in_order else draw(st.integers(0, open_spans[thread] - 1))
            steps.append((thread, None, place))
            open_spans[thread] -= 1
        else:
            steps.append((thread, draw(st.sampled_from(NAMES)), 0))
            open_spans[thread] += 1
    closing = [(thread, None, 0) for thread, count in open_spans.items() for _ in range(count)]
    return steps + closing if draw(st.booleans()) else steps


class Threads:
    """Real threads that do one step at a time, in the given order."""

    def __init__(self, count: int) -> None:
        self._orders: list[SimpleQueue[Callable[[], object] | None]] = [SimpleQueue() for _ in range(count)]
        self._done: SimpleQueue[None] = SimpleQueue()
        self.ids: list[int] = [0] * count
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        self.ids[number] = threading.get_native_id()
        while (order := self._orders[number].get()) is not None:
            order()
            self._done.put(None)

    def do(self, number: int, order: Callable[[], object]) -> None:
        self._orders[number].put(order)
        self._done.get()

    def end(self) -> None:
        for orders in self._orders:
            orders.put(None)
        for thread in self._threads:
            thread.join()


def run_steps(steps: list[Step], folder: Path) -> tuple[gpuprof.Run, dict[int, Expected]]:
    """Do the steps under a recording; returns the run and what each thread, by its id, must have recorded."""
    expected: dict[int, Expected] = defaultdict(Expected)
    spans = {name: gpuprof.span(name) for name in NAMES}
    threads = Threads(3)
    try:
        with gpuprof.profile(out=folder / "r.gpuprof", layers=False, operators=False) as recording:
            for thread, name, place in steps:
                if name is not None:
                    expected[thread].enter(name)
                    threads.do(thread, spans[name].__enter__)
                else:
                    left = spans[expected[thread].leave(place)]
                    threads.do(thread, lambda left=left: left.__exit__(None, None, None))
    finally:
        threads.end()
    return recording.run, {threads.ids[number]: each for number, each in expected.items()}


def read_spans(run: gpuprof.Run) -> dict[int, list[tuple[str, int | None, int]]]:
    """Return each thread's spans as `Expected` has them: numbered by thread, in the order of their begin."""
    query = "SELECT span_id, parent_id, thread_id, name, depth FROM spans ORDER BY span_id"
    numbers: dict[int, int] = {}
    found: dict[int, list[tuple[str, int | None, int]]] = defaultdict(list)
    for span_id, parent_id, thread_id, name, depth in run.sql(query).fetchall():
        numbers[span_id] = len(found[thread_id])
        found[thread_id].append((name, None if parent_id is None else numbers[parent_id], depth))
    return found


def check_structure(run: gpuprof.Run, expected: dict[int, Expected]) -> None:
    assert read_spans(run) == {thread: each.spans for thread, each in expected.items() if each.spans}
    totals = run.meta["totals"]
    assert totals["spans"] == sum(len(each.spans) for each in expected.values())
    assert totals["unfinished_spans"] == sum(len(each.open) for each in expected.values())
    assert totals["unmatched_ends"] == totals["damaged_events"] == totals["dropped_events"] == 0
    assert run.meta["complete"] is True


Path_ = tuple[str, ...]


def merge_spans(run: gpuprof.Run) -> dict[Path_, tuple[int, int, int]]:
    """Return calls, total and the children's total by path of names, from the spans alone."""
    rows = run.sql("SELECT span_id, parent_id, name, duration_ns FROM spans ORDER BY span_id").fetchall()
    paths: dict[int | None, Path_] = {None: ()}
    merged: dict[Path_, list[int]] = defaultdict(lambda: [0, 0, 0])
    for span_id, parent_id, name, duration_ns in rows:
        paths[span_id] = (*paths[parent_id], name)
        merged[paths[span_id]][0] += 1
        merged[paths[span_id]][1] += duration_ns
        merged[paths[parent_id]][2] += duration_ns
    return {path: (calls, total, inner) for path, (calls, total, inner) in merged.items() if path}


def read_tree(run: gpuprof.Run) -> dict[Path_, tuple[int, int, int]]:
    """Return calls, total and self time by path of names, from the call tree."""
    rows = run.sql(
        "SELECT node_id, parent_id, name, calls, total_ns, own_ns FROM call_tree ORDER BY node_id"
    ).fetchall()
    paths: dict[int, Path_] = {}
    tree: dict[Path_, tuple[int, int, int]] = {}
    for node_id, parent_id, name, *values in rows:
        paths[node_id] = () if parent_id is None else (*paths[parent_id], name)
        if parent_id is not None:
            assert paths[node_id] not in tree, "a path is one node"
            tree[paths[node_id]] = (values[0], values[1], values[2])
    return tree


def check_tree(run: gpuprof.Run, *, in_order: bool) -> None:
    spans, tree = merge_spans(run), read_tree(run)
    assert {path: values[:2] for path, values in tree.items()} == {
        path: values[:2] for path, values in spans.items()
    }
    for path, (calls, total_ns, own_ns) in tree.items():
        assert 0 <= own_ns <= total_ns
        if in_order:
            # Each time is rounded to a nanosecond by itself.
            children = sum(values[0] for other, values in tree.items() if other[:-1] == path)
            assert abs(total_ns - spans[path][2] - own_ns) <= calls + children


def check(steps: list[Step], *, in_order: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, expected = run_steps(steps, Path(folder))
        check_structure(run, expected)
        check_tree(run, in_order=in_order)


@pytest.mark.slow
@settings(max_examples=12)
@given(programs(in_order=True))
def test_nested_spans_are_recorded_as_they_were_entered(steps: list[Step]) -> None:
    check(steps, in_order=True)


@pytest.mark.slow
@settings(max_examples=12)
@given(programs(in_order=False))
def test_spans_that_end_in_any_order(steps: list[Step]) -> None:
    check(steps, in_order=False)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.text(max_size=40), max_size=30))
def test_names_come_back_exactly(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with gpuprof.profile(out=Path(folder) / "r", layers=False, operators=False) as recording:
            for name in names:
                with gpuprof.span(name):
                    pass
        rows = recording.run.sql("SELECT name FROM spans ORDER BY span_id").fetchall()
        assert [name for (name,) in rows] == names
        counted = {row.name: row.calls for row in recording.run.summary(by="span").rows}
        assert counted == Counter(names)
