# SPDX-License-Identifier: Apache-2.0
"""Closing a run: the segments of a recording become Parquet tables and `meta.json`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.record.device_sampler import METRICS
from gpuprof.record.recording_folder import LOCK_FILE, RECORDING_FILE, SEGMENTS, exclusive, write_json
from gpuprof.run.child_facts import name_processes, read_child_facts, who_told_of_gpu, with_child_facts
from gpuprof.run.database import connect as connect_database
from gpuprof.run.forked_gpu import with_forked
from gpuprof.run.format import FORMAT_VERSION, KINDS, META_FILE, TABLES, check_version, read_json
from gpuprof.run.gpu_losses import gpu_losses
from gpuprof.run.gpu_records import find_files
from gpuprof.run.gpu_tables import GpuTables
from gpuprof.run.gpu_tree import notes_on, with_leaves
from gpuprof.run.machine import describe_machine
from gpuprof.run.plain_path import PlainPath
from gpuprof.run.python_tree import SPAN_COLUMNS, with_last_samples, with_python_frames
from gpuprof.run.samples import NO_READING, SampledDevices, read_samples
from gpuprof.run.stacks import STACKS_QUERY, Stacks, batches, has_stacks, read_stacks
from gpuprof.run.work_table import read_counters, read_work

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt

# Rows that are held in memory at once, in columns of 57 bytes a row. This may be the measured program's
# memory, so fewer than DuckDB would like: twice as many cost 20 MB and save a tenth of the time.
BATCH_ROWS = 65_536

GPU_TABLES = ("kernels", "transfers", "synchronizations")
_SCRATCH = ".closing"

_SPANS_QUERY = """
    SELECT span_id, nullif(parent_id, -1) AS parent_id, process_id, thread_id, kinds.kind,
           coalesce(name, '(lost name)') AS name, start_ns, duration_ns, depth, path_id::INTEGER AS path_id
    FROM batch JOIN kinds ON batch.kind = kinds.code LEFT JOIN names USING (name_id)
"""
_TREE_QUERY = """
    SELECT node_id, nullif(parent_id, -1) AS parent_id, process_id, kinds.kind,
           coalesce(name, '(lost name)') AS name, nullif(calls, -1) AS calls, total_ns, own_ns, threads,
           nullif(gpu_ns, -1) AS gpu_ns, nullif(path_id, -1)::INTEGER AS path_id
    FROM batch JOIN kinds ON batch.kind = kinds.code LEFT JOIN names USING (name_id)
    ORDER BY node_id
"""
_FUNCTION_CALLS_QUERY = """
    SELECT caller, function, calls, total_ns, own_ns FROM batch ORDER BY number
"""
_SAMPLES_QUERY = """
    SELECT t_ns - $origin_ns AS t_ns, device::INTEGER AS device, metric, value
    FROM batch JOIN metrics USING (code)
"""


def preload() -> None:
    """Import what `close_run` needs."""
    import duckdb  # noqa: F401
    import numpy as np  # noqa: F401


def close_run(path: Path, into: Path | None = None) -> dict[str, Any]:
    """Write the tables and `meta.json` of a recording that has ended; returns the meta data.

    The recording's own files are removed once everything else is on disk. With `into`, they are left
    alone and the run is written to that folder. Raises RunError with the mend.
    """
    with exclusive(path) as free:
        if not free:
            raise RunError(f"{path} is still being recorded: wait until its program has ended")
        if (path / META_FILE).exists() and not (path / RECORDING_FILE).exists():
            return read_json(path / META_FILE)  # another thread or process was faster
        facts = read_json(path / RECORDING_FILE)
        check_version(facts, path)
        if not (path / SEGMENTS).is_dir():
            raise RunError(f"{path} has no {SEGMENTS} folder, where its events were: restore it from a copy")
        target = path if into is None else into
        try:
            children, damage = read_child_facts(path / SEGMENTS)
            decoded, sampled = _write_tables(path, target, children, closed=bool(facts.get("closed")))
            decoded["damage"] += damage
            facts = with_child_facts(facts, children, decoded)
            facts = with_forked(facts, path / SEGMENTS, joined=who_told_of_gpu(children))
            meta = _meta(facts, decoded, sampled, path)
            write_json(target / META_FILE, meta)
        except OSError as error:
            raise RunError(
                f"cannot write the tables of {path}: {error.strerror}; what was recorded is kept: "
                "make room or the folder writable, then open it again"
            ) from error
        if into is None:
            _remove_recording(path)
    return meta


def _write_tables(
    path: Path, target: Path, children: list[dict[str, Any]], *, closed: bool
) -> tuple[dict[str, Any], SampledDevices]:
    import duckdb

    for table in TABLES:
        # Parts of an earlier attempt that was interrupted would count twice.
        shutil.rmtree(target / table, ignore_errors=True)
    connection = connect_database()
    plain = PlainPath(target)
    try:
        # This may run in the measured program: each further thread would hold buffers of its own.
        connection.execute("SET threads = 1")
        writer = TableWriter(connection, plain.path, keeps_spans=has_stacks(path / SEGMENTS))
        decoded = _native.decode(os.fsencode(path / SEGMENTS), BATCH_ROWS, writer.add_batch)
        name_processes(decoded, children)
        writer.write_gpu(path / SEGMENTS, decoded)
        stacks = read_stacks(path / SEGMENTS, int(decoded["origin_monotonic_ns"]))
        with_last_samples(decoded, stacks)
        writer.write_stacks(stacks)
        writer.write_tree(decoded, stacks)
        decoded["damage"] += stacks.damage
        decoded["stacks"] = stacks.summary()
        writer.write_work(path / SEGMENTS, decoded)
        origin_ns = int(decoded["origin_monotonic_ns"])
        sampled = read_samples(
            path / SEGMENTS, lambda columns: writer.add_samples(columns, origin_ns), closed=closed
        )
        writer.ensure_tables()
    except duckdb.Error as error:
        raise OSError(0, str(error).splitlines()[0]) from error
    finally:
        connection.close()
        shutil.rmtree(target / _SCRATCH, ignore_errors=True)
    decoded["damage"] += sampled.damage
    return decoded, sampled


class TableWriter:
    """Writes batches of columns as parts of hive-partitioned Parquet data sets."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, target: Path, *, keeps_spans: bool = False
    ) -> None:
        self._connection = connection
        # Until the tree is known: with Python's functions in it a call may stand in another row.
        self._kept_spans: list[dict[str, Any]] | None = [] if keeps_spans else None
        self._target = target
        self._parts = 0
        self._written: set[str] = set()
        connection.execute("CREATE TABLE names (name_id UINTEGER, name VARCHAR)")
        connection.execute("CREATE TABLE kinds (code UTINYINT, kind VARCHAR)")
        connection.executemany("INSERT INTO kinds VALUES (?, ?)", list(enumerate(KINDS)))
        connection.execute("CREATE TABLE metrics (code USMALLINT, metric VARCHAR)")
        connection.executemany("INSERT INTO metrics VALUES (?, ?)", list(enumerate(METRICS, start=1)))
        self._names = 0
        self.gpu = GpuTables(connection, target / _SCRATCH)
        self._leaves: list[dict[str, Any]] | None = None  # None: no GPU was recorded
        self._layer_times: list[dict[str, Any]] = []

    def add_batch(
        self, process: dict[str, Any], columns: dict[str, Any], links: dict[str, Any], names: list[str]
    ) -> None:
        """Write one batch. `names` are those that are new since the batch before."""
        self.add_names(names)
        self.gpu.add_links(process, links)
        if len(columns["span_id"]):
            self._add_spans(process, columns)

    def _add_spans(self, process: dict[str, Any], columns: dict[str, Any]) -> None:
        import numpy as np

        process_id = int(process["process_id"])
        columns["process_id"] = np.full(len(columns["span_id"]), process_id, dtype=np.int64)
        if self._kept_spans is not None:
            self._kept_spans.append(columns)
            return
        with self._registered("batch", columns):
            self._write("spans", process_id, _SPANS_QUERY)

    def add_samples(self, columns: dict[str, Any], origin_ns: int) -> None:
        """Write one batch of device readings, whose times are those of the monotonic clock."""
        with self._registered("batch", columns):
            self._write("samples", 0, _SAMPLES_QUERY.replace("$origin_ns", str(origin_ns)))

    def ensure_tables(self) -> None:
        """Make the tables that nothing was recorded for, so that they can be asked all the same."""
        for table in TABLES.keys() - self._written:
            columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in TABLES[table].items())
            self._write(table, 0, f"SELECT {columns} WHERE false")

    def write_gpu(self, segments: Path, decoded: dict[str, Any]) -> None:
        """Write kernels, transfers and synchronizations, process by process."""
        files, damage = find_files(segments)
        decoded["damage"] += damage
        self.add_names(decoded["names"][self._names :])
        keys = [(process["process_id"], process["process_key"]) for process in decoded["processes"]]
        tree = decoded["tree"]
        roots = dict(zip(keys, tree["number"][tree["parent"] < 0].tolist(), strict=True))
        name_ids = dict(zip(keys, decoded["name_ids"], strict=True))
        for file in files:
            key = (file.process_id, file.process_key)
            if key not in roots:
                decoded["damage"].append(f"{file.path}: its process left no events; its records are lost")
                continue
            self.gpu.load(file, name_ids[key], decoded["origin_monotonic_ns"])
            self.write_gpu_of(file.process_id, roots[key])
            self._layer_times.append(self.gpu.layer_times(roots[key]))
        decoded["gpu_notes"] = notes_on(self._leaves or [])

    def write_gpu_of(self, process_id: int, root_node: int) -> None:
        """Write what was loaded last; `root_node` is its process in the call tree."""
        for table in GPU_TABLES:
            for rows in self.gpu.rows(table):
                self._write_rows(table, process_id, rows)
        self._leaves = [*(self._leaves or []), self.gpu.leaves(root_node)]

    def write_work(self, segments: Path, decoded: dict[str, Any]) -> None:
        """Write what the counting pass and the one with counters left, where there were any."""
        process_id = int(decoded["processes"][0]["process_id"]) if decoded["processes"] else 0
        rows, decoded["work"], damage = read_work(self._connection, segments)
        counters, decoded["counters"], more_damage = read_counters(self._connection, segments, process_id)
        decoded["damage"] += [*damage, *more_damage]
        if rows is not None:
            self._write_rows("work", process_id, rows)
        if counters is not None:
            self._write_rows("counters", process_id, counters)

    def write_stacks(self, stacks: Stacks) -> None:
        """Write the stack samples, process by process."""
        import numpy as np

        if not len(stacks):
            return
        texts = np.array(stacks.texts, dtype=object)
        numbers = np.arange(len(texts), dtype=np.int64)
        with self._registered("frames", {"frame": numbers, "text": texts}):
            for process_id, columns, places in batches(stacks):
                with self._registered("batch", columns), self._registered("places", places):
                    self._write("stacks", process_id, STACKS_QUERY)

    def write_function_calls(self, columns: dict[str, Any]) -> None:
        """Write who called whom, as a profiler without instants counted it."""
        if len(columns["number"]):
            with self._registered("batch", columns):
                self._write("function_calls", 0, _FUNCTION_CALLS_QUERY)

    def write_tree(self, decoded: dict[str, Any], stacks: Stacks | None = None) -> None:
        """Write the merged call tree, with what the GPU did below the calls that asked for it."""
        import numpy as np

        tree, names = with_leaves(decoded["tree"], decoded["names"], self._leaves, self._layer_times)
        if stacks is not None and len(stacks):
            tree, names, path_ids = with_python_frames(
                tree, names, decoded["tree"]["number"], self._joined_spans(), stacks
            )
            self._renumber_spans(path_ids)
        self.add_names(names[self._names :])
        columns = {**tree, "node_id": np.arange(len(tree["parent"]), dtype=np.int32)}
        columns["parent_id"] = columns.pop("parent")
        columns["path_id"] = columns.pop("number")
        columns["name_id"] = columns.pop("name").astype(np.uint32) + 1
        with self._registered("batch", columns):
            self._write("call_tree", 0, _TREE_QUERY)
        for kept in self._kept_spans or ():
            with self._registered("batch", kept):
                self._write("spans", int(kept["process_id"][0]), _SPANS_QUERY)

    def _renumber_spans(self, path_ids: npt.NDArray[np.int64]) -> None:
        first = 0
        for kept in self._kept_spans or ():
            kept["path_id"] = path_ids[first : first + len(kept["span_id"])]
            first += len(kept["span_id"])

    def _joined_spans(self) -> dict[str, Any]:
        import numpy as np

        parts = self._kept_spans or []
        none: dict[str, Any] = {name: np.empty(0, dtype=np.int64) for name in SPAN_COLUMNS}
        return {name: np.concatenate([none[name], *(part[name] for part in parts)]) for name in none}

    def add_names(self, names: list[str]) -> None:
        """Take in names; their ids count from 1 in the order in which they come."""
        import numpy as np

        if not names:
            return
        first = self._names + 1
        ids = np.arange(first, first + len(names), dtype=np.uint32)
        with self._registered("fresh", {"name_id": ids, "name": np.array(names, dtype=object)}):
            self._connection.execute("INSERT INTO names SELECT name_id, name FROM fresh")
        self._names += len(names)

    @contextlib.contextmanager
    def _registered(self, name: str, columns: dict[str, Any]) -> Iterator[None]:
        self._connection.register(name, columns)
        try:
            yield
        finally:
            self._connection.unregister(name)

    def _write(self, table: str, process_id: int, query: str) -> None:
        self._write_rows(table, process_id, self._connection.sql(query))

    def _write_rows(self, table: str, process_id: int, rows: duckdb.DuckDBPyRelation) -> None:
        folder = self._target / table / "rank=0"
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"part-{process_id}-{self._parts:06}.parquet"
        self._parts += 1
        self._written.add(table)
        rows.write_parquet(str(part), compression="zstd")


def _meta(
    facts: dict[str, Any], decoded: dict[str, Any], sampled: SampledDevices, path: Path
) -> dict[str, Any]:
    processes = decoded["processes"]
    origin = decoded["origin_monotonic_ns"]
    return {
        "format_version": FORMAT_VERSION,
        "gpuprof": facts.get("gpuprof"),
        "complete": _is_complete(facts, decoded),
        "origin_unix_ns": str(origin + _clock_difference(facts, path)),
        "duration_ns": max((process["end_ns"] for process in processes), default=0),
        "command": facts.get("command"),
        "process_id": facts.get("process_id"),
        "machine": describe_machine(),
        "versions": {"python": facts.get("python"), "torch": facts.get("torch")},
        "sources": _sources(facts, sampled),
        "totals": decoded["totals"],
        "gpu": facts.get("gpu"),
        "stacks": decoded["stacks"],
        "layer_types": facts.get("layer_types"),
        "work": decoded["work"],
        "counters": decoded["counters"],
        "ceilings": None,
        "damage": decoded["damage"],
        "notes": _notes(facts, sampled, decoded["gpu_notes"]),
        "devices": sampled.devices,
        "clock": {"kind": facts.get("clock"), "ns_per_tick": decoded["ns_per_tick"]},
        "processes": [{**process, "process_key": str(process["process_key"])} for process in processes],
        "threads": decoded["threads"],
    }


def _notes(facts: dict[str, Any], sampled: SampledDevices, gpu_notes: list[str]) -> Any:
    notes = facts.get("notes", [])
    return [*notes, *gpu_notes, *sampled.notes] if isinstance(notes, list) else notes


def _sources(facts: dict[str, Any], sampled: SampledDevices) -> Any:
    """Return the methods in use. Whether the devices answer shows only in what was read of them."""
    sources = facts.get("sources", {})
    if not isinstance(sources, dict) or str(sources.get("samples", "off")).startswith("off"):
        return sources
    return sources if sampled.readings else {**sources, "samples": sampled.off or NO_READING}


def _clock_difference(facts: dict[str, Any], path: Path) -> int:
    try:
        return int(facts["realtime_minus_monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        raise RunError(
            f"{path / RECORDING_FILE} is damaged: its clock is no number; restore it from a copy"
        ) from None


def _is_complete(facts: dict[str, Any], decoded: dict[str, Any]) -> bool:
    """Whether the recording was ended in order and nothing that it wrote is missing."""
    totals = decoded["totals"]
    lost = totals["dropped_events"] + totals["damaged_events"] + len(decoded["damage"])
    lost += len(gpu_losses(facts.get("gpu")))
    return bool(facts.get("closed")) and lost == 0


def _remove_recording(path: Path) -> None:
    shutil.rmtree(path / SEGMENTS, ignore_errors=True)
    for name in (RECORDING_FILE, LOCK_FILE):
        (path / name).unlink(missing_ok=True)
