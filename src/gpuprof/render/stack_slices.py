# SPDX-License-Identifier: Apache-2.0
"""Stack samples as slices: a function lasts for as long as samples in a row show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from gpuprof.run.folder import RunFolder

Slice = tuple[int, int, int, int, str, int, int]  # process, thread, id, parent, name, begin and length in ns

MEMORY_LIMIT = "512MB"
_BATCH = 10_000
_CREATE = """
    CREATE TABLE scratch.stack_slices (process_id BIGINT, thread_id BIGINT, id BIGINT, parent BIGINT,
                                       name VARCHAR, start_ns BIGINT, duration_ns BIGINT)
"""
_SAMPLES = """
    SELECT process_id, thread_id, t_ns, duration_ns, frames FROM stacks ORDER BY process_id, thread_id, t_ns
"""


def write_stack_slices(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill `scratch.stack_slices`. Ids go on behind those of the spans; -1 is no parent."""
    import numpy as np

    connection.execute(_CREATE)
    first = int(connection.execute("SELECT coalesce(max(span_id), 0) + 1 FROM spans").fetchall()[0][0])
    slices = _Slices(first)
    reader = connection.cursor()
    reader.execute(_SAMPLES)
    names = ("process_id", "thread_id", "id", "parent", "name", "start_ns", "duration_ns")
    while True:
        rows = reader.fetchmany(_BATCH)
        for row in rows:
            slices.add(*row)
        if not rows:
            slices.close(0)
        if slices.ended:
            columns = {
                name: np.array(column, dtype=object if name == "name" else np.int64)
                for name, column in zip(names, zip(*slices.ended, strict=True), strict=True)
            }
            connection.register("fresh_slices", columns)
            connection.execute("INSERT INTO scratch.stack_slices SELECT * FROM fresh_slices")
            connection.unregister("fresh_slices")
            slices.ended.clear()
        if not rows:
            break


def limit_memory(connection: duckdb.DuckDBPyConnection, scratch: Path) -> None:
    """Have what is sorted and does not fit be written to `scratch`."""
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("SET temp_directory = $folder", {"folder": str(scratch)})
    connection.execute("SET threads = 2")


def count_stack_slices(run: RunFolder, scratch: Path, *, most: int) -> int:
    """Return how many slices the samples of a run make; counts no further when there are more than `most`."""
    if "stacks" not in run.tables:
        return 0
    slices = _Slices(0)
    with run.connect() as reader:
        limit_memory(reader, scratch)
        reader.execute(_SAMPLES)
        while slices.count <= most and (rows := reader.fetchmany(_BATCH)):
            for row in rows:
                slices.add(*row)
            slices.ended.clear()
    return slices.count


class _Slices:
    """Opens and closes functions, sample by sample, thread by thread."""

    def __init__(self, first_id: int) -> None:
        self.ended: list[Slice] = []
        self._first_id = self._next_id = first_id
        self._thread = (-1, -1)
        self._until = 0
        self._open: list[tuple[int, str, int]] = []  # id, name, begin

    @property
    def count(self) -> int:
        """How many slices were opened."""
        return self._next_id - self._first_id

    def add(self, process_id: int, thread_id: int, t_ns: int, duration_ns: int, frames: list[str]) -> None:
        begin = t_ns - duration_ns
        if (process_id, thread_id) != self._thread or begin > self._until:
            self.close(0)
        self._thread = (process_id, thread_id)
        shared = sum(1 for _ in self._shared(frames))
        self.close(shared)
        for name in frames[shared:]:
            self._open.append((self._next_id, name, begin))
            self._next_id += 1
        self._until = t_ns

    def _shared(self, frames: list[str]) -> Iterator[str]:
        for (_, name, _), frame in zip(self._open, frames, strict=False):
            if name != frame:
                break
            yield name

    def close(self, depth: int) -> None:
        """End what is open below `depth`, with the last sample that showed it."""
        while len(self._open) > depth:
            number, name, begin = self._open.pop()
            parent = self._open[-1][0] if self._open else -1
            self.ended.append((*self._thread, number, parent, name, begin, self._until - begin))
