# SPDX-License-Identifier: Apache-2.0
"""Connections to DuckDB, in memory."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_NO_ROOM = os.strerror(errno.ENOSPC)


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a new connection that writes nothing to the program's standard output.

    `threads` is how many a query may use, the caller's included; by default as many as there are processors.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={} if threads is None else {"threads": threads})
    # Drawn on standard output during queries of more than two seconds, in the midst of --json.
    connection.execute("SET enable_progress_bar = false")
    return connection


def is_out_of_room(error: duckdb.Error) -> bool:
    """Whether DuckDB failed since a disk is full."""
    return _NO_ROOM in str(error)


def reason_of(error: duckdb.Error) -> str:
    """Return in one line why DuckDB failed; of a full disk in the system's words alone."""
    return _NO_ROOM if is_out_of_room(error) else next(iter(str(error).splitlines()), "")
