# SPDX-License-Identifier: Apache-2.0
"""Parts of tables are written beside the decoding: all of them, and what goes wrong is told and ends."""

from __future__ import annotations

import threading
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


def threads_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpuprof-close")]


def write_to(path: Path, batches: int, then: BaseException | None = None) -> None:
    with PartWriters(connect_with_words(), 2) as parts:
        for number in range(batches):
            parts.write(batch(number), QUERY, path)
        if then is not None:
            raise then


def write_ten(folder: Path) -> None:
    connection = connect_with_words()
    with PartWriters(connection, 2) as parts:
        for number in range(10):
            parts.write(batch(number), QUERY, folder / f"{number}.parquet")
    for number in range(10):
        rows = connection.execute("FROM read_parquet(?) ORDER BY number", [str(folder / f"{number}.parquet")])
        assert rows.fetchall() == [(number, f"word {number}"), (number + 1, f"word {number + 1}")]
    assert threads_left() == []


def test_every_part_holds_its_own_batch(tmp_path: Path) -> None:
    write_ten(tmp_path)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's'); DROP TABLE words; --"
    folder.mkdir()
    write_ten(folder)


@pytest.mark.parametrize("begun", [0, 1])
def test_parts_are_written_where_no_more_threads_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    left = iter(range(begun))
    start = threading.Thread.start

    def few_start(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few_start)
    write_ten(tmp_path)


def test_what_fails_in_a_thread_is_raised_and_ends_the_writing(tmp_path: Path) -> None:
    with pytest.raises(duckdb.IOException, match="no such folder"):
        write_to(tmp_path / "no such folder" / "part.parquet", batches=1_000_000)
    assert threads_left() == []


def test_what_fails_in_the_last_part_is_raised_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(duckdb.IOException, match="no such folder"):
        write_to(tmp_path / "no such folder" / "part.parquet", batches=1)


def test_an_interrupt_ends_the_threads_and_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_to(tmp_path / "part.parquet", batches=1, then=KeyboardInterrupt())
    assert threads_left() == []
