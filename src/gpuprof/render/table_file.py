# SPDX-License-Identifier: Apache-2.0
"""All slices of a run as one Parquet file."""

from __future__ import annotations

from pathlib import Path

from gpuprof.run.folder import RunFolder

# Work of the GPU has no id of its own kind; its parent is the span that launched it.
_ROWS = """
    SELECT span_id, parent_id, process_id, thread_id, NULL::UINTEGER AS device,
           NULL::UINTEGER AS stream, kind, name, start_ns, duration_ns, depth, NULL::UBIGINT AS bytes
    FROM spans
    UNION ALL BY NAME
    SELECT span_id AS parent_id, process_id, device, stream, 'kernel' AS kind, name, start_ns, duration_ns
    FROM kernels
    UNION ALL BY NAME
    SELECT span_id AS parent_id, process_id, device, stream, 'transfer' AS kind,
           concat_ws(' ', kind, src, CASE WHEN kind = 'copy' AND dst IS NOT NULL THEN 'to' END, dst) AS name,
           start_ns, duration_ns, bytes
    FROM transfers
"""


def write_parquet(run: RunFolder, path: Path) -> None:
    """Write spans, kernels and transfers as rows of one table. Raises duckdb.Error and OSError."""
    connection = run.connect()
    try:
        connection.execute("SET preserve_insertion_order = false")
        target = str(path).replace("'", "''")
        connection.execute(f"COPY ({_ROWS}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    finally:
        connection.close()
