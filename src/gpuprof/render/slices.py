# SPDX-License-Identifier: Apache-2.0
"""Every slice of a run, on tracks and lanes, in batches: what the writers of traces draw from.

A track is a thread or a GPU's stream. Slices of a track may cross, which no viewer shows: each has a *lane*,
in which it nests, and a *level*, the number of slices around it there. They are sorted on disk, so memory
does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.render.stack_slices import limit_memory, write_stack_slices
from gpuprof.run.folder import RunFolder

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

BATCH_ROWS = 65_536
# The index is the category of a slice.
CATEGORIES = (
    "span",
    "layer",
    "operator",
    "nvtx",
    "backward",
    "compile",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "python_function",
)

_NAMES = """
    CREATE TABLE scratch.names AS SELECT (row_number() OVER () - 1)::UINTEGER AS name_id, name FROM (
        SELECT name FROM spans UNION SELECT name FROM scratch.stack_slices
        UNION SELECT name FROM kernels UNION SELECT name FROM copies ORDER BY name)
"""
# What a transfer is called; the table has no names.
_COPIES = """
    CREATE VIEW copies AS
    SELECT *, concat_ws(' ', kind, src, CASE WHEN kind = 'copy' AND dst IS NOT NULL THEN 'to' END, dst)
              AS name
    FROM transfers
"""
_THREADS = """
    CREATE TABLE scratch.threads AS
    SELECT (row_number() OVER (ORDER BY process_id, thread_id, is_stacks) - 1)::BIGINT AS track, * FROM (
        SELECT process_id, thread_id, false AS is_stacks FROM spans
        UNION SELECT process_id, thread_id, true FROM scratch.stack_slices)
"""
_STREAMS = """
    CREATE TABLE scratch.streams AS
    SELECT (row_number() OVER (ORDER BY device NULLS FIRST, process_id, context, stream) - 1
            + (SELECT count(*) FROM scratch.threads))::BIGINT AS track, * FROM (
        SELECT device, process_id, context, stream FROM kernels
        UNION SELECT device, process_id, context, stream FROM copies)
"""
_CPU = """
    CREATE TABLE scratch.cpu AS
    SELECT track, span_id AS id, coalesce(parent_id, -1) AS parent, name_id, start_ns, duration_ns,
           coalesce(list_position($categories, kind) - 1, 0)::UTINYINT AS category
    FROM (
        SELECT *, false AS is_stacks FROM spans
        UNION ALL BY NAME
        SELECT id AS span_id, process_id, thread_id, nullif(parent, -1) AS parent_id, name, start_ns,
               duration_ns, 'python_function' AS kind, true AS is_stacks FROM scratch.stack_slices)
    JOIN scratch.names USING (name) JOIN scratch.threads USING (process_id, thread_id, is_stacks)
    ORDER BY track, start_ns, span_id
"""
_GPU = """
    CREATE TABLE scratch.gpu AS
    SELECT track, coalesce(span_id, -1) AS launcher, name_id, start_ns, duration_ns, category, correlation_id,
           bytes, launch_ns, registers, grid_x, grid_y, grid_z, block_x, block_y, block_z,
           work.device AS device, work.context AS context, work.stream AS stream
    FROM (
        SELECT 6::UTINYINT AS category, NULL::UBIGINT AS bytes, * FROM kernels
        UNION ALL BY NAME
        SELECT CASE kind WHEN 'copy' THEN 7 ELSE 8 END::UTINYINT AS category, * EXCLUDE (kind, src, dst)
        FROM copies) AS work
    JOIN scratch.names USING (name)
    JOIN scratch.streams ON streams.device IS NOT DISTINCT FROM work.device
        AND streams.process_id = work.process_id AND streams.context IS NOT DISTINCT FROM work.context
        AND streams.stream IS NOT DISTINCT FROM work.stream
    ORDER BY track, start_ns, correlation_id
"""
# An arrow from the span that launched to the work on the GPU; its number is that of the work, from 1.
_FLOWS = """
    CREATE TABLE scratch.flows AS
    SELECT cpu.rowid AS place, gpu.rowid + 1 AS flow
    FROM scratch.gpu AS gpu JOIN scratch.cpu AS cpu ON cpu.id = gpu.launcher ORDER BY place, flow
"""


@dataclass(frozen=True, slots=True)
class Track:
    """A thread, or a stream, whose `device` is then not None or unknown (-1)."""

    number: int
    process_id: int
    thread_id: int | None = None
    device: int | None = None
    context: int | None = None
    stream: int | None = None
    is_stacks: bool = False  # the functions that stack samples of a thread show

    @property
    def is_stream(self) -> bool:
        """Whether slices on it ran on a GPU."""
        return self.thread_id is None


class SliceSource:
    """The slices of a run, sorted in `scratch`, a folder that the caller removes after `close`.

    Raises duckdb.Error where the run's tables are damaged or the disk is full.
    """

    def __init__(self, run: RunFolder, scratch: Path) -> None:
        self.meta = run.meta
        self._connection = run.connect()
        limit_memory(self._connection, scratch)
        path = str(scratch / "slices.duckdb").replace("'", "''")
        self._connection.execute(f"ATTACH '{path}' AS scratch")
        write_stack_slices(self._connection)
        for query in (_COPIES, _NAMES, _THREADS, _STREAMS):
            self._connection.execute(query)
        self._connection.execute(_CPU, {"categories": list(CATEGORIES)})
        self._connection.execute(_GPU)
        self.has_gpu = self._count("gpu") > 0
        self._connection.execute(_FLOWS)
        self._place("cpu", nests=True)
        self._place("gpu", nests=False)
        self.names = self._texts("SELECT name FROM scratch.names ORDER BY name_id")
        self.tracks = self._tracks()
        self.lanes = self._lanes()

    def close(self) -> None:
        """Let go of the scratch folder."""
        self._connection.close()

    def cpu(self, order: str = "rowid") -> Iterator[Columns]:
        """Yield what ran on threads: place, track, lane, level, id, parent, name_id, category and times."""
        return self._rows("placed_cpu", order)

    def gpu(self, order: str = "rowid") -> Iterator[Columns]:
        """Yield what ran on streams; `launcher` is a span or -1, the number of its arrow is `place` + 1."""
        return self._rows("placed_gpu", order)

    def flows(self, first_place: int, end_place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the arrows that begin in these rows of `cpu`: their places, sorted, and their numbers."""
        if not self.has_gpu:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        found = self._connection.execute(
            "SELECT place, flow FROM scratch.flows WHERE place >= $first AND place < $end "
            "ORDER BY place, flow",
            {"first": first_place, "end": end_place},
        ).fetchnumpy()
        return np.asarray(found["place"]), np.asarray(found["flow"])

    def readings(self) -> Iterator[tuple[int, str, Columns]]:
        """Yield device, metric, and its readings (`t_ns`, `value`) in the order of time."""
        kinds = self._connection.execute(
            "SELECT DISTINCT device, metric FROM samples ORDER BY device, metric"
        ).fetchall()
        for device, metric in kinds:
            readings = self._connection.execute(
                "SELECT t_ns, value FROM samples WHERE device = $device AND metric = $metric ORDER BY t_ns",
                {"device": device, "metric": metric},
            )
            yield device, metric, readings.fetchnumpy()

    def _count(self, table: str) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM scratch.{table}").fetchall()[0][0])  # noqa: S608

    def _texts(self, query: str) -> list[str]:
        return [text for (text,) in self._connection.execute(query).fetchall()]

    def _place(self, table: str, *, nests: bool) -> None:
        lanes = _native.SliceLanes()
        self._connection.execute(
            f"CREATE TABLE scratch.lanes_{table} (place BIGINT, lane INTEGER, level INTEGER)"
        )
        columns = "id, parent" if nests else "rowid AS id, -1::BIGINT AS parent"
        for rows in self._batches(table, f"rowid AS place, track, {columns}, start_ns, duration_ns"):
            lane, level = lanes.place(
                rows["track"], rows["id"], rows["parent"], rows["start_ns"], rows["duration_ns"], nests
            )
            batch = {"place": rows["place"], "lane": lane, "level": level}
            self._connection.register("fresh_lanes", batch)
            self._connection.execute(f"INSERT INTO scratch.lanes_{table} SELECT * FROM fresh_lanes")  # noqa: S608
            self._connection.unregister("fresh_lanes")
        self._connection.execute(
            # Rows of both stand in the same order.
            f"CREATE TABLE scratch.placed_{table} AS SELECT place, lane, level, {table}.* "  # noqa: S608
            f"FROM scratch.{table} AS {table} POSITIONAL JOIN scratch.lanes_{table}"
        )

    def _batches(self, table: str, columns: str) -> Iterator[Columns]:
        for first in range(0, self._count(table), BATCH_ROWS):
            query = (
                f"SELECT {columns} FROM scratch.{table} WHERE rowid >= $first AND rowid < $end ORDER BY rowid"  # noqa: S608
            )
            yield self._connection.execute(query, {"first": first, "end": first + BATCH_ROWS}).fetchnumpy()

    def _rows(self, table: str, order: str) -> Iterator[Columns]:
        if order != "rowid":
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS scratch.{table}_ordered AS "  # noqa: S608
                f"SELECT * FROM scratch.{table} ORDER BY {order}"
            )
            table += "_ordered"
        return self._batches(table, "*")

    def _tracks(self) -> list[Track]:
        threads = self._connection.execute(
            "SELECT track, process_id, thread_id, is_stacks FROM scratch.threads ORDER BY track"
        ).fetchall()
        streams = self._connection.execute(
            "SELECT track, process_id, device, context, stream FROM scratch.streams ORDER BY track"
        ).fetchall()
        return [
            *(
                Track(number, process, thread, is_stacks=is_stacks)
                for number, process, thread, is_stacks in threads
            ),
            *(
                Track(number, process, None, device, context, stream)
                for number, process, device, context, stream in streams
            ),
        ]

    def _lanes(self) -> dict[int, int]:
        found = self._connection.execute(
            "SELECT track, max(lane) + 1 FROM (SELECT track, lane FROM scratch.placed_cpu "
            "UNION ALL SELECT track, lane FROM scratch.placed_gpu) GROUP BY track"
        ).fetchall()
        return dict(found)
