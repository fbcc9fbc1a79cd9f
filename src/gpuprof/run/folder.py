# SPDX-License-Identifier: Apache-2.0
"""A run that is read: its meta data and its tables, through DuckDB."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.errors import RunError
from gpuprof.record.recording_folder import RECORDING_FILE
from gpuprof.record.temporary import TemporaryFolder
from gpuprof.run.database import connect as connect_database
from gpuprof.run.format import META_FILE, TABLES, check_meta, read_json
from gpuprof.run.plain_path import PlainPath
from gpuprof.run.writer import close_run

if TYPE_CHECKING:
    import duckdb


class RunFolder:
    """The tables and meta data of one run. Opening recovers a run that was never closed.

    Raises RunError when the folder is no run, is of a newer format, or is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._scratch: TemporaryFolder | None = None
        self._data = self.path
        self.meta: dict[str, Any] = self._read_meta()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._opening = threading.Lock()
        self._plain: PlainPath | None = None

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Ask the run's tables; returns a DuckDB relation (`.df()`, `.fetchall()`, `.pl()`, ...).

        The tables present are `run.tables`; others of the format are empty. Raises duckdb.Error for a query
        that is wrong.
        """
        return self._cursor().sql(query)

    @property
    def tables(self) -> list[str]:
        """Names of the tables that this run holds."""
        return sorted(name for name in TABLES if (self._data / name).is_dir())

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection of the caller's own, since one refuses a second thread."""
        with self._opening:
            if self._connection is None:
                self._connection = self.connect()
            return self._connection.cursor()

    def _read_meta(self) -> dict[str, Any]:
        if not self.path.is_dir():
            state = "is a file, not a run folder" if self.path.exists() else "does not exist"
            raise RunError(f"{self.path} {state}: name the folder that a recording wrote (NAME.gpuprof)")
        if (self.path / META_FILE).exists():
            meta = read_json(self.path / META_FILE)
            check_meta(meta, self.path)
            return meta
        if not (self.path / RECORDING_FILE).exists():
            raise RunError(f"{self.path} is not a run: it holds neither {META_FILE} nor {RECORDING_FILE}")
        return self._recover()

    def _recover(self) -> dict[str, Any]:
        if os.access(self.path, os.W_OK):
            return close_run(self.path)
        # A run on a read-only medium is recovered beside it, for as long as it is open.
        self._scratch = TemporaryFolder("gpuprof-recovered-")
        self._data = self._scratch.path
        return close_run(self.path, into=self._data)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a new connection of the caller's own that knows all tables of the format as views.

        Those that the run lacks are empty, but for the call tree, which no reader may take for an empty one.
        Raises RunError where the spans are missing, or a table is damaged.
        """
        import duckdb

        if "spans" not in self.tables:
            raise RunError(f"{self.path} has no spans table: restore it from a copy")
        connection = connect_database()
        self._plain = self._plain or PlainPath(self._data)
        for table in self.tables:
            pattern = str(self._plain.path / table / "**" / "*.parquet")
            try:
                connection.read_parquet(pattern, hive_partitioning=True).create_view(table)
            except duckdb.Error as error:
                reason = str(error).splitlines()[0].removeprefix("Invalid Input Error: ")
                raise RunError(
                    f"the table {table} of {self.path} is damaged ({reason}): restore it from a copy"
                ) from error
        for table in TABLES.keys() - {*self.tables, "call_tree"}:
            columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in TABLES[table].items())
            connection.execute(f"CREATE VIEW {table} AS SELECT {columns} WHERE false")
        return connection
