# SPDX-License-Identifier: Apache-2.0
"""Stack samples as slices: a function, or a wait in it, lasts for as long as samples in a row show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuprof.run.call_sites import waited_ns
from gpuprof.run.database import registered
from gpuprof.run.frame_tree import IDLE_THREADS, UNKNOWN_WAIT
from gpuprof.run.span_boundaries import BUILTIN
from gpuprof.run.stack_placement import IDLE_FRACTION

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

IDLE_THREAD_ID = -1  # of the threads of a process that only wait: they are one track
FUNCTION, WAITING = "python_function", "waiting"
_BATCH = 10_000
_CREATE = """
    CREATE TABLE scratch.stack_slices (process_id BIGINT, thread_id BIGINT, id BIGINT, parent BIGINT,
                                       name VARCHAR, kind VARCHAR, above VARCHAR, is_outermost BOOLEAN,
                                       start_ns BIGINT, duration_ns BIGINT)
"""
_SAMPLES = """
    SELECT process_id, thread_id, t_ns, duration_ns, frames, coalesce(cpu_ns, -1), coalesce(queued_ns, 0)
    FROM stacks ANTI JOIN scratch.idle_threads USING (process_id, thread_id)
    ORDER BY process_id, thread_id, t_ns
"""
# Threads without spans that did nothing but wait, wake up and wait again, as in the call tree.
_IDLE = """
    CREATE TABLE scratch.idle_threads AS
    SELECT process_id, thread_id FROM (
        SELECT *, duration_ns - cpu_ns - greatest(coalesce(queued_ns, 0), 0) AS waited_ns FROM stacks
        WHERE thread_id <> process_id)
    ANTI JOIN spans USING (process_id, thread_id)
    GROUP BY process_id, thread_id
    HAVING sum(duration_ns) > 0
        AND coalesce(sum(waited_ns) FILTER (cpu_ns >= 0 AND 2 * waited_ns > duration_ns), 0)
            >= $fraction * sum(duration_ns)
"""
# The times at which at least one of them waited.
_IDLE_TIMES = """
    SELECT process_id, min(begin_ns) AS begin_ns, max(t_ns) AS end_ns FROM (
        SELECT *, sum(is_first) OVER (PARTITION BY process_id ORDER BY begin_ns, t_ns
                                      ROWS UNBOUNDED PRECEDING) AS stretch
        FROM (
            SELECT process_id, begin_ns, t_ns, (begin_ns > coalesce(max(t_ns) OVER (
                       PARTITION BY process_id ORDER BY begin_ns, t_ns
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), begin_ns - 1))::INTEGER AS is_first
            FROM (SELECT process_id, t_ns - duration_ns AS begin_ns, t_ns
                  FROM stacks SEMI JOIN scratch.idle_threads USING (process_id, thread_id))))
    GROUP BY process_id, stretch ORDER BY process_id, begin_ns
"""


class StackSlice(NamedTuple):
    """A function or a wait in a thread; `parent` is -1 and `above` empty at the bottom of the stack."""

    process_id: int
    thread_id: int
    id: int
    parent: int
    name: str
    kind: str
    above: str  # the name of the function around it
    is_outermost: bool  # whether no function of its name is around it
    start_ns: int
    duration_ns: int


def write_stack_slices(connection: duckdb.DuckDBPyConnection, *, waits: bool = False) -> None:
    """Fill `scratch.stack_slices`. Ids follow those of the spans.

    With `waits`, samples of a waiting thread end in a slice of that kind, and threads that only wait are one.
    """
    connection.execute(_CREATE)
    connection.execute(_IDLE, {"fraction": IDLE_FRACTION if waits else 2.0})
    first = int(connection.execute("SELECT coalesce(max(span_id), 0) + 1 FROM spans").fetchall()[0][0])
    slices = StackSlices(first, waits=waits)
    for process_id, begin_ns, end_ns in connection.execute(_IDLE_TIMES).fetchall():
        slices.add_idle(process_id, begin_ns, end_ns)
    reader = connection.cursor()
    reader.execute(_SAMPLES)
    while rows := reader.fetchmany(_BATCH):
        for row in rows:
            slices.add(*row)
        _insert(connection, slices.ended)
    slices.end_thread()
    _insert(connection, slices.ended)


def _insert(connection: duckdb.DuckDBPyConnection, ended: list[StackSlice]) -> None:
    if not ended:
        return
    types: dict[str, type] = {"name": object, "kind": object, "above": object, "is_outermost": np.bool_}
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.array(column, dtype=types.get(name, np.int64))
        for name, column in zip(StackSlice._fields, zip(*ended, strict=True), strict=True)
    }
    with registered(connection, "fresh_slices", columns):
        connection.execute("INSERT INTO scratch.stack_slices FROM fresh_slices")
    ended.clear()


class _Open(NamedTuple):
    id: int
    name: str
    start_ns: int


class StackSlices:
    """Opens and closes functions, sample by sample, thread by thread; `ended` has those that are complete."""

    def __init__(self, first_id: int, *, waits: bool) -> None:
        self.ended: list[StackSlice] = []
        self._waits = waits
        self._next_id = first_id
        self._thread = (-1, -1)
        self._until = 0
        self._open: list[_Open] = []
        self._wait: _Open | None = None  # inside the innermost function that is open

    def add_idle(self, process_id: int, begin_ns: int, end_ns: int) -> None:
        """Add a time in which threads that only wait did."""
        where = (process_id, IDLE_THREAD_ID, self._new_id(), -1)
        times = (begin_ns, end_ns - begin_ns)
        self.ended.append(StackSlice(*where, IDLE_THREADS, WAITING, "", True, *times))

    def add(
        self,
        process_id: int,
        thread_id: int,
        t_ns: int,
        duration_ns: int,
        frames: list[str],
        cpu_ns: int,
        queued_ns: int,
    ) -> None:
        """Add the next sample of a thread; its stack was there for `duration_ns` before `t_ns`."""
        begin = t_ns - duration_ns
        if (process_id, thread_id) != self._thread or begin > self._until:
            self.end_thread()
        self._thread = (process_id, thread_id)
        wait = None
        if self._waits and waited_ns(duration_ns, cpu_ns, queued_ns) > 0:
            wait = UNKNOWN_WAIT
            if frames and frames[-1].endswith(BUILTIN):
                frames, wait = frames[:-1], frames[-1]
        shared = sum(1 for _ in self._shared(frames))
        if self._wait is not None and (wait != self._wait.name or shared < len(frames)):
            self._end_wait()
        self._close(shared)
        for name in frames[shared:]:
            self._open.append(_Open(self._new_id(), name, begin))
        if wait is not None and self._wait is None:
            self._wait = _Open(self._new_id(), wait, begin)
        self._until = t_ns

    def end_thread(self) -> None:
        """End everything that is open, with the last sample that showed it."""
        self._end_wait()
        self._close(0)

    def _close(self, depth: int) -> None:
        if depth < len(self._open):
            self._end_wait()
        while len(self._open) > depth:
            self._end(self._open.pop(), FUNCTION)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _shared(self, frames: list[str]) -> Iterator[str]:
        for (_, name, _), frame in zip(self._open, frames, strict=False):
            if name != frame:
                break
            yield name

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            self._end(wait, WAITING)

    def _end(self, ended: _Open, kind: str) -> None:
        around = self._open[-1] if self._open else _Open(-1, "", 0)
        is_outermost = kind == WAITING or all(each.name != ended.name for each in self._open)
        length = self._until - ended.start_ns
        what = StackSlice(
            *self._thread,
            ended.id,
            around.id,
            ended.name,
            kind,
            around.name,
            is_outermost,
            ended.start_ns,
            length,
        )
        self.ended.append(what)
