# SPDX-License-Identifier: Apache-2.0
"""The SQL that turns GPU records and links into tables.

In `links`, kind 0 is a launch, 1 a node of a CUDA graph under capture, 2 a copy of a node, whose `span_id`
is the original's id. In `records`, kind is one of those in gpu_records.py: 1 kernel, 2 copy, 3 fill,
4 synchronization, 5 layer between two CUDA events, whose `detail` is the id of the timed layer around it on
its stream, 6 replay of a graph as a whole, 7 record of a CUDA event on a stream, which has no times of its
own. Ones in every bit mean that the driver does not tell. No graph and no node has the id 0,
which is in the records of what no graph launched.
"""

from __future__ import annotations

from gpuprof.run.gpu_records import NO_TIME

SETTING = """
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
# Traces of other tools say nothing of events.
_WITH_NO_EVENTS = "FROM (SELECT *, 0::UINTEGER AS event_id, 0::UBIGINT AS event_sync_id FROM raw_records)"
IMPORTED_RECORDS = (
    f"CREATE OR REPLACE VIEW records AS {_RECORDS.replace('FROM raw_records', _WITH_NO_EVENTS)}"
)

# Instantiating a graph copies its nodes, and a copy may be copied again. A copy that was noted as a node
# of its own as well belongs where its original was captured.
CAPTURED = """
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
ATTRIBUTED = """
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
IMPORTED = """
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

KINDS = {"kernels": "1, 6", "transfers": "2, 3", "synchronizations": "4, 7"}
LAUNCHES = "SELECT count(*), min(id), max(id) FROM links WHERE kind = 0"
COUNT = """
    SELECT count(*) FROM attributed WHERE kind IN ($kinds) AND start_ns >= $begin AND start_ns < $end
"""
QUANTILES = "SELECT approx_quantile(start_ns, $shares) FROM attributed WHERE kind IN ($kinds)"

# Of what began from $begin to before $end. $ever is the least that $begin can be, which is for event records
# whose call was not recorded.
TABLES = {
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
LEAVES = """
    SELECT coalesce(node, $root) AS node, CASE WHEN kind IN (1, 6) THEN 'kernel' ELSE 'transfer' END AS kind,
           CASE WHEN is_foreign_graph OR kind = 6 THEN 'CUDA graph ' || graph_id
                WHEN kind = 1 THEN coalesce(gpu_names.text, '(unknown kernel)')
                ELSE concat_ws(' ', CASE kind WHEN 2 THEN 'copy' ELSE 'fill' END, sources.text,
                               CASE WHEN kind = 2 THEN 'to' END, destinations.text) END AS name,
           CASE WHEN bool_and(is_foreign_graph) THEN count(DISTINCT correlation_id) ELSE count(*) END
               AS calls,
           sum(duration_ns)::BIGINT AS gpu_ns, bool_and(is_foreign_graph) AS is_foreign_graph,
           count(*) AS records, count(*) FILTER (launch_ns IS NULL) AS unlaunched
    FROM attributed LEFT JOIN gpu_names ON gpu_names.name_id = attributed.name
    LEFT JOIN memory_kinds AS sources ON sources.code = source_kind
    LEFT JOIN memory_kinds AS destinations ON destinations.code = destination_kind
    WHERE attributed.kind IN (1, 2, 3, 6)
    GROUP BY 1, 2, 3 ORDER BY node, gpu_ns DESC, name
"""

# What layers took on the GPU, each less the layers inside it on its stream: those are counted on their own.
# An enclosing layer that had not ended has no record.
LAYER_TIMES = """
    SELECT coalesce(node, $root) AS node,
           sum(greatest(duration_ns - coalesce(inside.gpu_ns, 0), 0))::BIGINT AS gpu_ns
    FROM attributed
    LEFT JOIN (SELECT detail AS id, sum(duration_ns) AS gpu_ns FROM attributed WHERE kind = 5 GROUP BY 1)
        AS inside ON inside.id = attributed.correlation_id
    WHERE kind = 5
    GROUP BY 1 ORDER BY node
"""
