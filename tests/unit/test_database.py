# SPDX-License-Identifier: Apache-2.0
"""Connections to DuckDB: they leave the program's standard output alone."""

from __future__ import annotations

import re
from pathlib import Path

import gpuprof
from gpuprof.run.database import connect

PACKAGE = Path(gpuprof.__file__).parent


def test_a_long_query_writes_nothing_to_standard_output(run_python) -> None:
    """DuckDB draws a bar there on queries of more than two seconds; here it would after a millisecond."""
    program = (
        "import duckdb\n"
        "make = duckdb.connect\n"
        "def make_impatient(*arguments, **options):\n"
        "    connection = make(*arguments, **options)\n"
        "    connection.execute('SET progress_bar_time = 1')\n"
        "    return connection\n"
        "duckdb.connect = make_impatient\n"
        "from gpuprof.run.database import connect\n"
        "query = 'SELECT sum(sin(a.range)) FROM range(3000) a, range(3000) b'\n"
        "print(len(connect().execute(query).fetchall()))\n"
    )
    assert run_python("-c", program).stdout == "1\n"


def test_all_connections_are_made_in_one_place() -> None:
    makers = [
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(r"duckdb\.(connect|sql)\(", path.read_text("utf-8"))
    ]
    assert [path.relative_to(PACKAGE).as_posix() for path in makers] == ["run/database.py"]


def test_connections_share_nothing() -> None:
    first, second = connect(), connect()
    first.execute("CREATE TABLE numbers AS SELECT 1 AS value")
    assert second.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)
