# SPDX-License-Identifier: Apache-2.0
"""Threads that write parts of a run's tables while another thread decodes it."""

from __future__ import annotations

import _thread
import functools
import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuprof.run.database import registered

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class _Part:
    columns: dict[str, Any]
    query: str
    path: Path


class PartWriters:
    """Writes batches of columns: in the caller's thread, and in a `with` block in up to `threads` others.

    Those begin with the second batch: most runs have one. With all of them busy `write` waits, so at most one
    batch a thread, one in the queue and the caller's own are held at a time. The end of the block waits for
    all that was given; what failed in a thread is raised by a later `write`, or there.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, threads: int = 0) -> None:
        self._connection = connection
        self._wanted = threads
        self._first: _Part | None = None
        self._waiting: queue.Queue[_Part | None] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._threads: list[_thread.LockType] = []  # each free when its thread has ended

    def __enter__(self) -> PartWriters:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._failure = self._failure or error
        try:
            self._write_first()
        finally:
            self._end_threads()
        if error is None:
            self._raise_failure()

    def _write_first(self) -> None:
        first, self._first = self._first, None
        if first is not None and self._failure is None:
            _write(self._connection, first)

    def _end_threads(self) -> None:
        if self._threads:
            self._announce_end()
        for ended in self._threads:
            ended.acquire()
        for cursor in self._cursors:
            cursor.close()

    def _announce_end(self) -> None:
        try:
            self._waiting.put(None)
        except BaseException:
            self._waiting.put(None)  # an interrupt while all are busy: they would wait forever
            raise

    def write(self, columns: dict[str, Any], query: str, path: Path) -> None:
        """Write to `path` what `query` makes of the view `batch`, which has these columns."""
        self._raise_failure()
        part = _Part(columns, query, path)
        if self._wanted and self._first is None:
            self._first = part
            return
        if self._first is not None:
            self._begin_threads()
            first, self._first = self._first, None
            self._give(first)
        self._give(part)

    def _begin_threads(self) -> None:
        for _ in range(self._wanted):
            # Each sees the tables of the connection and has views of its own.
            cursor = self._connection.cursor()
            self._cursors.append(cursor)
            try:
                self._threads.append(_begin(functools.partial(self._serve, cursor)))
            except RuntimeError:  # no more threads, or the interpreter is ending: the caller's will do
                break
        self._wanted = 0

    def _give(self, part: _Part) -> None:
        if self._threads:
            self._waiting.put(part)
        else:
            _write(self._connection, part)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _serve(self, cursor: duckdb.DuckDBPyConnection) -> None:
        while (part := self._waiting.get()) is not None:
            if self._failure is not None:
                continue  # it is useless now, but the thread with the next part must not wait forever
            try:
                _write(cursor, part)
            except BaseException as error:
                self._failure = error
        # For the next thread: the caller may be interrupted after it announced the end once.
        self._waiting.put(None)


def _begin(work: Callable[[], None]) -> _thread.LockType:
    """Have a new thread do `work`; returns a lock that is free when it has ended. Raises RuntimeError.

    It is none of `threading`: what the program has put into `threading.setprofile` and `settrace` is for its
    own threads, and could end ours before their first line.
    """
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            work()
        finally:
            ended.release()

    _thread.start_new_thread(run, ())
    return ended


def _write(connection: duckdb.DuckDBPyConnection, part: _Part) -> None:
    with registered(connection, "batch", part.columns):
        connection.execute(copy_statement(part.query, part.path))


def copy_statement(query: str, path: Path) -> str:
    """Return the SQL that writes the rows of `query` to a Parquet file."""
    target = str(path).replace("'", "''")
    # A batch is as small at the first level as at the third, and takes 5 MB less to write.
    return f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
