# SPDX-License-Identifier: Apache-2.0
"""Connections to DuckDB, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def connect() -> duckdb.DuckDBPyConnection:
    """Return a new connection that writes nothing to the program's standard output."""
    import duckdb

    connection = duckdb.connect(":memory:")
    # Drawn on standard output during queries of more than two seconds, in the midst of --json.
    connection.execute("SET enable_progress_bar = false")
    return connection
