# SPDX-License-Identifier: Apache-2.0
"""The Parquet tables of a run, written batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuprof.record.device_sampler import METRICS
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.database import registered
from gpuprof.run.format import KINDS
from gpuprof.run.gpu_records import find_files
from gpuprof.run.gpu_tables import GpuTables
from gpuprof.run.gpu_tree import notes_on, with_leaves
from gpuprof.run.import_times import IMPORTS_QUERY, import_times
from gpuprof.run.outermost_calls import LayerModes, read_outermost_calls
from gpuprof.run.part_writers import PartWriters
from gpuprof.run.program_phases import PHASES_QUERY, Phase, steps_and_phases
from gpuprof.run.python_tree import with_python_frames
from gpuprof.run.requests_table import REQUESTS_QUERY, ServedRequests, requests_of
from gpuprof.run.spanless import part_path, write_empty_tables
from gpuprof.run.stacks import STACKS_QUERY, Stacks, batches
from gpuprof.run.steps import STEPS_QUERY, Step
from gpuprof.run.stored_spans import StoredSpans
from gpuprof.run.threads import THREADS_QUERY, ThreadTimes
from gpuprof.run.work_table import read_counters, read_inputs, read_work

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


def columns_of(rows: Sequence[NamedTuple]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of equal records: numbers as int64, texts as objects."""
    import numpy as np

    fields = zip(rows[0]._fields, zip(*rows, strict=True), strict=True)
    return {
        name: np.array(values, dtype=object if isinstance(values[0], str) else np.int64)
        for name, values in fields
    }


GPU_TABLES = ("kernels", "transfers", "synchronizations")
SCRATCH = ".closing"

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
_LINES_QUERY = """
    SELECT file, function, line, hits, total_ns, source FROM batch ORDER BY number
"""
_SAMPLES_QUERY = """
    SELECT t_ns - $origin_ns AS t_ns, device::INTEGER AS device, metric, value
    FROM batch JOIN metrics USING (code)
"""


# In one script: each call of DuckDB gives the interpreter lock back some ten times.
_WORDS = f"""
    CREATE TABLE names (name_id UINTEGER, name VARCHAR);
    CREATE TABLE kinds (code UTINYINT, kind VARCHAR);
    INSERT INTO kinds VALUES {", ".join(map(str, enumerate(KINDS)))};
    CREATE TABLE metrics (code USMALLINT, metric VARCHAR);
    INSERT INTO metrics VALUES {", ".join(map(str, enumerate(METRICS, start=1)))}
"""  # noqa: S608 (constants of our own)


class TableWriter:
    """Writes batches of columns as parts of hive-partitioned Parquet data sets."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        target: Path,
        *,
        kept_spans: StoredSpans | None = None,
        parts: PartWriters | None = None,
    ) -> None:
        self._connection = connection
        # By far the largest table of most runs.
        self._span_parts = parts or PartWriters(connection)
        # Until the tree is known: with Python's functions in it a call may be in another row.
        self._kept_spans = kept_spans
        self._target = target
        self._parts = 0
        self._written: set[str] = set()
        connection.execute(_WORDS)
        self._names = 0
        self.gpu = GpuTables(connection, target / SCRATCH)
        self._leaves: list[dict[str, Any]] | None = None  # None: no GPU was recorded
        self._layer_times: list[dict[str, Any]] = []
        self._merged_tree: tuple[dict[str, Any], list[str]] = ({}, [])

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
        if self._kept_spans is not None:
            self._kept_spans.append(process_id, columns)
            return
        columns["process_id"] = np.full(len(columns["span_id"]), process_id, dtype=np.int64)
        self._write_spans(columns)

    def _write_spans(self, columns: dict[str, Any]) -> None:
        part = self._new_part("spans", int(columns["process_id"][0]))
        self._span_parts.write(columns, _SPANS_QUERY, part)

    def add_samples(self, columns: dict[str, Any], origin_ns: int) -> None:
        """Write one batch of device readings, whose times are those of the monotonic clock."""
        with self._registered("batch", columns):
            self._write("samples", 0, _SAMPLES_QUERY.replace("$origin_ns", str(origin_ns)))

    def ensure_tables(self) -> None:
        """Make the tables that nothing was recorded for, so that queries of them work."""
        write_empty_tables(self._target, self._written)

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
                decoded["damage"].append(Damage(DamageCode.GPU_FILE_WITHOUT_PROCESS, str(file.path)))
                continue
            self.gpu.load(file, name_ids[key], decoded["origin_monotonic_ns"])
            self.write_gpu_of(file.process_id, roots[key])
            self._layer_times.append(self.gpu.layer_times(roots[key]))
        decoded["gpu_notes"] = notes_on(self._leaves or [], has_calls=self.gpu.has_calls)

    def write_gpu_of(self, process_id: int, root_node: int) -> None:
        """Write what was loaded last; `root_node` is its process in the call tree."""
        for table in GPU_TABLES:
            for rows in self.gpu.rows(table):
                self._write_rows(table, process_id, rows)
        self._leaves = [*(self._leaves or []), self.gpu.leaves(root_node)]

    def write_work(self, segments: Path, decoded: dict[str, Any]) -> None:
        """Write what the counting pass and the one with counters left, where there were any."""
        process_id = int(decoded["processes"][0]["process_id"]) if decoded["processes"] else 0
        rows, decoded["work"], damage = read_work(self._connection, segments, decoded["origin_monotonic_ns"])
        inputs, damage_of_inputs = read_inputs(self._connection, segments)
        counters, decoded["counters"], more_damage = read_counters(self._connection, segments, process_id)
        decoded["damage"] += [*damage, *damage_of_inputs, *more_damage]
        if rows is not None:
            self._write_rows("work", process_id, rows)
        if inputs is not None:
            self._write_rows("operator_inputs", process_id, inputs)
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

    def write_threads(self, rows: list[ThreadTimes]) -> None:
        """Write what each thread did with its time."""
        self._write_records("threads", rows, THREADS_QUERY)

    def write_requests(self, served: ServedRequests, process_id: int, origin_ns: int) -> None:
        """Write the requests that were served, each with its span; the spans are written."""
        columns = requests_of(self._connection, served, self._target / "spans", process_id, origin_ns)
        with self._registered("batch", columns), self._registered("statuses", served.names_of_statuses):
            self._write("requests", process_id, REQUESTS_QUERY)

    def write_steps(self, stacks: Stacks, modes: LayerModes, *, has_operators: bool) -> None:
        """Find the steps in the spans and the tree, which are written; write them, phases and imports."""
        steps: list[Step] = []
        phases: list[Phase] = []
        if "spans" in self._written:
            calls = read_outermost_calls(self._connection, self._target / "spans", *self._merged_tree, modes)
            steps, phases = steps_and_phases(calls, stacks, has_operators=has_operators)
        first = {step.process_id: (step.begin_ns, step.end_ns) for step in reversed(steps)}
        self.write_found_steps(steps)
        self._write_records("phases", phases, PHASES_QUERY)
        self._write_records("imports", import_times(stacks, first), IMPORTS_QUERY)

    def write_found_steps(self, steps: Sequence[Step]) -> None:
        """Write steps."""
        self._write_records("steps", steps, STEPS_QUERY)

    @property
    def merged_tree(self) -> tuple[dict[str, Any], list[str]]:
        """Columns and names of the written call tree."""
        return self._merged_tree

    def _write_records(self, table: str, rows: Sequence[NamedTuple], query: str) -> None:
        if rows:
            with self._registered("batch", columns_of(rows)):
                self._write(table, 0, query)

    def write_function_calls(self, columns: dict[str, Any]) -> None:
        """Write who called whom, as a profiler without instants counted it."""
        if len(columns["number"]):
            with self._registered("batch", columns):
                self._write("function_calls", 0, _FUNCTION_CALLS_QUERY)

    def write_lines(self, columns: dict[str, Any]) -> None:
        """Write the times of source lines, as a profiler without instants counted them."""
        if len(columns["number"]):
            with self._registered("batch", columns):
                self._write("lines", 0, _LINES_QUERY)

    def write_tree(self, decoded: dict[str, Any], stacks: Stacks | None = None) -> None:
        """Write the merged call tree, with what the GPU did below the calls that asked for it."""
        import numpy as np

        tree, names = with_leaves(decoded["tree"], decoded["names"], self._leaves, self._layer_times)
        if (kept := self._kept_spans) is not None and stacks is not None and len(stacks):
            numbers = decoded["tree"]["number"]
            tree, names = with_python_frames(tree, names, numbers, kept, stacks, self._write_spans)
        elif kept is not None:
            for rows in (rows for chunk in kept.chunks() for rows in kept.rows_of(chunk)):
                self._write_spans(rows)
        self._merged_tree = tree, names
        self.add_names(names[self._names :])
        columns = {**tree, "node_id": np.arange(len(tree["parent"]), dtype=np.int32)}
        columns["parent_id"] = columns.pop("parent")
        columns["path_id"] = columns.pop("number")
        columns["name_id"] = columns.pop("name").astype(np.uint32) + 1
        with self._registered("batch", columns):
            self._write("call_tree", 0, _TREE_QUERY)

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

    def _registered(self, name: str, columns: dict[str, Any]) -> AbstractContextManager[None]:
        return registered(self._connection, name, columns)

    def _write(self, table: str, process_id: int, query: str) -> None:
        self._write_rows(table, process_id, self._connection.sql(query))

    def _write_rows(self, table: str, process_id: int, rows: duckdb.DuckDBPyRelation) -> None:
        rows.write_parquet(str(self._new_part(table, process_id)), compression="zstd")

    def _new_part(self, table: str, process_id: int) -> Path:
        part = part_path(self._target, table, process_id, self._parts)
        self._parts += 1
        self._written.add(table)
        return part
