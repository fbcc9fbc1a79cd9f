# SPDX-License-Identifier: Apache-2.0
"""Parts of tables are written while decoding: all of them, and an error is reported and ends the writing."""

from __future__ import annotations

import _thread
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

from gpuprof.run.database import connect
from gpuprof.run.part_writers import PartWriters

QUERY = "SELECT number, word FROM batch JOIN words USING (number)"


def connect_with_words() -> duckdb.DuckDBPyConnection:
    connection = connect()
    connection.execute("CREATE TABLE words AS SELECT i AS number, 'word ' || i AS word FROM range(100) t(i)")
    return connection


def batch(number: int) -> dict[str, np.ndarray]:
    return {"number": np.array([number, number + 1])}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = _thread._count(), threading.enumerate()
    yield
    latest = time.monotonic() + 60
    # A thread that has reported its end may still exist.
    while _thread._count() > before[0] and time.monotonic() < latest:
        os.sched_yield()
    assert (_thread._count(), threading.enumerate()) == before


def write_to(path: Path, batches: int, then: BaseException | None = None) -> None:
    with PartWriters(connect_with_words(), 2) as parts:
        for number in range(batches):
            parts.write(batch(number), QUERY, path)
        if then is not None:
            raise then


TEN = [[(number, f"word {number}"), (number + 1, f"word {number + 1}")] for number in range(10)]


def write_ten(folder: Path) -> list[list[tuple[int, str]]]:
    """Write ten parts; returns the rows of each."""
    connection = connect_with_words()
    with PartWriters(connection, 2) as parts:
        for number in range(10):
            parts.write(batch(number), QUERY, folder / f"{number}.parquet")
    query = "FROM read_parquet(?) ORDER BY number"
    paths = [str(folder / f"{number}.parquet") for number in range(10)]
    return [connection.execute(query, [path]).fetchall() for path in paths]


def test_every_part_holds_its_own_batch(tmp_path: Path) -> None:
    assert write_ten(tmp_path) == TEN


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's'); DROP TABLE words; --"
    folder.mkdir()
    assert write_ten(folder) == TEN


@pytest.mark.parametrize("begun", [0, 1])
def test_parts_are_written_where_no_more_threads_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    left = iter(range(begun))
    start = _thread.start_new_thread

    def few_start(function: Callable[[], object], arguments: tuple[()]) -> int:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        return start(function, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", few_start)
    assert write_ten(tmp_path) == TEN


def test_one_part_is_written_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a thread began")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    write_to(tmp_path / "part.parquet", batches=1)
    assert duckdb.read_parquet(str(tmp_path / "part.parquet")).order("number").fetchall() == TEN[0]


def test_a_first_part_is_not_written_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_to(tmp_path / "part.parquet", batches=1, then=ZeroDivisionError())
    assert list(tmp_path.iterdir()) == []


def test_what_fails_in_a_thread_is_raised_and_ends_the_writing(tmp_path: Path) -> None:
    with pytest.raises(duckdb.IOException, match="no such folder"):
        write_to(tmp_path / "no such folder" / "part.parquet", batches=1_000_000)


def test_what_fails_in_the_last_part_is_raised_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(duckdb.IOException, match="no such folder"):
        write_to(tmp_path / "no such folder" / "part.parquet", batches=1)


def test_an_interrupt_ends_the_threads_and_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_to(tmp_path / "part.parquet", batches=3, then=KeyboardInterrupt())


def test_an_interrupt_at_the_end_ends_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give = queue.Queue.put
    interrupts = [KeyboardInterrupt()]

    def put(waiting: queue.Queue[object], item: object) -> None:
        if item is None and interrupts:
            raise interrupts.pop()
        give(waiting, item)

    monkeypatch.setattr(queue.Queue, "put", put)
    with pytest.raises(KeyboardInterrupt):
        write_to(tmp_path / "part.parquet", batches=4)


def test_what_the_program_has_for_its_threads_is_not_for_these(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("this thread shall not be")

    threading.setprofile(refuse)
    threading.settrace(refuse)
    try:
        assert write_ten(tmp_path) == TEN
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        threading.settrace(None)  # type: ignore[arg-type]
