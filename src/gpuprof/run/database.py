# SPDX-License-Identifier: Apache-2.0
"""Connections to DuckDB, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a new connection that writes nothing to the program's standard output.

    `threads` is how many a query may use, the caller's included; by default as many as there are processors.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={} if threads is None else {"threads": threads})
    # Drawn on standard output during queries of more than two seconds, in the midst of --json.
    connection.execute("SET enable_progress_bar = false")
    return connection
