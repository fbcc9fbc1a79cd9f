# SPDX-License-Identifier: Apache-2.0
"""GPU records become tables: each finds the span that was open where it was launched or captured.

The recorder leaves two halves: the records, which name a correlation id, and *links*, which tell for each
correlation id, and for each node of a CUDA graph, the innermost open span. A run may hold tens of millions
of both, so they are joined by DuckDB, range by range: each join and each sort fits into memory. Ids are given
in the order of launches and files are written in about that order, so a range is a part of the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run import gpu_queries
from gpuprof.run.gpu_records import CALL, EVENT, NO_TIME, RECORD, UNKNOWN, GpuFile

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

BATCH_RECORDS = 65_536
# For joining and sorting; what does not fit goes to the run's own disk, and takes a hundred times as long.
MEMORY_LIMIT = "256MB"
JOINED_LAUNCHES = 500_000
SORTED_ROWS = 500_000
_EVER = (-(2**63), 2**63 - 1)


class GpuTables:
    """Gathers links while the spans are decoded, and writes the GPU's tables afterwards."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, scratch: Path) -> None:
        self._connection = connection
        self._scratch = scratch
        self._link_parts: dict[tuple[int, int], list[Path]] = {}
        self._kernels = 0
        self._is_ready = False
        self._is_imported = False
        self.has_calls = False  # launches come from records of calls; nodes of graphs have no such record

    def add_links(self, process: dict[str, Any], links: Columns) -> None:
        """Keep a batch of links of one process."""
        if len(links["id"]) == 0:
            return
        if "launch_end_ns" not in links:
            links = {**links, "launch_end_ns": np.full(len(links["id"]), NO_TIME, dtype=np.int64)}
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
            self.has_calls |= bool((records["kind"] == CALL).any())
            part = self._scratch / f"records-{key[0]}-{key[1]}-{number}.parquet"
            self._write(_plain_columns(records, name_ids, origin_ns, file.process_id), part)
            parts.append(part)
        self._view("raw_records", parts, _columns_of_nothing())
        self._view("links", self._link_parts.get(key, []), _no_links())
        self._connection.execute(gpu_queries.CAPTURED)
        self._view("attributed", self._attribute(key))

    def load_imported(self, key: tuple[int, int]) -> None:
        """Make the view `raw_records` and the links of one process of an imported run ready to be asked."""
        self._connection.execute(gpu_queries.IMPORTED_RECORDS)
        self._view("links", self._link_parts.get(key, []), _no_links())
        self._connection.execute(gpu_queries.IMPORTED)
        self._is_imported = True

    def rows(self, table: str) -> Iterator[duckdb.DuckDBPyRelation]:
        """Yield the rows of `table` of the process that was loaded last, in batches in the order of time."""
        for times in self._times(table):
            query = _between(gpu_queries.TABLES[table], *times)
            yield self._connection.sql(query.replace("$first", str(self._kernels)))
            if table == "kernels":
                self._kernels += self._count(table, *times)

    def _attribute(self, key: tuple[int, int]) -> list[Path]:
        """Join records with launches; returns the files."""
        parts = []
        for number, (low, high) in enumerate(self._launches()):
            part = self._scratch / f"attributed-{key[0]}-{key[1]}-{number}.parquet"
            query = gpu_queries.ATTRIBUTED.replace("$low", str(low)).replace("$high", str(high))
            self._connection.sql(query).write_parquet(str(part), compression="zstd")
            parts.append(part)
        return parts

    def _launches(self) -> Iterator[tuple[int, int]]:
        """Yield ranges that cover all correlation ids, each with as many launches as can be joined."""
        count, least, greatest = self._connection.execute(gpu_queries.LAUNCHES).fetchall()[0]
        ranges = max(1, -(-count // JOINED_LAUNCHES))
        inner = [least + (greatest - least) * place // ranges for place in range(1, ranges)]
        for low, end in itertools.pairwise([0, *inner, UNKNOWN + 1]):
            yield low, end - 1

    def _times(self, table: str) -> Iterator[tuple[int, int]]:
        """Yield ranges that cover all times, each with about as many rows of `table` as can be sorted."""
        ranges = 1 if self._is_imported else -(-self._count(table, *_EVER) // SORTED_ROWS)
        inner: set[int] = set()
        if ranges > 1:
            shares = [place / ranges for place in range(1, ranges)]
            query = gpu_queries.QUANTILES.replace("$kinds", gpu_queries.KINDS[table])
            inner = set(self._connection.execute(query.replace("$shares", str(shares))).fetchall()[0][0])
        return itertools.pairwise([_EVER[0], *sorted(inner), _EVER[1]])

    def _count(self, table: str, begin: int, end: int) -> int:
        query = _between(gpu_queries.COUNT.replace("$kinds", gpu_queries.KINDS[table]), begin, end)
        return int(self._connection.execute(query).fetchall()[0][0])

    def leaves(self, root_node: int) -> Columns:
        """Return what hangs below the call tree's nodes: node, kind, name, calls, gpu_ns.

        Also is_foreign_graph, records and unlaunched, for notes. What no recorded thread launched hangs below
        `root_node`, its process.
        """
        query = gpu_queries.LEAVES.replace("$root", str(root_node))
        found: Columns = self._connection.execute(query).fetchnumpy()
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

    def _view(self, name: str, parts: list[Path], empty: Columns | None = None) -> None:
        if not parts and empty is not None:
            part = self._scratch / f"no-{name}.parquet"
            self._write(empty, part)
            parts = [part]
        self._connection.read_parquet([str(part) for part in parts]).create_view(name, replace=True)


def _between(query: str, begin: int, end: int) -> str:
    query = query.replace("$ever", str(_EVER[0]))
    return query.replace("$begin", str(begin)).replace("$end", str(end))


def _plain_columns(
    records: npt.NDArray[np.void], name_ids: npt.NDArray[np.uint32] | None, origin_ns: int, process_id: int
) -> Columns:
    """Return a batch as columns, in the run's times and names, without what never ended.

    Records of calls are left out: the decoder made links of them.
    """
    has_times = (records["start_ns"] > 0) & (records["end_ns"] >= records["start_ns"])
    is_event = records["kind"] == EVENT
    records = records[(has_times | is_event) & (records["kind"] != CALL)]
    is_event = records["kind"] == EVENT
    columns: Columns = {
        name: np.ascontiguousarray(records[name])
        for name in RECORD.names or ()
        if name not in ("start_ns", "end_ns", "thread", "reserved")
    }
    names = columns["name"]
    known = np.zeros(len(names), dtype=bool) if name_ids is None else (names > 0) & (names < len(name_ids))
    table = np.zeros(1, dtype=np.uint32) if name_ids is None else name_ids
    columns["name"] = np.where(known, table[np.where(known, names, 0)], UNKNOWN).astype(np.uint32)
    columns["start_ns"] = np.where(is_event, NO_TIME, records["start_ns"] - origin_ns)
    columns["duration_ns"] = np.where(is_event, NO_TIME, records["end_ns"] - records["start_ns"])
    columns["process_id"] = np.full(len(names), process_id, dtype=np.int64)
    return columns


def _columns_of_nothing() -> Columns:
    return _plain_columns(np.empty(0, dtype=RECORD), None, 0, 0)


def _no_links() -> Columns:
    types = {"kind": np.uint8, "id": np.uint64, "span_id": np.int64, "node": np.uint32}
    types |= {"launch_ns": np.int64, "launch_end_ns": np.int64}
    return {name: np.empty(0, dtype=dtype) for name, dtype in types.items()}
