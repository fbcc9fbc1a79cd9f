# SPDX-License-Identifier: Apache-2.0
"""Connections to DuckDB, in memory."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from gpuprof.errors import DISK_LIMIT, MEMORY_HINT, RunError, memory_ran_out

if TYPE_CHECKING:
    import duckdb

_Handle = TypeVar("_Handle", bound=object)

_NO_ROOM = os.strerror(errno.ENOSPC)
# In bytes. With less, the C library or NumPy's ends the process when DuckDB starts its threads.
_LEAST_ADDRESSES = 1280 << 20
_LEAST_DATA = 320 << 20

_handles: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def left_to_parent(handle: _Handle) -> _Handle:
    """Return `handle`, a connection or what holds one, which no forked child will ever destroy.

    A database that ends waits for its threads, which a child does not have: it would crash there, be it only
    as the child exits.
    """
    _handles[id(handle)] = handle
    return handle


def _leave_to_parent() -> None:
    import ctypes  # NumPy has it already, which DuckDB imports

    for handle in list(_handles.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    _handles.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a new connection that writes nothing to the program's standard output.

    `threads` is how many a query may use, the caller's included; by default as many as there are processors.
    """
    import duckdb

    made = duckdb.connect(":memory:", config={} if threads is None else {"threads": threads})
    connection = left_to_parent(made)
    # Drawn on standard output during queries of more than two seconds, also within the output of --json.
    connection.execute("SET enable_progress_bar = false")
    return connection


def is_out_of_room(error: duckdb.Error) -> bool:
    """Whether DuckDB failed since a disk is full."""
    return any(words in str(error) for words in (_NO_ROOM, DISK_LIMIT))


def reason_of(error: duckdb.Error) -> str:
    """Return in one line why DuckDB failed; of a full disk in the system's words alone.

    Raises MemoryError where that is why: nothing is damaged then.
    """
    if memory_ran_out(error):
        raise MemoryError(str(error)) from error
    return _NO_ROOM if is_out_of_room(error) else next(iter(str(error).splitlines()), "")


def check_memory() -> None:
    """Raise MemoryError where NumPy and DuckDB have no room, which would end the process."""
    if sys.modules.keys() >= {"numpy", "duckdb"}:
        return
    import mmap  # most commands need none of this

    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    unused = private | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        mmap.mmap(-1, _LEAST_ADDRESSES, flags=private, prot=0).close()
        mmap.mmap(-1, _LEAST_DATA, flags=unused, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()
    except OSError as error:
        raise MemoryError(error.strerror) from error


@contextlib.contextmanager
def enough_memory(what: str, hint: str = MEMORY_HINT) -> Iterator[None]:
    """Raise RunError where memory runs out in the block; `what` it was for, as in `to read r.gpuprof`."""
    try:
        yield
    except Exception as error:
        if not memory_ran_out(error):
            raise
        raise RunError("out_of_memory", f"there is too little memory {what}", hint=hint) from None


@contextlib.contextmanager
def registered(connection: duckdb.DuckDBPyConnection, name: str, columns: dict[str, Any]) -> Iterator[None]:
    """Have `connection` know these columns as the view `name`."""
    connection.register(name, columns)
    try:
        yield
    finally:
        connection.unregister(name)
