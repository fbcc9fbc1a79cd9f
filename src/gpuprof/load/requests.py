# SPDX-License-Identifier: Apache-2.0
"""The rows of requests: when each was planned, sent and completed, and how it ended.

`_native.RequestLog` has the same layout (csrc/load/request_log.hpp).
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.run.database import connect

Rows = npt.NDArray[np.void]
Nanoseconds = npt.NDArray[np.int64]

# Times are of the monotonic clock in nanoseconds; 0 is a moment that has not come. `units` are samples,
# tokens, or the batch size, as the target counts.
REQUEST = np.dtype(
    [
        ("planned_ns", np.int64),
        ("sent_ns", np.int64),
        ("first_ns", np.int64),
        ("end_ns", np.int64),
        ("status", np.int32),
        ("units", np.uint32),
    ]
)


class RequestStatus(IntEnum):
    """How a request ended. The first four are known to the native core."""

    PENDING = 0
    OK = 1
    TIMEOUT = 2  # no response until the deadline
    NOT_SENT = 3  # still queued at the deadline
    FAILED = 4  # the target raised
    REFUSED = 5  # no connection
    RESET = 6  # the connection was closed before the response
    HTTP_ERROR = 7  # a status code that is neither success nor an error: redirects are not followed
    INCOMPLETE = 8  # a response that is cut off
    INVALID = 9  # a response that cannot be read
    NO_FILE_DESCRIPTORS = 10
    NO_PORTS = 11
    UNREACHABLE = 12
    OVERLOADED = 13  # 429, RESOURCE_EXHAUSTED
    CLIENT_ERROR = 14  # other 4xx
    SERVER_ERROR = 15  # 5xx
    STREAM_WITHOUT_DONE = 16
    HALF_EVENT = 17
    NO_TOKENS = 18  # a stream of no events, or a count of no tokens
    EMPTY_CHUNKS = 19  # a stream of events without text
    STREAM_ERROR = 20  # the server reported an error within the stream
    NOT_EVENT_STREAM = 21  # a body of another format


def rows_of(log: _native.RequestLog) -> Rows:
    """Return the rows of a log, not a copy of them."""
    rows: Rows = np.frombuffer(cast("memoryview", log), REQUEST)
    return rows


def latency_ns(rows: Rows) -> Nanoseconds:
    """Return the time from the planned arrival to the end. Of an unfinished request it is a lower bound."""
    found: Nanoseconds = rows["end_ns"] - rows["planned_ns"]
    return found


def service_ns(rows: Rows) -> Nanoseconds:
    """Return the time from sending to the end; -1 for what was never sent."""
    return np.where(rows["sent_ns"] > 0, rows["end_ns"] - rows["sent_ns"], -1)


def lateness_ns(rows: Rows) -> Nanoseconds:
    """Return the time from the planned arrival to sending; -1 for what was never sent."""
    return np.where(rows["sent_ns"] > 0, rows["sent_ns"] - rows["planned_ns"], -1)


def first_ns(rows: Rows) -> Nanoseconds:
    """Return the time from the planned arrival to the first part of the response; -1 without one."""
    return np.where(rows["first_ns"] > 0, rows["first_ns"] - rows["planned_ns"], -1)


def is_ok(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which requests succeeded."""
    found: npt.NDArray[np.bool_] = rows["status"] == RequestStatus.OK
    return found


def write_rows(rows: npt.NDArray[Any], path: Path) -> None:
    """Write the rows of a structured array as Parquet. Raises RunError where the file cannot be written."""
    import duckdb

    columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
    try:
        with connect() as connection:
            # Version 2 has encodings of differences, which halve times.
            connection.execute(
                "COPY (SELECT * FROM columns) TO ? (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION V2)",
                [str(path)],
            )
    except duckdb.Error as error:
        raise RunError(
            "cannot_write",
            f"{path}: cannot be written ({_first_line(error)})",
            hint="free disk space, or use another --out",
        ) from error
    del columns


def _first_line(error: Exception) -> str:
    """Return what happened; the SQL is below it."""
    return str(error).partition("\n")[0]


def read_requests(path: Path) -> Rows:
    """Read requests. Raises RunError for a file that is missing or has other columns."""
    return read_rows(path, REQUEST)


def read_rows(path: Path, kind: np.dtype[np.void]) -> Rows:
    """Read the rows of a structured array. Raises RunError for a file without its columns."""
    import duckdb

    if not path.is_file():
        raise RunError(
            "cannot_read", f"{path} is missing", hint="copy the whole folder, or run the load again"
        )
    try:
        with connect() as connection:
            columns = connection.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchnumpy()
    except duckdb.Error as error:
        raise RunError(
            "cannot_read",
            f"{path}: cannot be read as requests ({_first_line(error)})",
            hint="the file is damaged: copy the folder again, or run the load again",
        ) from error
    names = kind.names or ()
    for name in names:
        if name not in columns or np.ma.is_masked(columns[name]) or columns[name].dtype != kind[name]:
            raise RunError("damaged", f"{path}: column {name} has another type", hint="write it again")
    rows = np.zeros(len(columns[names[0]]), kind)
    for name in names:
        rows[name] = columns[name]
    return rows
