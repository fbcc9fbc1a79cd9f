# SPDX-License-Identifier: Apache-2.0
"""Spans between the decoder and the tables: the same as before, in few bytes of memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.simulated_stacks import LAYER, OPERATOR, Program

from gpuprof.run import stored_spans
from gpuprof.run.python_tree import with_python_frames
from gpuprof.run.stored_spans import StoredSpans

STEPS = 250_000


def batch(first: int, count: int) -> dict[str, np.ndarray]:
    return {"span_id": np.arange(first, first + count), "kind": np.full(count, first % 7, dtype=np.uint8)}


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
def test_batches_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    monkeypatch.setattr(stored_spans, "_IN_MEMORY", in_memory)
    with StoredSpans(tmp_path / "run") as spans:
        spans.append(7, batch(0, 3))
        spans.append(8, batch(3, 2))
        assert list(tmp_path.glob("run/*")) == []
        assert {name: column.tolist() for name, column in spans.items()} == {
            "span_id": [0, 1, 2, 3, 4],
            "kind": [0, 0, 0, 3, 3],
            "process_id": [7, 7, 7, 8, 8],
        }
        for path_ids, expected in ((None, [None, None]), (np.arange(10, 15), [[10, 11, 12], [13, 14]])):
            found = list(spans.batches(path_ids))
            assert [each["span_id"].tolist() for each in found] == [[0, 1, 2], [3, 4]]
            assert [each["process_id"].tolist() for each in found] == [[7, 7, 7], [8, 8]]
            assert [each["path_id"].tolist() if "path_id" in each else None for each in found] == expected


def test_without_a_batch_all_columns_are_empty(tmp_path: Path) -> None:
    assert StoredSpans(tmp_path)["start_ns"].tolist() == []


def steps_of_two_spans(folder: Path) -> tuple[Program, StoredSpans]:
    """Return a short program, and spans as if it had gone on: its layer with an operator, again and again."""
    program = Program(duration=100 * STEPS)
    layer = program.span(-1, LAYER, "Net", 0, 80)
    program.span(layer, OPERATOR, "aten::mm", 20, 60)
    for begin in range(0, program.duration, 100 * STEPS // 50):
        program.sample(begin + 90, begin, "main", "train")
    spans = StoredSpans(folder)
    *_, columns = program.tree()
    step = np.repeat(np.arange(STEPS), 2)
    many = {name: np.tile(column, STEPS) for name, column in columns.items() if name != "process_id"}
    many["start_ns"] += 100 * step
    many["span_id"] += 2 * step
    many["parent_id"] = np.where(many["parent_id"] < 0, -1, many["parent_id"] + 2 * step)
    spans.append(7, many)
    return program, spans


def test_a_span_takes_few_bytes_until_its_path_is_known(tmp_path: Path) -> None:
    program, spans = steps_of_two_spans(tmp_path)
    tree, names, numbers, _ = program.tree()
    tracemalloc.start()
    with spans:
        *_, path_ids = with_python_frames(tree, names, numbers, spans, program.stacks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.unique(path_ids, return_counts=True)[1].tolist() == [STEPS, STEPS]
    assert peak < 90 * len(path_ids)
