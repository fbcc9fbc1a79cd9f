# SPDX-License-Identifier: Apache-2.0
"""A run that is written from another tool's trace.

Intervals and GPU records are gathered in a database on the run's own disk, in any order and number. Then
they are sorted, swept thread by thread for who was inside whom, and written by what closes recordings.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.record.facts import NoteCode, note
from gpuprof.record.recording_folder import SEGMENTS, create_folder
from gpuprof.run.database import connect as connect_database
from gpuprof.run.database import reason_of, registered
from gpuprof.run.format import KINDS
from gpuprof.run.gpu_records import COPY, FILL, KERNEL, SYNCHRONIZATION, UNKNOWN, UNKNOWN_LONG
from gpuprof.run.imports.import_facts import ImportFacts, NotImported, imported_meta, process_text
from gpuprof.run.imports.imported_steps import imported_steps
from gpuprof.run.parts import write_meta
from gpuprof.run.stacks import Stacks
from gpuprof.run.stored_spans import StoredSpans
from gpuprof.run.table_writer import TableWriter
from gpuprof.run.temporary import PlainPath

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

BATCH_ROWS = 65_536
MAIN_PROCESS = -1  # of records without a process in the trace
SPAN, INTERFACE_CALL, FLOATING = 0, 1, 2  # the roles of csrc/analysis/nester.hpp
LAUNCH, EXTERNAL = 0, 3  # kinds of links: by correlation id, by the id of the operator around it

_SCRATCH = ".closing"
_SPAN_TYPES: dict[str, Any] = {
    "process_id": np.int64,
    "thread_id": np.int64,
    "kind": np.uint8,
    "role": np.uint8,
    "name_id": np.uint32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "correlation_id": np.uint32,
    "external_id": np.uint64,
}
_WORDS = (
    "correlation_id device context stream name grid_x grid_y grid_z block_x block_y block_z registers "
    "static_shared_bytes dynamic_shared_bytes graph_id source_kind destination_kind detail"
)
_RECORD_TYPES: dict[str, Any] = {
    "process_id": np.int64,
    "kind": np.uint32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    **dict.fromkeys(("external_id", "graph_node_id", "bytes"), np.uint64),
    **dict.fromkeys(_WORDS.split(), np.uint32),
}
_SQL_TYPES = {np.int64: "BIGINT", np.uint64: "UBIGINT", np.uint32: "UINTEGER", np.uint8: "UTINYINT"}

_BATCH = """
    SELECT * REPLACE (start_ns - $origin AS start_ns) FROM scratch.sorted
    WHERE rowid >= $begin AND rowid < $end ORDER BY rowid
"""
# DuckDB takes no parameters in a view.
_RECORDS_VIEW = """
    CREATE OR REPLACE VIEW raw_records AS
    SELECT * REPLACE (start_ns - $origin AS start_ns, $process::BIGINT AS process_id) FROM scratch.records
    WHERE CASE WHEN process_id < 0 THEN $main ELSE process_id END = $process
"""


class ImportedRun:
    """Gathers intervals and GPU records; `finish` writes the run. All times are the trace's own."""

    def __init__(
        self,
        target: Path,
        connection: duckdb.DuckDBPyConnection,
        stacks_at: Callable[[int], Stacks] | None = None,
        kept_spans: StoredSpans | None = None,
    ) -> None:
        self._target = target
        self._connection = connection
        self._name_ids: dict[str, int] = {}
        self._sent_names = 0
        self._records = 0
        self._graphs = 0
        self._waiting_calls: list[Columns] = []
        self._origin_ns = 0
        connection.execute("SET threads = 2")
        self._stacks_at = stacks_at
        self._writer = TableWriter(connection, target, kept_spans=kept_spans)
        self._writer.gpu.prepare()
        connection.execute(f"ATTACH '{target / _SCRATCH / 'import.duckdb'}' AS scratch")
        for table, types in (("spans", _SPAN_TYPES), ("records", _RECORD_TYPES)):
            columns = ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in types.items())
            connection.execute(f"CREATE TABLE scratch.{table} ({columns})")

    def name_id(self, text: str) -> int:
        """Return the id of a name; ids count from 1."""
        return self._name_ids.setdefault(text, len(self._name_ids) + 1)

    def add_spans(self, columns: dict[str, Any]) -> None:
        """Gather intervals of threads. What the columns lack is not known; durations are not negative."""
        self._insert("spans", columns, _SPAN_TYPES)

    def add_records(self, columns: dict[str, Any]) -> None:
        """Gather kernels, copies, fills and synchronizations, with the columns of gpu_records.RECORD."""
        self._records += len(columns["start_ns"])
        self._insert("records", columns, _RECORD_TYPES)

    def add_waiting_calls(self, columns: dict[str, Any]) -> None:
        """Gather calls that wait for the GPU: they are synchronizations of a trace that records none."""
        self._waiting_calls.append(columns)

    def count_graphs(self, launches: int) -> None:
        """Count kernels that are launches of graphs traced as a whole."""
        self._graphs += launches

    def _insert(self, table: str, columns: dict[str, Any], types: dict[str, Any]) -> None:
        count = len(columns["start_ns"])
        if count == 0:
            return
        unknown = {np.uint32: UNKNOWN, np.uint64: UNKNOWN_LONG, np.int64: MAIN_PROCESS, np.uint8: 0}
        batch = {
            name: np.ascontiguousarray(columns[name]).astype(kind)  # -1 becomes ones in every bit: not known
            if name in columns
            else np.full(count, unknown[kind], dtype=kind)
            for name, kind in types.items()
        }
        with registered(self._connection, "fresh_rows", batch):
            self._connection.execute(f"INSERT INTO scratch.{table} FROM fresh_rows")

    def finish(self, facts: ImportFacts) -> dict[str, Any]:
        """Write tables and meta data; returns the latter."""
        self._take_waiting_calls()
        self._connection.execute(
            "CREATE TABLE scratch.sorted AS SELECT * FROM scratch.spans "
            "ORDER BY process_id, thread_id, start_ns, duration_ns DESC, rowid; DROP TABLE scratch.spans"
        )
        self._origin_ns = self._first_instant()
        processes = self._processes()
        if facts.main_rank is not None and processes:
            facts.ranks[processes[0][0]["process_id"]] = facts.main_rank
        process_names = [self.name_id(process_text(facts, each["process_id"])) for each, _ in processes]
        left_out = self._forwarded(processes, process_names)
        facts.not_imported.append(NotImported("forwarded operator", "their own overload", len(left_out)))
        nester = _native.Nester()
        nodes = self._write_spans(nester, processes, process_names, left_out)
        decoded = {"tree": nester.finish(), "names": list(self._name_ids)}
        self._write_gpu(processes, nodes)
        stacks = None if self._stacks_at is None else self._stacks_at(self._origin_ns)
        if stacks is not None:
            self._writer.write_stacks(stacks)
        self._writer.write_tree(decoded, stacks)
        if sum(process["spans"] for process, _ in processes):
            tree, names = self._writer.merged_tree
            self._writer.write_found_steps(
                imported_steps(self._connection, self._target / "spans", tree, names)
            )
        self._writer.ensure_tables()
        if crossings := nester.crossings():
            facts.notes.append(note(NoteCode.INTERVALS_CROSS, count=crossings))
        facts.totals["spans"] = sum(process["spans"] for process, _ in processes) - len(left_out)
        meta = imported_meta(
            facts, [process for process, _ in processes], origin_ns=self._origin_ns, gpu=self._gpu_counts()
        )
        meta["stacks"] = None if stacks is None else stacks.summary()
        return write_meta(self._target, meta)

    def _take_waiting_calls(self) -> None:
        query = f"SELECT count(*) FROM scratch.records WHERE kind = {SYNCHRONIZATION}"  # noqa: S608
        ((recorded,),) = self._connection.execute(query).fetchall()
        if self._records and not recorded:
            for columns in self._waiting_calls:
                self.add_records(columns)

    def _write_spans(
        self,
        nester: _native.Nester,
        processes: list[tuple[dict[str, Any], int]],
        process_names: list[int],
        left_out: npt.NDArray[np.int64],
    ) -> dict[int, int]:
        """Write all intervals but those at the places in `left_out`; returns the processes' nodes."""
        nodes, row = {}, 0
        waiting: list[tuple[dict[str, Any], Columns, Columns, list[str]]] = []
        for (process, first_row), name in zip(processes, process_names, strict=True):
            nodes[process["process_id"]] = nester.begin_process(process["process_id"], name)
            for rows in self._batches(first_row, process["spans"]):
                count = len(rows["start_ns"])
                first, end = np.searchsorted(left_out, (row, row + count))
                rows = {key: np.delete(column, left_out[first:end] - row) for key, column in rows.items()}
                row += count
                placed = nester.add(rows)
                batch = _span_columns(rows, placed), self._links(rows, placed), self._fresh_names()
                if self._stacks_at is None:
                    self._writer.add_batch(process, *batch)
                else:
                    waiting.append((process, *batch))
        _with_self_times([columns for _, columns, *_ in waiting])
        for each in waiting:
            self._writer.add_batch(*each)
        return nodes

    def _forwarded(
        self, processes: list[tuple[dict[str, Any], int]], process_names: list[int]
    ) -> npt.NDArray[np.int64]:
        """Return the rows of operators that are no calls of their own, in the order of the processes.

        Recordings of our own leave them out as well, and so do the tables of torch.profiler.
        """
        query = f"SELECT 1 FROM scratch.sorted WHERE kind = {kind_code('operator')} AND role = {SPAN} LIMIT 1"  # noqa: S608
        if not self._connection.execute(query).fetchall():
            return np.empty(0, dtype=np.int64)
        nester = _native.Nester()
        for (process, first_row), name in zip(processes, process_names, strict=True):
            nester.begin_process(process["process_id"], name)
            for rows in self._batches(first_row, process["spans"]):
                nester.add(rows)
        nester.finish()
        return np.sort(nester.forwarded())

    def _first_instant(self) -> int:
        firsts = self._connection.execute(
            "SELECT min(start_ns) FROM scratch.sorted UNION ALL SELECT min(start_ns) FROM scratch.records"
        ).fetchall()
        return min((first for (first,) in firsts if first is not None), default=0)

    def _processes(self) -> list[tuple[dict[str, Any], int]]:
        """Return the processes and where their rows begin, the one with the most intervals first."""
        found = self._connection.execute(
            "SELECT process_id, count(*), min(start_ns), max(start_ns + duration_ns) FROM scratch.sorted "
            "GROUP BY 1 ORDER BY 1"
        ).fetchall()
        processes, first_row = [], 0
        for process_id, count, start, end in found:
            processes.append((self._process(process_id, count, start, end), first_row))
            first_row += count
        known = {process_id for process_id, *_ in found}
        others = self._connection.execute(
            "SELECT process_id, min(start_ns), max(start_ns + duration_ns) FROM scratch.records GROUP BY 1"
        ).fetchall()
        for process_id, start, end in others:
            if process_id not in known and not (process_id == MAIN_PROCESS and processes):
                processes.append((self._process(max(process_id, 0), 0, start, end), first_row))
        processes.sort(key=lambda each: -each[0]["spans"])
        by_id = {process["process_id"]: process for process, _ in processes}
        for process_id, start, end in others:
            # A GPU may work longer than any thread calls it.
            process = processes[0][0] if process_id == MAIN_PROCESS else by_id[process_id]
            process["start_ns"] = min(process["start_ns"], start - self._origin_ns)
            process["end_ns"] = max(process["end_ns"], end - self._origin_ns)
        return processes

    def _process(self, process_id: int, spans: int, start_ns: int, end_ns: int) -> dict[str, Any]:
        return {
            "process_id": process_id,
            "parent_process_id": None,
            "closed": True,
            "start_ns": start_ns - self._origin_ns,
            "end_ns": end_ns - self._origin_ns,
            "process_key": 0,
            "spans": spans,
        }

    def _batches(self, first_row: int, count: int) -> Iterator[Columns]:
        for begin in range(first_row, first_row + count, BATCH_ROWS):
            end = min(begin + BATCH_ROWS, first_row + count)
            rows = self._connection.execute(_BATCH, {"origin": self._origin_ns, "begin": begin, "end": end})
            yield rows.fetchnumpy()

    def _links(self, rows: Columns, placed: Columns) -> Columns:
        """Return what ties GPU records to intervals, as a recording leaves it."""
        is_launch = (rows["role"] == INTERFACE_CALL) & (rows["correlation_id"] != UNKNOWN)
        is_external = (rows["role"] == SPAN) & (rows["external_id"] != UNKNOWN_LONG)
        if self._records == 0:
            is_launch, is_external = np.zeros_like(is_launch), np.zeros_like(is_external)
        rows_of = np.concatenate([np.flatnonzero(is_launch), np.flatnonzero(is_external)])
        launches = int(is_launch.sum())
        ids = rows["external_id"][rows_of]
        ids[:launches] = rows["correlation_id"][rows_of[:launches]]
        kinds = np.full(len(rows_of), EXTERNAL, dtype=np.uint8)
        kinds[:launches] = LAUNCH
        return {
            "kind": kinds,
            "id": ids.astype(np.uint64),
            "span_id": placed["owner_id"][rows_of],
            "node": placed["owner_node"][rows_of],
            "launch_ns": rows["start_ns"][rows_of],
        }

    def _fresh_names(self) -> list[str]:
        if self._sent_names == len(self._name_ids):
            return []
        fresh = list(self._name_ids)[self._sent_names :]
        self._sent_names = len(self._name_ids)
        return fresh

    def _write_gpu(self, processes: list[tuple[dict[str, Any], int]], nodes: dict[int, int]) -> None:
        if self._records == 0:
            return
        self._writer.add_names(self._fresh_names())
        main = processes[0][0]["process_id"]
        for process, _ in processes:
            process_id = process["process_id"]
            numbers = {"$origin": self._origin_ns, "$main": main, "$process": process_id}
            view = _RECORDS_VIEW
            for name, number in numbers.items():
                view = view.replace(name, f"({number})")
            self._connection.execute(view)
            self._writer.gpu.load_imported((process_id, 0))
            self._writer.write_gpu_of(process_id, nodes[process_id])

    def _gpu_counts(self) -> dict[str, int] | None:
        if self._records == 0:
            return None
        counts = dict(
            self._connection.execute("SELECT kind, count(*) FROM scratch.records GROUP BY 1").fetchall()
        )
        return {
            "kernels": counts.get(KERNEL, 0) - self._graphs,
            "graphs": self._graphs,
            "transfers": counts.get(COPY, 0) + counts.get(FILL, 0),
            "synchronizations": counts.get(SYNCHRONIZATION, 0),
        }


def _span_columns(rows: Columns, placed: Columns) -> Columns:
    own = {name: rows[name] for name in ("thread_id", "kind", "name_id", "start_ns", "duration_ns")}
    return {**own, **{name: placed[name] for name in ("span_id", "parent_id", "depth", "path_id")}}


def _with_self_times(batches: list[Columns]) -> None:
    """Add the column `own_ns` to all spans of a run: the duration without that of the spans inside."""
    if not batches:
        return
    span_id, parent_id, duration = (
        np.concatenate([batch[name].astype(np.int64) for batch in batches])
        for name in ("span_id", "parent_id", "duration_ns")
    )
    inside = np.bincount(
        parent_id[parent_id >= 0], weights=duration[parent_id >= 0], minlength=int(span_id.max()) + 1
    )
    own = duration - inside[span_id].astype(np.int64)
    first = 0
    for batch in batches:
        batch["own_ns"] = own[first : first + len(batch["span_id"])]
        first += len(batch["span_id"])


@contextmanager
def imported_run(
    path: str | os.PathLike[str], stacks_at: Callable[[int], Stacks] | None = None
) -> Iterator[ImportedRun]:
    """Make the run's folder and what writes it. Where the block fails, the folder is removed.

    `stacks_at` returns stack samples of the same processes, for the run's origin.
    """
    import duckdb

    target = Path(path)
    create_folder(target)
    plain = PlainPath(target)
    connection = connect_database()
    try:
        with StoredSpans(plain.path) as spans:
            yield ImportedRun(plain.path, connection, stacks_at, spans if stacks_at is not None else None)
    except BaseException as error:
        connection.close()
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, duckdb.Error):
            raise RunError(
                "cannot_write",
                f"cannot write {target}: {reason_of(error)}",
                hint="free disk space, or specify another folder",
            ) from None
        raise
    connection.close()
    shutil.rmtree(target / _SCRATCH, ignore_errors=True)
    shutil.rmtree(target / SEGMENTS, ignore_errors=True)


def kind_code(kind: str) -> int:
    """Return the code of a kind of interval, as the native core has it."""
    return KINDS.index(kind)
