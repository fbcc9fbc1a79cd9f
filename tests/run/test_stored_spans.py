# SPDX-License-Identifier: Apache-2.0
"""Spans between the decoder and the tables: each at the place of its id, in few bytes of memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_stacks import LAYER, OPERATOR, Program

from gpuprof.run import stored_spans
from gpuprof.run.python_tree import with_python_frames
from gpuprof.run.stored_spans import StoredSpans

STEPS = 250_000


def batch(*spans: tuple[int, int, int]) -> dict[str, npt.NDArray[Any]]:
    """Return spans of (id, thread, start); their other columns follow from the id."""
    ids, threads, starts = np.array(spans, dtype=np.int64).T
    return {
        "span_id": ids,
        "thread_id": threads,
        "start_ns": starts,
        "duration_ns": 2 * ids,
        "kind": (ids % 7).astype(np.uint8),
        "own_ns": ids,
    }


def test_spans_come_back_by_id(tmp_path: Path) -> None:
    with StoredSpans(tmp_path / "run") as spans:
        spans.append(7, batch((1, 70, 11), (2, 70, 12)))
        spans.append(7, batch((5, 70, 15), (0, 70, 10)))
        spans.append(8, batch((6, 70, 3)))
        assert list(tmp_path.glob("run/*")) == []
        assert spans.threads == [(7, 70), (8, 70)]
        (chunk,) = spans.chunks()
        first, second = spans.rows_of(chunk)
        assert {name: column.tolist() for name, column in first.items()} == {
            "span_id": [0, 1, 2, 5],
            "start_ns": [10, 11, 12, 15],
            "duration_ns": [0, 2, 4, 10],
            "kind": [0, 1, 2, 5],
            "own_ns": [0, 1, 2, 5],
            "process_id": [7] * 4,
            "thread_id": [70] * 4,
        }
        assert (second["span_id"].tolist(), second["process_id"].tolist()) == ([6], [8])


def test_a_thread_whose_id_was_given_twice_is_in_the_order_of_time(tmp_path: Path) -> None:
    with StoredSpans(tmp_path) as spans:
        spans.append(7, batch((0, 70, 50), (1, 70, 60)))
        spans.append(7, batch((2, 71, 20)))
        spans.append(7, batch((3, 70, 30), (4, 70, 40)))
        found = [each["start_ns"].tolist() for each in spans.of_thread(0, ["start_ns"])]
        assert found == [[30, 40], [50, 60]]
        assert [each["start_ns"].tolist() for each in spans.of_thread(1, ["start_ns"])] == [[20]]


@given(st.data())
def test_spans_of_any_order_of_ends_and_any_batches(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Threads follow each other; ids of some spans are missing, and some end with the process."""
    threads = data.draw(st.lists(st.lists(st.booleans(), max_size=20), max_size=4))
    ids, thread_of, number = [], {}, 0
    at_the_end = []
    for thread, are_present in enumerate(threads, start=70):
        own = [number + at for at, is_present in enumerate(are_present) if is_present]
        number += len(are_present)
        thread_of.update(dict.fromkeys(own, thread))
        late = {each for each in own if data.draw(st.integers(0, 5)) == 0}
        ids += data.draw(st.permutations([each for each in own if each not in late]))
        at_the_end += sorted(late)
    ids += at_the_end
    with pytest.MonkeyPatch.context() as patch, StoredSpans(tmp_path_factory.mktemp("run")) as spans:
        patch.setattr(stored_spans, "AT_ONCE", data.draw(st.sampled_from([2, 7, 100])))
        patch.setattr(stored_spans, "_NEAR", data.draw(st.sampled_from([1, 3, 100])))
        at = 0
        while at < len(ids):
            count = data.draw(st.integers(1, 9))
            spans.append(7, batch(*((each, thread_of[each], each) for each in ids[at : at + count])))
            at += count
        found = [each for part in spans.chunks() for each in part["span_id"].tolist()]
        assert found == sorted(ids)
        for place, (_, thread) in enumerate(spans.threads):
            of_thread = [each for part in spans.of_thread(place, []) for each in part["span_id"].tolist()]
            assert of_thread == sorted(each for each in ids if thread_of[each] == thread)
            starts = [
                each for part in spans.of_thread(place, ["start_ns"]) for each in part["start_ns"].tolist()
            ]
            assert starts == of_thread


def test_without_a_batch_there_are_no_spans(tmp_path: Path) -> None:
    with StoredSpans(tmp_path) as spans:
        assert list(spans.chunks()) == []


def steps_of_two_spans(spans: StoredSpans) -> Program:
    """Return a short program, and spans as if it had gone on: its layer with an operator, again and again."""
    program = Program(duration=100 * STEPS)
    layer = program.span(-1, LAYER, "Net", 0, 80)
    program.span(layer, OPERATOR, "aten::mm", 20, 60)
    for begin in range(0, program.duration, 100 * STEPS // 50):
        program.sample(begin + 90, begin, "main", "train")
    *_, columns = program.tree()
    for first in range(0, STEPS, STEPS // 50):
        step = np.repeat(np.arange(first, first + STEPS // 50), 2)
        part = {name: np.tile(column, STEPS // 50) for name, column in columns.items()}
        part["start_ns"] += 100 * step
        part["span_id"] += 2 * step
        part["parent_id"] = np.where(part["parent_id"] < 0, -1, part["parent_id"] + 2 * step)
        spans.append(7, part)
    return program


def test_memory_does_not_grow_with_the_spans(tmp_path: Path) -> None:
    tracemalloc.start()
    with StoredSpans(tmp_path) as spans:
        program = steps_of_two_spans(spans)
        tree, names, numbers, _ = program.tree()
        paths = np.zeros(9, dtype=np.int64)

        def count(rows: dict[str, npt.NDArray[Any]]) -> None:
            np.add.at(paths, rows["path_id"], 1)

        with_python_frames(tree, names, numbers, spans, program.stacks, count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sorted(paths.tolist())[-2:] == [STEPS, STEPS]
    assert peak < 20_000_000
