# SPDX-License-Identifier: Apache-2.0
"""GPU records become tables: each finds the span that was open where it was launched or captured.

The recorder leaves two halves: the records, which name a correlation id, and *links*, which tell for each
correlation id, and for each node of a CUDA graph, the innermost open span. A run may hold tens of millions
of both, so they are joined by DuckDB, which goes to disk where memory ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run import gpu_queries
from gpuprof.run.gpu_records import RECORD, UNKNOWN, GpuFile

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

BATCH_RECORDS = 65_536
# For joining and sorting; what does not fit goes to the run's own disk.
MEMORY_LIMIT = "256MB"


class GpuTables:
    """Gathers links while the spans are decoded, and writes the GPU's tables afterwards."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, scratch: Path) -> None:
        self._connection = connection
        self._scratch = scratch
        self._link_parts: dict[tuple[int, int], list[Path]] = {}
        self._kernels = 0
        self._is_ready = False

    def add_links(self, process: dict[str, Any], links: Columns) -> None:
        """Keep a batch of links of one process."""
        if len(links["id"]) == 0:
            return
        self._scratch.mkdir(exist_ok=True)
        parts = self._link_parts.setdefault((process["process_id"], process["process_key"]), [])
        part = self._scratch / f"links-{process['process_id']}-{process['process_key']}-{len(parts)}.parquet"
        self._write(links, part)
        parts.append(part)

    def load(self, file: GpuFile, name_ids: npt.NDArray[np.uint32] | None, origin_ns: int) -> None:
        """Make the records and links of one process ready to be asked."""
        self.prepare()
        key = (file.process_id, file.process_key)
        parts = []
        for number, records in enumerate(file.batches(BATCH_RECORDS)):
            part = self._scratch / f"records-{key[0]}-{key[1]}-{number}.parquet"
            self._write(_plain_columns(records, name_ids, origin_ns, file.process_id), part)
            parts.append(part)
        self._view("raw_records", parts, _columns_of_nothing())
        self._connection.execute(gpu_queries.RECORDS)
        self._view("links", self._link_parts.get(key, []), _no_links())
        self._connection.execute(gpu_queries.CAPTURED)
        self._connection.execute(gpu_queries.ATTRIBUTED)

    def load_imported(self, key: tuple[int, int]) -> None:
        """Make the view `raw_records` and the links of one process of an imported run ready to be asked."""
        self._connection.execute(gpu_queries.RECORDS)
        self._view("links", self._link_parts.get(key, []), _no_links())
        self._connection.execute(gpu_queries.IMPORTED)

    def rows(self, table: str) -> duckdb.DuckDBPyRelation:
        """Return the rows of `table` of the process that was loaded last."""
        query = gpu_queries.TABLES[table]
        return self._connection.sql(query.replace("$first", str(self._kernels)))

    def leaves(self, root_node: int) -> Columns:
        """Return what hangs below the call tree's nodes: node, kind, name, calls, gpu_ns.

        Also is_foreign_graph, records and unlaunched, for notes. What no recorded thread launched hangs below
        `root_node`, its process.
        """
        query = gpu_queries.LEAVES.replace("$root", str(root_node))
        found: Columns = self._connection.execute(query).fetchnumpy()
        self._kernels += self._connection.execute(gpu_queries.COUNT_KERNELS).fetchall()[0][0]
        return found

    def layer_times(self, root_node: int) -> Columns:
        """Return what layers took on the GPU outside of those inside them: node, gpu_ns."""
        query = gpu_queries.LAYER_TIMES.replace("$root", str(root_node))
        found: Columns = self._connection.execute(query).fetchnumpy()
        return found

    def prepare(self) -> None:
        """Bound the memory and make what the queries need; done once."""
        if self._is_ready:
            return
        self._scratch.mkdir(exist_ok=True)
        self._connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        self._connection.execute("SET temp_directory = $folder", {"folder": str(self._scratch)})
        self._connection.execute(gpu_queries.SETTING)
        self._is_ready = True

    def _write(self, columns: Columns, part: Path) -> None:
        self._connection.register("fresh_gpu", columns)
        try:
            self._connection.sql("SELECT * FROM fresh_gpu").write_parquet(str(part), compression="zstd")
        finally:
            self._connection.unregister("fresh_gpu")

    def _view(self, name: str, parts: list[Path], empty: Columns) -> None:
        if not parts:
            part = self._scratch / f"no-{name}.parquet"
            self._write(empty, part)
            parts = [part]
        self._connection.read_parquet([str(part) for part in parts]).create_view(name, replace=True)


def _plain_columns(
    records: npt.NDArray[np.void], name_ids: npt.NDArray[np.uint32] | None, origin_ns: int, process_id: int
) -> Columns:
    """Return a batch as columns, in the run's times and names, without what never ended."""
    records = records[(records["start_ns"] > 0) & (records["end_ns"] >= records["start_ns"])]
    columns: Columns = {
        name: np.ascontiguousarray(records[name])
        for name in RECORD.names or ()
        if name not in ("start_ns", "end_ns", "reserved")
    }
    names = columns["name"]
    known = np.zeros(len(names), dtype=bool) if name_ids is None else (names > 0) & (names < len(name_ids))
    table = np.zeros(1, dtype=np.uint32) if name_ids is None else name_ids
    columns["name"] = np.where(known, table[np.where(known, names, 0)], UNKNOWN).astype(np.uint32)
    columns["start_ns"] = records["start_ns"] - origin_ns
    columns["duration_ns"] = records["end_ns"] - records["start_ns"]
    columns["process_id"] = np.full(len(names), process_id, dtype=np.int64)
    return columns


def _columns_of_nothing() -> Columns:
    return _plain_columns(np.empty(0, dtype=RECORD), None, 0, 0)


def _no_links() -> Columns:
    types = {"kind": np.uint8, "id": np.uint64, "span_id": np.int64, "node": np.uint32, "launch_ns": np.int64}
    return {name: np.empty(0, dtype=dtype) for name, dtype in types.items()}
