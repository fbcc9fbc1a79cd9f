# SPDX-License-Identifier: Apache-2.0
"""A run that is read: its meta data and its tables, through DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.errors import MEMORY_HINT, RunError, memory_ran_out
from gpuprof.record.fork_safe_lock import ForkSafeLock
from gpuprof.record.recording_folder import RECORDING_FILE
from gpuprof.run.database import check_memory, enough_memory, is_out_of_room, left_to_parent, reason_of
from gpuprof.run.database import connect as connect_database
from gpuprof.run.facts import current_format
from gpuprof.run.format import (
    META_FILE,
    NO_REQUEST_SPANS_VIEW,
    REQUEST_SPANS_VIEW,
    TABLES,
    check_meta,
    read_json,
)
from gpuprof.run.parts import problem_of_parts
from gpuprof.run.temporary import PlainPath, TemporaryFolder
from gpuprof.run.writer import close_run

if TYPE_CHECKING:
    import duckdb

Value = int | str | Sequence[int] | Sequence[str]

# Tables that got columns within a format version. Of other tables, readers check which columns a run has.
_GROWN = ("stacks", "imports", "kernels", "transfers", "synchronizations")


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
        self._connected_process = 0
        self._opening = ForkSafeLock()
        self._plain: PlainPath | None = None
        self._has_all_spans = False
        self._checked: set[str] = set()  # tables whose parts were

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Ask the run's tables; returns a DuckDB relation (`.df()`, `.fetchall()`, `.pl()`, ...).

        The tables present are `run.tables`; others of the format are empty. Raises duckdb.Error for a query
        that is wrong.
        """
        found = self._cursor().sql(query)
        return found if found is None else left_to_parent(found)  # a statement such as CREATE has no rows

    def columns(self, query: str, **values: Value) -> dict[str, Any]:
        """Return the columns of a query, by name; each `{name}` of it is replaced by a value, quoted.

        Raises RunError where the tables cannot be read.
        """
        with self.reading():
            return dict(self.sql(filled(query, **values)).fetchnumpy())

    @property
    def tables(self) -> list[str]:
        """Names of the tables that this run holds."""
        return sorted(name for name in TABLES if (self._data / name).is_dir())

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection of the caller's own, since one refuses a second thread."""
        with self._opening:
            # A forked child has none of the threads that its parent's connection counts on.
            if self._connection is None or self._connected_process != os.getpid():
                self._connection, self._connected_process = self.connect(), os.getpid()
            return left_to_parent(self._connection.cursor())

    def _read_meta(self) -> dict[str, Any]:
        if not self.path.is_dir():
            state = "is a file, not a run folder" if self.path.exists() else "does not exist"
            raise RunError(
                "no_such_run",
                f"{self.path} {state}",
                hint="specify the folder that a recording writes (NAME.gpuprof)",
            )
        if (self.path / META_FILE).exists():
            meta = read_json(self.path / META_FILE)
            check_meta(meta, self.path)
            self._check_tables(meta)
            return current_format(meta, self.path)
        if (self.path / RECORDING_FILE).exists():
            return self._recover()
        if (self.path / "requests.parquet").exists():
            raise RunError(
                "result_of_load",
                f"{self.path} is a result of gpuprof load, not a run",
                hint="read it with gpuprof compare, gpuprof gate or gpuprof capacity",
            )
        if (self.path / "windows.json").exists():
            raise RunError(
                "folder_of_windows",
                f"{self.path} is a folder of windows, not a run",
                hint="specify one of the runs in it, which gpuprof summary lists",
            )
        raise RunError(
            "not_a_run",
            f"{self.path} is not a run: it holds neither {META_FILE} nor {RECORDING_FILE}",
            hint="specify the folder that a recording writes (NAME.gpuprof)",
        )

    def _check_tables(self, meta: dict[str, Any]) -> None:
        """Raise RunError where a table that was written is gone: it would be taken for an empty one."""
        for table in sorted({part.partition("/")[0] for part in meta.get("parts", {})}):
            if not (self.path / table).exists():
                raise RunError(
                    "damaged", f"the table {table} of {self.path} is missing", hint="restore it from a copy"
                )

    def _recover(self) -> dict[str, Any]:
        if os.access(self.path, os.W_OK):
            return close_run(self.path)
        # A run on a read-only medium is recovered elsewhere, for as long as it is open.
        self._scratch = TemporaryFolder("gpuprof-recovered-")
        self._data = self._scratch.path
        return close_run(self.path, into=self._data)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a new connection of the caller's own that knows all tables of the format as views.

        Those that the run lacks are empty, but for the call tree, which no reader may take for an empty one.
        Raises RunError where spans are missing, a table is damaged, or memory runs out.
        """
        with self._enough_memory():
            check_memory()
            return self._connect()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        if "spans" not in self.tables:
            raise RunError("no_spans", f"{self.path} has no spans table", hint="restore it from a copy")
        connection = connect_database()
        self._plain = self._plain or PlainPath(self._data)
        for table in self.tables:
            self._check_parts(table)
            pattern = str(self._plain.path / table / "**" / "*.parquet")
            try:
                _with_later_columns(
                    connection.read_parquet(pattern, hive_partitioning=True), table
                ).create_view(table)
            except duckdb.Error as error:
                reason = reason_of(error).removeprefix("Invalid Input Error: ")
                raise self._damaged(table, reason) from None
        for table in TABLES.keys() - {*self.tables, "call_tree"}:
            columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in TABLES[table].items())
            connection.execute(f"CREATE VIEW {table} AS SELECT {columns} WHERE false")
        try:
            connection.execute(REQUEST_SPANS_VIEW)
        except duckdb.BinderException:  # the spans have other columns, so none belongs to a request
            connection.execute(NO_REQUEST_SPANS_VIEW)
        if not self._has_all_spans:
            self._check_spans(connection)
            self._has_all_spans = True
        return connection

    def _check_parts(self, table: str) -> None:
        """Raise RunError where a part is missing, or is not as it was written."""
        if table in self._checked:
            return
        if problem := problem_of_parts(self._data, table, self.meta.get("parts") or {}):
            raise self._damaged(table, problem)
        self._checked.add(table)

    def _check_spans(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Raise RunError where parts of the spans are missing: what is left looks like a smaller run."""
        import duckdb

        told = self.meta.get("totals", {}).get("spans")
        if told is None:
            return
        try:
            # The footers of the parts contain it; no row is read.
            ((held,),) = connection.execute("SELECT count(*) FROM spans").fetchall()
        except duckdb.Error as error:
            raise self._damaged("spans", reason_of(error)) from None
        if held < told:
            raise RunError(
                "parts_missing",
                f"the table spans of {self.path} holds {held:,} of {told:,} rows: parts are missing",
                hint="restore it from a copy",
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise RunError with the run, the table and a hint where a query of the block fails."""
        with self._enough_memory():
            import duckdb

            try:
                yield
            except duckdb.Error as error:
                unknown = RunError(
                    "damaged",
                    f"the tables of {self.path} cannot be read ({reason_of(error)})",
                    hint=_hint_for(error),
                )
                raise self._damage() or unknown from None

    def _enough_memory(self) -> AbstractContextManager[None]:
        return enough_memory(f"to read {self.path}")

    def failure_of(self, error: duckdb.Error) -> tuple[str, str]:
        """Return in one line why a query of this run's tables failed, and a hint.

        DuckDB names no table of which it cannot read a page, so all rows of all tables are read for it.
        """
        if memory_ran_out(error):
            return "there is too little memory", MEMORY_HINT
        damage = None if is_out_of_room(error) else self._damage()
        return (reason_of(error), _hint_for(error)) if damage is None else (damage.message, damage.hint)

    def _damage(self) -> RunError | None:
        """Return what is wrong with the first table whose rows cannot all be read."""
        import duckdb

        try:
            connection = self.connect()
        except RunError as refusal:
            return refusal
        with connection:
            for table in self.tables:
                try:
                    connection.execute(f"SELECT bit_xor(hash(COLUMNS(*))) FROM {table}").fetchall()  # noqa: S608
                except duckdb.Error as error:
                    return self._damaged(table, reason_of(error))
        return None

    def _damaged(self, table: str, reason: str) -> RunError:
        return RunError(
            "damaged",
            f"the table {table} of {self.path} is damaged ({reason})",
            hint="restore it from a copy",
        )


def filled(query: str, **values: Value) -> str:
    """Return a query in which each `{name}` is replaced by a value, quoted."""
    return query.format(**{name: _literal(value) for name, value in values.items()})


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int):
        return str(value)
    return "[" + ", ".join(_literal(each) for each in value) + "]"


def _hint_for(error: duckdb.Error) -> str:
    import duckdb

    # Where what is sorted on the disk has no room: of files, of memory and of transactions.
    is_full = isinstance(error, duckdb.OperationalError)
    return "free disk space" if is_full else "restore the run from a copy"


def _with_later_columns(rows: duckdb.DuckDBPyRelation, table: str) -> duckdb.DuckDBPyRelation:
    """Return rows of a table with the columns that its version lacks, as unknown."""
    if table not in _GROWN:
        return rows
    later = [f"NULL::{kind} AS {name}" for name, kind in TABLES[table].items() if name not in rows.columns]
    return rows.project(", ".join(["*", *later])) if later else rows
