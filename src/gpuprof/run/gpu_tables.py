# SPDX-License-Identifier: Apache-2.0
"""GPU records become tables: each finds the span that was open where it was launched or captured.

The recorder leaves two halves: the records, which name a correlation id, and *links*, which name for each
correlation id, and for each node of a CUDA graph, the innermost open span. A run may hold tens of millions
of both, so they are joined by DuckDB, range by range: each join and each sort fits into memory. Ids are given
in the order of launches and files are written in about that order, so a range is a part of the files.

In `links`, kind 0 is a launch, 1 a node of a CUDA graph under capture, 2 a copy of a node, whose `span_id`
is the original's id. In `records`, kind is one of those in gpu_records.py: 1 kernel, 2 copy, 3 fill,
4 synchronization, 5 layer between two CUDA events, whose `detail` is the id of the timed layer around it on
its stream, 6 replay of a graph as a whole, 7 record of a CUDA event on a stream, which has no times of its
own. Ones in every bit mean that the driver does not report it. No graph and no node has the id 0,
which is in the records of what no graph launched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run.database import registered
from gpuprof.run.gpu_records import CALL, EVENT, NO_TIME, RECORD, UNKNOWN, GpuFile

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

_SETTING = """
    CREATE TABLE memory_kinds (code UINTEGER, text VARCHAR);  -- CUPTI's CUpti_ActivityMemoryKind
    INSERT INTO memory_kinds VALUES (1, 'pageable'), (2, 'pinned'), (3, 'device'), (4, 'array'),
        (5, 'managed'), (6, 'device static'), (7, 'managed static');
    CREATE TABLE wait_kinds (code UINTEGER, text VARCHAR);  -- CUpti_ActivitySynchronizationType
    INSERT INTO wait_kinds VALUES (1, 'event'), (2, 'stream waits for event'), (3, 'stream'), (4, 'context');
    CREATE VIEW gpu_names AS SELECT name_id, name AS text FROM names;
"""

_RECORDS = f"""
    SELECT * REPLACE (
        nullif(name, 4294967295) AS name, nullif(device, 4294967295) AS device,
        nullif(context, 4294967295) AS context, nullif(stream, 4294967295) AS stream,
        nullif(grid_x, 4294967295) AS grid_x, nullif(grid_y, 4294967295) AS grid_y,
        nullif(grid_z, 4294967295) AS grid_z, nullif(block_x, 4294967295) AS block_x,
        nullif(block_y, 4294967295) AS block_y, nullif(block_z, 4294967295) AS block_z,
        nullif(registers, 4294967295) AS registers,
        nullif(static_shared_bytes, 4294967295) AS static_shared_bytes,
        nullif(dynamic_shared_bytes, 4294967295) AS dynamic_shared_bytes,
        nullif(nullif(graph_id, 4294967295), 0) AS graph_id, nullif(source_kind, 4294967295) AS source_kind,
        nullif(destination_kind, 4294967295) AS destination_kind, nullif(detail, 4294967295) AS detail,
        nullif(correlation_id, 4294967295) AS correlation_id,
        nullif(nullif(graph_node_id, 18446744073709551615), 0) AS graph_node_id,
        nullif(bytes, 18446744073709551615) AS bytes,
        nullif(start_ns, {NO_TIME}) AS start_ns, nullif(duration_ns, {NO_TIME}) AS duration_ns,
        nullif(event_id, 0) AS event_id, nullif(event_sync_id, 0) AS event_sync_id)
    FROM raw_records
"""  # noqa: S608 (a constant of our own)
# Traces of other tools contain no events.
_WITH_NO_EVENTS = "FROM (SELECT *, 0::UINTEGER AS event_id, 0::UBIGINT AS event_sync_id FROM raw_records)"
_IMPORTED_RECORDS = (
    f"CREATE OR REPLACE VIEW records AS {_RECORDS.replace('FROM raw_records', _WITH_NO_EVENTS)}"
)

# Instantiating a graph copies its nodes, and a copy may be copied again. A copy that was recorded as a node
# of its own as well belongs where its original was captured.
_CAPTURED = """
    CREATE OR REPLACE TABLE captured AS
    WITH RECURSIVE found(id, span_id, node, copies) AS (
        SELECT id, any_value(span_id), any_value(node), 0 FROM links WHERE kind = 1 GROUP BY id
        UNION
        SELECT links.id, found.span_id, found.node, copies + 1
        FROM links JOIN found ON links.kind = 2 AND links.span_id = TRY_CAST(found.id AS BIGINT)
        WHERE copies < 8 AND links.id != found.id
    )
    SELECT id, arg_max(span_id, copies) AS span_id, arg_max(node, copies) AS node FROM found GROUP BY id
"""

# A replayed kernel belongs to what was open when it was captured; without that, to what launched the graph.
# Of the correlation ids from $low to $high.
_ATTRIBUTED = """
    SELECT records.* REPLACE (
               CASE kind WHEN 7 THEN launches.launch_ns ELSE start_ns END AS start_ns,
               CASE kind WHEN 7 THEN launches.launch_end_ns - launches.launch_ns ELSE duration_ns END
                   AS duration_ns),
           launches.launch_ns, launches.launch_end_ns,
           nullif(CASE WHEN captured.id IS NULL THEN launches.span_id ELSE captured.span_id END, -1)
               AS span_id,
           coalesce(captured.node, launches.node) AS node,
           records.graph_id IS NOT NULL AND captured.id IS NULL AND kind != 6 AS is_foreign_graph
    FROM ($records WHERE raw_records.correlation_id BETWEEN $low AND $high) AS records
    LEFT JOIN (SELECT id, any_value(span_id) AS span_id, any_value(node) AS node,
                      min(launch_ns) AS launch_ns, max(nullif(launch_end_ns, $no_time)) AS launch_end_ns
               FROM links WHERE kind = 0 AND id BETWEEN $low AND $high GROUP BY id) AS launches
        ON launches.id = records.correlation_id
    LEFT JOIN captured ON captured.id = records.graph_node_id
""".replace("$records", _RECORDS).replace("$no_time", str(NO_TIME))

# Another tool's record belongs to what launched it, by correlation id (kind 0), or to the operator whose id
# it carries (kind 3).
_IMPORTED = """
    CREATE OR REPLACE VIEW attributed AS
    SELECT records.*, launches.launch_ns, launches.launch_end_ns,
           coalesce(launches.span_id, externals.span_id) AS span_id,
           CASE WHEN launches.span_id IS NULL THEN coalesce(externals.node, launches.node)
                ELSE launches.node END AS node,
           false AS is_foreign_graph
    FROM records
    LEFT JOIN (SELECT id, nullif(min(span_id), -1) AS span_id, arg_min(node, span_id) AS node,
                      min(launch_ns) AS launch_ns, max(nullif(launch_end_ns, $no_time)) AS launch_end_ns
               FROM links WHERE kind = 0 GROUP BY id) AS launches ON launches.id = records.correlation_id
    LEFT JOIN (SELECT id, min(span_id) AS span_id, arg_min(node, span_id) AS node
               FROM links WHERE kind = 3 GROUP BY id) AS externals ON externals.id = records.external_id
""".replace("$no_time", str(NO_TIME))

_KINDS = {"kernels": "1, 6", "transfers": "2, 3", "synchronizations": "4, 7"}
_LAUNCHES = "SELECT count(*), min(id), max(id) FROM links WHERE kind = 0"
_COUNT = """
    SELECT count(*) FROM attributed WHERE kind IN ($kinds) AND start_ns >= $begin AND start_ns < $end
"""
_QUANTILES = "SELECT approx_quantile(start_ns, $fractions) FROM attributed WHERE kind IN ($kinds)"

# Of what began from $begin to before $end. $ever is the least that $begin can be, which is for event records
# whose call was not recorded.
_TABLES = {
    "kernels": """
        SELECT row_number() OVER () - 1 + $first AS kernel_id, * FROM (
            SELECT span_id, process_id, correlation_id,
                   CASE kind WHEN 6 THEN 'CUDA graph ' || graph_id ELSE coalesce(text, '(unknown kernel)') END
                       AS name,
                   device, context, stream, start_ns, duration_ns, launch_ns, grid_x, grid_y, grid_z, block_x,
                   block_y, block_z, registers, static_shared_bytes, dynamic_shared_bytes, graph_id,
                   graph_node_id, launch_end_ns
            FROM attributed LEFT JOIN gpu_names ON gpu_names.name_id = attributed.name
            WHERE kind IN (1, 6) AND start_ns >= $begin AND start_ns < $end ORDER BY start_ns, correlation_id)
    """,
    "transfers": """
        SELECT CASE kind WHEN 2 THEN 'copy' ELSE 'fill' END AS kind, bytes, sources.text AS src,
               destinations.text AS dst, span_id, process_id, correlation_id, device, context, stream,
               start_ns, duration_ns, launch_ns, graph_id, graph_node_id, launch_end_ns
        FROM attributed LEFT JOIN memory_kinds AS sources ON sources.code = source_kind
        LEFT JOIN memory_kinds AS destinations ON destinations.code = destination_kind
        WHERE attributed.kind IN (2, 3) AND start_ns >= $begin AND start_ns < $end
        ORDER BY start_ns, correlation_id
    """,
    "synchronizations": """
        SELECT CASE kind WHEN 7 THEN 'event record' ELSE coalesce(text, 'unknown') END AS type, span_id,
               process_id, correlation_id, context, stream, start_ns, duration_ns, event_id, event_sync_id
        FROM attributed LEFT JOIN wait_kinds ON code = detail
        WHERE kind IN (4, 7) AND coalesce(start_ns, $ever) >= $begin AND coalesce(start_ns, $ever) < $end
        ORDER BY start_ns NULLS FIRST, correlation_id
    """,
}

# A leaf of the call tree for each kernel's name, and one for a graph whose capture was not recorded.
_LEAVES = """
    SELECT coalesce(node, $root) AS node, CASE WHEN kind IN (1, 6) THEN 'kernel' ELSE 'transfer' END AS kind,
           CASE WHEN is_foreign_graph OR kind = 6 THEN 'CUDA graph ' || graph_id
                WHEN kind = 1 THEN coalesce(gpu_names.text, '(unknown kernel)')
                ELSE concat_ws(' ', CASE kind WHEN 2 THEN 'copy' ELSE 'fill' END, sources.text,
                               CASE WHEN kind = 2 THEN 'to' END, destinations.text) END AS name,
           CASE WHEN bool_and(is_foreign_graph) THEN count(DISTINCT correlation_id) ELSE count(*) END
               AS calls,
           sum(duration_ns)::BIGINT AS gpu_ns,
           CASE WHEN bool_and(is_foreign_graph) THEN any_value(graph_id) ELSE -1 END::BIGINT AS foreign_graph,
           count(*) AS records, count(*) FILTER (launch_ns IS NULL) AS unlaunched
    FROM attributed LEFT JOIN gpu_names ON gpu_names.name_id = attributed.name
    LEFT JOIN memory_kinds AS sources ON sources.code = source_kind
    LEFT JOIN memory_kinds AS destinations ON destinations.code = destination_kind
    WHERE attributed.kind IN (1, 2, 3, 6)
    GROUP BY 1, 2, 3 ORDER BY node, gpu_ns DESC, name
"""

# What layers took on the GPU, each less the layers inside it on its stream: those are counted on their own.
# An enclosing layer that had not ended has no record.
_LAYER_TIMES = """
    SELECT coalesce(node, $root) AS node,
           sum(greatest(duration_ns - coalesce(inside.gpu_ns, 0), 0))::BIGINT AS gpu_ns
    FROM attributed
    LEFT JOIN (SELECT detail AS id, sum(duration_ns) AS gpu_ns FROM attributed WHERE kind = 5 GROUP BY 1)
        AS inside ON inside.id = attributed.correlation_id
    WHERE kind = 5
    GROUP BY 1 ORDER BY node
"""


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
        self._connection.execute(_CAPTURED)
        self._view("attributed", self._attribute(key))

    def load_imported(self, key: tuple[int, int]) -> None:
        """Make the view `raw_records` and the links of one process of an imported run ready to be asked."""
        self._connection.execute(_IMPORTED_RECORDS)
        self._view("links", self._link_parts.get(key, []), _no_links())
        self._connection.execute(_IMPORTED)
        self._is_imported = True

    def rows(self, table: str) -> Iterator[duckdb.DuckDBPyRelation]:
        """Yield the rows of `table` of the process that was loaded last, in batches in the order of time."""
        for times in self._times(table):
            query = _between(_TABLES[table], *times)
            yield self._connection.sql(query.replace("$first", str(self._kernels)))
            if table == "kernels":
                self._kernels += self._count(table, *times)

    def _attribute(self, key: tuple[int, int]) -> list[Path]:
        """Join records with launches; returns the files."""
        parts = []
        for number, (low, high) in enumerate(self._launches()):
            part = self._scratch / f"attributed-{key[0]}-{key[1]}-{number}.parquet"
            query = _ATTRIBUTED.replace("$low", str(low)).replace("$high", str(high))
            self._connection.sql(query).write_parquet(str(part), compression="zstd")
            parts.append(part)
        return parts

    def _launches(self) -> Iterator[tuple[int, int]]:
        """Yield ranges that cover all correlation ids, each with as many launches as can be joined."""
        count, least, greatest = self._connection.execute(_LAUNCHES).fetchall()[0]
        ranges = max(1, -(-count // JOINED_LAUNCHES))
        inner = [least + (greatest - least) * place // ranges for place in range(1, ranges)]
        for low, end in itertools.pairwise([0, *inner, UNKNOWN + 1]):
            yield low, end - 1

    def _times(self, table: str) -> Iterator[tuple[int, int]]:
        """Yield ranges that cover all times, each with about as many rows of `table` as can be sorted."""
        ranges = 1 if self._is_imported else -(-self._count(table, *_EVER) // SORTED_ROWS)
        inner: set[int] = set()
        if ranges > 1:
            fractions = [place / ranges for place in range(1, ranges)]
            query = _QUANTILES.replace("$kinds", _KINDS[table])
            inner = set(
                self._connection.execute(query.replace("$fractions", str(fractions))).fetchall()[0][0]
            )
        return itertools.pairwise([_EVER[0], *sorted(inner), _EVER[1]])

    def _count(self, table: str, begin: int, end: int) -> int:
        query = _between(_COUNT.replace("$kinds", _KINDS[table]), begin, end)
        return int(self._connection.execute(query).fetchall()[0][0])

    def leaves(self, root_node: int) -> Columns:
        """Return what hangs below the call tree's nodes: node, kind, name, calls, gpu_ns.

        Also foreign_graph (-1 for none), records and unlaunched, for notes. What no recorded thread launched
        hangs below `root_node`, its process.
        """
        query = _LEAVES.replace("$root", str(root_node))
        found: Columns = self._connection.execute(query).fetchnumpy()
        return found

    def layer_times(self, root_node: int) -> Columns:
        """Return what layers took on the GPU outside of those inside them: node, gpu_ns."""
        query = _LAYER_TIMES.replace("$root", str(root_node))
        found: Columns = self._connection.execute(query).fetchnumpy()
        return found

    def prepare(self) -> None:
        """Bound the memory and make what the queries need; done once."""
        if self._is_ready:
            return
        self._scratch.mkdir(exist_ok=True)
        self._connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        self._connection.execute("SET temp_directory = $folder", {"folder": str(self._scratch)})
        self._connection.execute(_SETTING)
        self._is_ready = True

    def _write(self, columns: Columns, part: Path) -> None:
        with registered(self._connection, "fresh_gpu", columns):
            self._connection.sql("FROM fresh_gpu").write_parquet(str(part), compression="zstd")

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
