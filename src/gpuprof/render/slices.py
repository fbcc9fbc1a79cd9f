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
from gpuprof.render.stack_slices import IDLE_THREAD_ID, write_stack_slices
from gpuprof.render.stack_slices import WAITING as WAITING_KIND
from gpuprof.run.database import registered
from gpuprof.run.folder import RunFolder
from gpuprof.run.frame_tree import IDLE_THREADS

if TYPE_CHECKING:
    import duckdb
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
    "gc",
)
WAITING = len(CATEGORIES)  # of the waits in stack samples, which only a page separates from functions

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
           coalesce(list_position($categories, kind) - 1, 0)::UTINYINT AS category{path}
    FROM (
        SELECT *, false AS is_stacks FROM spans
        UNION ALL BY NAME
        SELECT id AS span_id, process_id, thread_id, nullif(parent, -1) AS parent_id, name, start_ns,
               duration_ns, kind, true AS is_stacks FROM scratch.stack_slices)
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

    With `waits`, waits in stack samples are a category of their own, and threads that only wait one track.
    Raises duckdb.Error where the run's tables are damaged or the disk is full.
    """

    def __init__(self, run: RunFolder, scratch: Path, *, waits: bool = False) -> None:
        self.meta = run.meta
        self._connection = run.connect()
        limit_memory(self._connection, scratch)
        path = str(scratch / "slices.duckdb").replace("'", "''")
        self._connection.execute(f"ATTACH '{path}' AS scratch")
        write_stack_slices(self._connection, waits=waits)
        self.has_paths = "path_id" in self._connection.table("spans").columns
        for query in (_COPIES, _NAMES, _THREADS, _STREAMS):
            self._connection.execute(query)
        path = ", coalesce(path_id, -1)::BIGINT AS path" if self.has_paths else ""
        self._connection.execute(_CPU.format(path=path), {"categories": [*CATEGORIES, WAITING_KIND]})
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

    def ask(self, query: str, **values: Any) -> Columns:
        """Return the columns of a query of the tables `scratch.placed_cpu` and `scratch.placed_gpu`."""
        return dict(self._connection.execute(query, values or None).fetchnumpy())

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
            with registered(self._connection, "fresh_lanes", batch):
                self._connection.execute(f"INSERT INTO scratch.lanes_{table} FROM fresh_lanes")
        self._connection.execute(
            # Rows of both are in the same order.
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


# ---- names of tracks ------------------------------------------------------------------------

UNITS = {
    "utilization_percent": "%",
    "memory_utilization_percent": "%",
    "memory_used_bytes": "bytes",
    "power_w": "W",
    "energy_j": "J",
    "sm_clock_hz": "Hz",
    "memory_clock_hz": "Hz",
    "temperature_c": "C",
}


class TrackNames:
    """Names of processes, threads and devices, from a run's meta data."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self._threads = {
            (each.get("process_id"), each.get("thread_id")): str(each.get("name") or "")
            for each in meta.get("threads", [])
        }
        self._processes = {each.get("process_id"): each.get("name") for each in meta.get("processes", [])}
        self._devices = {each.get("index"): each.get("name") for each in meta.get("devices", [])}
        command = meta.get("command") or []
        self._program = Path(str(command[1] if len(command) > 1 else command[0])).name if command else ""
        self._main = meta.get("process_id")

    def process(self, process_id: int) -> str:
        """Return the name of a process: the program's, where it is the one that was started."""
        if process_id == self._main and self._program:
            return self._program
        return str(self._processes.get(process_id) or "process")

    def thread(self, track: Track, *, with_id: bool = False) -> str:
        """Return the name of a thread, with its id where it has no other name or that is asked for."""
        if track.thread_id == IDLE_THREAD_ID:
            return IDLE_THREADS
        name = self._threads.get((track.process_id, track.thread_id)) or "thread"
        if with_id or name == "thread":
            name = f"{name} {track.thread_id}"
        return f"{name}, Python" if track.is_stacks else name

    def device(self, device: int | None) -> str:
        """Return the name of a device."""
        number = "?" if device is None else str(device)
        name = self._devices.get(device)
        return f"GPU {number} ({name})" if name else f"GPU {number}"

    def stream(self, track: Track) -> str:
        """Return the name of a stream."""
        return f"stream {'?' if track.stream is None else track.stream}"

    def track(self, track: Track) -> str:
        """Return the name of a thread with that of its process, or of a stream with that of its device."""
        if track.is_stream:
            return f"{self.device(track.device)} {self.stream(track)}"
        process = f"{self.process(track.process_id)} {track.process_id}"
        return f"{self.thread(track)} {track.thread_id} of {process}"


def lane_name(name: str, lane: int) -> str:
    """Return the name of a lane; those after the first have what overlaps the first."""
    return name if lane == 0 else f"{name} ({lane + 1})"


# ---- the database in which slices are sorted ------------------------------------------------

MEMORY_LIMIT = "512MB"


def limit_memory(connection: duckdb.DuckDBPyConnection, scratch: Path) -> None:
    """Have what is sorted and does not fit be written to `scratch`."""
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("SET temp_directory = $folder", {"folder": str(scratch)})
    connection.execute("SET threads = 2")
