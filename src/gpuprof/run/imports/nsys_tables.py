# SPDX-License-Identifier: Apache-2.0
"""The SQLite export of Nsight Systems, table by table, with whatever tables and columns a version has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

BATCH_ROWS = 65_536
# A column as it is written: its name in the table, what stands for it where it is missing or NULL.
Wanted = dict[str, tuple[str, int]]


class NsysDatabase:
    """An export that is only read. Raises sqlite3.Error where it is damaged."""

    def __init__(self, path: Path) -> None:
        # Immutable: no journal is looked for, and a read-only folder will do.
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
        self._texts: dict[int, str | None] = {}
        try:
            rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            # A name with a quote in it is none of Nsight's, and none that a query here could hold.
            self.tables = {name for (name,) in rows if '"' not in name}
            self._has_texts = {"id", "value"} <= self.columns("StringIds")
        except sqlite3.Error:
            self.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def columns(self, table: str) -> set[str]:
        """Return the names of a table's columns; none where there is no such table."""
        if table not in self.tables:
            return set()
        return {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def rows(
        self, table: str, wanted: Wanted, condition: str = "", text: str | None = None
    ) -> Iterator[tuple[Columns, list[Any]]]:
        """Yield the wanted columns as integers, in batches, and the column `text` as it is."""
        there = self.columns(table)
        if not there:
            return
        shown = [
            f'coalesce("{column}", {default})' if column in there else str(default)
            for column, default in wanted.values()
        ]
        shown.append(f'"{text}"' if text in there else "NULL")
        query = f'SELECT {", ".join(shown)} FROM "{table}" {condition}'  # noqa: S608 - names of this file
        cursor = self._connection.execute(query)
        while batch := cursor.fetchmany(BATCH_ROWS):
            *integers, texts = zip(*batch, strict=True)
            yield dict(zip(wanted, map(_integers, integers), strict=True)), list(texts)

    def values(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small query."""
        return self._connection.execute(query).fetchall()

    def count(self, table: str) -> int:
        """Return the number of a table's rows."""
        (count,) = self._connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608
        return int(count)

    def text(self, text_id: int) -> str | None:
        """Return the string of an id, None where the export lacks it."""
        if text_id not in self._texts:
            found = (
                self._connection.execute("SELECT value FROM StringIds WHERE id = ?", (text_id,)).fetchone()
                if self._has_texts
                else None
            )
            self._texts[text_id] = None if found is None else str(found[0])
        return self._texts[text_id]


def _integers(values: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    try:
        return np.array(values, dtype=np.int64)
    except (OverflowError, ValueError, TypeError):
        # SQLite holds what it was given, whatever the column is said to be.
        return np.array([value if isinstance(value, int) else -1 for value in values], dtype=np.int64)
