# SPDX-License-Identifier: Apache-2.0
"""Any intervals, in any pieces, to any format and back. Each check has an independent oracle."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from trace_readers import read_chrome, read_perfetto, read_speedscope

import gpuprof
from gpuprof import _native
from gpuprof.errors import GpuprofError

names = st.text(max_size=6) | st.sampled_from(["a", "b", "</script>", 'q"\\', "\ud800", "a;b"])
intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 20), names), min_size=0, max_size=25
)


def as_events(rows: list[tuple[int, int, int, str]]) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": length, "name": name, "cat": "span"}
        for thread, start, length, name in rows
    ]


def import_text(folder: Path, text: str) -> gpuprof.Run:
    (folder / "t.json").write_text(text)
    return gpuprof.import_trace(folder / "t.json", folder / "t.gpuprof")


@settings(max_examples=15)
@given(intervals)
@pytest.mark.slow
def test_every_format_gives_back_the_same_slices(rows: list[tuple[int, int, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = import_text(Path(folder), json.dumps({"traceEvents": as_events(rows)}))
        found = run.sql("SELECT name, start_ns, duration_ns FROM spans").fetchall()
        first = min((start for _, start, _, _ in rows), default=0)
        shown = [name.replace("\ud800", "\ufffd") for *_, name in rows]
        assert Counter(found) == Counter(
            (name, (start - first) * 1000, length * 1000)
            for name, (_, start, length, _) in zip(shown, rows, strict=True)
        )
        for ending, read in (
            (".pftrace", read_perfetto),
            (".json", read_chrome),
            (".speedscope.json", read_speedscope),
        ):
            trace = read(run.export(Path(folder) / f"out{ending}"))
            slices = Counter((each.name, each.start_ns, each.duration_ns) for each in trace.slices)
            assert slices == Counter(found), ending


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 25)), max_size=30))
def test_parents_are_those_of_a_search_over_all(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    nester = _native.Nester()
    nester.begin_process(1, 1)
    thread, start, duration = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    flat = np.zeros(len(rows), dtype=np.uint8)
    placed = nester.add(
        {
            "thread_id": thread,
            "kind": flat + 1,
            "role": flat,
            "name_id": flat + 1,
            "start_ns": start,
            "duration_ns": duration,
        }
    )
    for number, (own_thread, begin, length) in enumerate(rows):
        holders = [
            other
            for other, (its_thread, its_begin, its_length) in enumerate(rows[:number])
            if its_thread == own_thread and begin < its_begin + its_length >= begin + length
        ]
        assert placed["parent_id"][number] == max(holders, default=-1)
    tree = nester.finish()
    assert tree["calls"].sum() == len(rows)
    assert tree["total_ns"][1:].sum() == duration.sum()
    assert (tree["own_ns"] >= 0).all()


@settings(max_examples=100)
@given(intervals, st.lists(st.integers(1, 40), min_size=1, max_size=5), st.booleans())
def test_pieces_of_any_size_read_the_same(
    rows: list[tuple[int, int, int, str]], sizes: list[int], escaped: bool
) -> None:
    devices = [{"name": 'a "GPU" }]', "id": 0}, {"grid": [1, [2]]}]
    other = {"deviceProperties": devices, "not kept": [{"a": 1}], "traceName": "x[{"}
    text = json.dumps({**other, "traceEvents": as_events(rows), "n": 1}, ensure_ascii=escaped)
    content = text.encode("utf-8", "replace")
    reader = _native.ChromeReader()
    place = number = 0
    while place < len(content):
        reader.feed(content[place : place + sizes[number % len(sizes)]])
        place += sizes[number % len(sizes)]
        number += 1
    columns, texts = reader.take()
    facts = reader.facts()
    assert (facts["events"], facts["is_whole"], facts["problem"]) == (len(rows), True, "")
    assert json.loads(facts["outer"].pop("deviceProperties")) == devices
    assert facts["outer"] == {"traceName": "x[{", "n": "1"}
    half = "\ufffd" if escaped else "?"
    assert [texts[i] for i in columns["text"]] == [name.replace("\ud800", half) for *_, name in rows]
    assert columns["start_ns"].tolist() == [start * 1000 for _, start, _, _ in rows]


@pytest.mark.slow
@settings(max_examples=60)
@given(intervals, st.data())
def test_a_damaged_trace_is_a_run_or_one_line(rows: list[tuple[int, int, int, str]], data: Any) -> None:
    content = bytearray(json.dumps({"traceEvents": as_events(rows)}).encode())
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(bytes(content))
        spoken = ""
        try:
            run = gpuprof.import_trace(path, Path(folder) / "t.gpuprof")
        except GpuprofError as error:
            spoken = str(error)
        else:
            assert run.meta["totals"]["spans"] <= len(rows)
        assert "\n" not in spoken
