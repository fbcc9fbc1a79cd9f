# SPDX-License-Identifier: Apache-2.0
"""Threads that write parts of a run's tables beside the thread that decodes it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class _Part:
    columns: dict[str, Any]
    query: str
    path: Path


class PartWriters:
    """Writes batches of columns in up to `threads` threads; with all of them busy, `write` waits.

    So at most one batch a thread, one in the queue and the caller's own are held at a time. The end of the
    `with` block waits for all that was given; what failed in a thread is raised by a later `write`, or there.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, threads: int) -> None:
        # Each sees the tables of `connection` and has views of its own.
        self._cursors = [connection.cursor() for _ in range(threads)]
        self._waiting: queue.Queue[_Part | None] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> PartWriters:
        for cursor in self._cursors:
            thread = threading.Thread(target=self._serve, args=(cursor,), name="gpuprof-close", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending: the caller's will do
                break
            self._threads.append(thread)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._failure = self._failure or error
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        for cursor in self._cursors:
            cursor.close()
        if error is None:
            self._raise_failure()

    def write(self, columns: dict[str, Any], query: str, path: Path) -> None:
        """Write to `path` what `query` makes of the view `batch`, which has these columns."""
        self._raise_failure()
        part = _Part(columns, query, path)
        if self._threads:
            self._waiting.put(part)
        else:
            _write(self._cursors[0], part)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _serve(self, cursor: duckdb.DuckDBPyConnection) -> None:
        while (part := self._waiting.get()) is not None:
            if self._failure is not None:
                continue  # nobody will want it; whoever waits with the next must not wait for ever
            try:
                _write(cursor, part)
            except BaseException as error:
                self._failure = error


def _write(connection: duckdb.DuckDBPyConnection, part: _Part) -> None:
    target = str(part.path).replace("'", "''")
    with registered(connection, "batch", part.columns):
        # A batch is as small at the first level as at the third, and takes 5 MB less to write.
        connection.execute(
            f"COPY ({part.query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )


@contextlib.contextmanager
def registered(connection: duckdb.DuckDBPyConnection, name: str, columns: dict[str, Any]) -> Iterator[None]:
    """Have `connection` know these columns as the view `name`."""
    connection.register(name, columns)
    try:
        yield
    finally:
        connection.unregister(name)
