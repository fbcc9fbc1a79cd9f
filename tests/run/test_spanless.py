# SPDX-License-Identifier: Apache-2.0
"""Runs without spans are closed without NumPy and DuckDB, and contain the same as those closed with them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cpu_work import busy

import gpuprof
from gpuprof.record.stack_file import StackFile
from gpuprof.record.stack_sampler import why_not
from gpuprof.run import spanless, writer
from gpuprof.run.format import TABLES

Made = Callable[..., Path]


@pytest.fixture
def unclosed_without_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """`unclosed_without_spans(body)` is the folder of a recording of `body` that was never closed."""

    def make(body: Callable[[], None] = lambda: None, **options: Any) -> Path:
        path = tmp_path / "unclosed.gpuprof"
        with monkeypatch.context() as patched:
            patched.setattr("gpuprof.run.writer._remove_recording", lambda _: None)
            with gpuprof.profile(out=path, layers=False, operators=False, **options):
                body()
        (path / "meta.json").unlink()
        return path

    return make


def closed_both_ways(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], Any]]:
    """Return meta data and all tables of the run closed without DuckDB, and of that closed with it."""
    found = []
    for name in ("without", "with"):
        into = path.with_name(name)
        into.mkdir()
        if name == "with":
            monkeypatch.setattr(writer, "write_spanless", lambda *_: None)
        meta = writer.close_run(path, into=into)
        meta.pop("parts")
        found.append((meta, {table: contents(into, table) for table in TABLES}))
    return found


def contents(run: Path, table: str) -> tuple[list[tuple[str, str]], list[Any]]:
    rows = duckdb.read_parquet(str(run / table / "**" / "*.parquet"), hive_partitioning=True)
    return list(zip(rows.columns, map(str, rows.types), strict=True)), rows.fetchall()


def add_samples(path: Path) -> None:
    """Add what a program might do: an import, a call from two places, a thread, an empty stack."""
    file = StackFile(str(path / "segments" / "1.stacks"), os.getpid(), 1000)
    begin_ns = 1_000_000 + int(gpuprof._native.clock_info()["monotonic_ns"])
    stacks = {
        os.getpid(): (
            ("<module> (main.py:1)", "<module> (torch/__init__.py:1)"),
            ("<module> (main.py:1)", "first (main.py:2)", "both (main.py:4)"),
            ("<module> (main.py:1)", "second (main.py:3)", "both (main.py:4)"),
            (),
            ("<module> (main.py:1)",),
        ),
        77: (("run (threading.py:1)", "work <b> (main.py:9)"), ("run (threading.py:1)",)),
    }
    for thread_id, of_thread in stacks.items():
        file.begin_thread(thread_id)
        for number, frames in enumerate(of_thread):
            file.add_sample(begin_ns + number * 1000, 900, [file.number_of(each) for each in frames])


def test_tables_are_the_same_as_with_duckdb(
    unclosed_without_spans: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unclosed_without_spans()
    add_samples(path)
    ours, theirs = closed_both_ways(path, monkeypatch)
    assert ours == theirs
    tree = ours[1]["call_tree"][1]
    assert len(tree) > 5
    assert ours[0]["stacks"]["samples"] == 7


@pytest.mark.skipif(why_not() is not None, reason="the native sampler does not know this interpreter")
def test_tables_of_a_sampled_program_are_the_same(
    unclosed_without_spans: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        event = threading.Event()
        waiting = threading.Thread(target=event.wait)
        waiting.start()
        busy(0.3)
        event.set()
        waiting.join()

    monkeypatch.setattr(spanless, "_MOST_STACK_BYTES", 1 << 30)  # a busy machine takes more samples
    ours, theirs = closed_both_ways(unclosed_without_spans(work, python=True), monkeypatch)
    assert ours == theirs
    assert ours[0]["stacks"] is not None


def test_a_recording_with_spans_is_left_to_duckdb(copy_of: Callable[[], Path]) -> None:
    path = copy_of()
    assert spanless.write_spanless(path / "segments", path) is None
    assert not (path / "call_tree").exists()


@pytest.mark.parametrize("name", ["7.facts", "7.gpu", "7.samples", "work.json"])
def test_other_files_are_left_to_duckdb(unclosed_without_spans: Made, name: str) -> None:
    path = unclosed_without_spans()
    (path / "segments" / name).write_bytes(b"")
    assert spanless.write_spanless(path / "segments", path) is None


def test_many_samples_are_left_to_duckdb(
    unclosed_without_spans: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unclosed_without_spans()
    add_samples(path)
    monkeypatch.setattr(spanless, "_MOST_STACK_BYTES", 1000)
    assert spanless.write_spanless(path / "segments", path) is None


def test_stacks_without_a_frame_have_texts_for_frames(
    unclosed_without_spans: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB takes a column without values for one of numbers."""
    path = unclosed_without_spans()
    file = StackFile(str(path / "segments" / "1.stacks"), os.getpid(), 1000)
    file.begin_thread(os.getpid())
    file.add_sample(int(gpuprof._native.clock_info()["monotonic_ns"]), 900, [])
    for _, tables in closed_both_ways(path, monkeypatch):
        columns, rows = tables["stacks"]
        assert ("frames", "VARCHAR[]") in columns
        assert len(rows) == 1
