# SPDX-License-Identifier: Apache-2.0
"""Small Parquet files: DuckDB reads them as it reads its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import hypothesis
import hypothesis.strategies as some
import pytest

from gpuprof.run.format import TABLES
from gpuprof.run.parquet import write_rows

_INTEGERS = {"INTEGER": (-(1 << 31), 31), "BIGINT": (-(1 << 63), 63), "UINTEGER": (0, 32), "UBIGINT": (0, 64)}
_VALUES: dict[str, some.SearchStrategy[Any]] = {
    **{name: some.integers(least, (1 << bits) - 1) for name, (least, bits) in _INTEGERS.items()},
    "DOUBLE": some.floats(allow_nan=False),
    "BOOLEAN": some.booleans(),
    "VARCHAR": some.text(some.characters(exclude_categories=["Cs"])),
}
_TYPES = {
    **{name.lower(): name for name in _VALUES},
    **{f"many_{name.lower()}": f"{name}[]" for name in _VALUES},
}
_ROWS = some.lists(
    some.tuples(
        *(some.none() | values for values in _VALUES.values()),
        *(some.none() | some.lists(some.none() | values) for values in _VALUES.values()),
    )
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet") / "rows.parquet"


@hypothesis.given(_ROWS)
def test_duckdb_reads_what_was_written(path: Path, rows: list[tuple[Any, ...]]) -> None:
    write_rows(path, _TYPES, rows)
    read = duckdb.read_parquet(str(path))
    assert dict(zip(read.columns, map(str, read.types), strict=True)) == _TYPES
    assert read.fetchall() == rows


def test_a_repetitive_column_takes_little_room(path: Path) -> None:
    rows = [("the same text in each of many rows", number) for number in range(10_000)]
    write_rows(path, {"text": "VARCHAR", "number": "BIGINT"}, rows)
    assert duckdb.read_parquet(str(path)).fetchall() == rows
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize("table", sorted(TABLES))
def test_an_empty_table_has_the_schema_that_duckdb_writes(path: Path, table: str) -> None:
    write_rows(path, TABLES[table], ())
    theirs = path.with_name("theirs.parquet")
    columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in TABLES[table].items())
    duckdb.sql(f"SELECT {columns} WHERE false").write_parquet(str(theirs))
    ours, expected = (
        duckdb.sql(
            "SELECT name, type, repetition_type, num_children, converted_type FROM parquet_schema($1)",
            params=[str(each)],
        ).fetchall()[1:]
        for each in (path, theirs)
    )
    assert ours == expected
    assert duckdb.read_parquet(str(path)).fetchall() == []


def test_texts_that_are_no_unicode_are_written_escaped(path: Path) -> None:
    write_rows(path, {"text": "VARCHAR"}, [("a\udcff",)])
    assert duckdb.read_parquet(str(path)).fetchall() == [("a\\udcff",)]
