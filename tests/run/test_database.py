# SPDX-License-Identifier: Apache-2.0
"""Connections to DuckDB: they leave the program's standard output alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gpuprof
from gpuprof.run.database import connect

PACKAGE = Path(gpuprof.__file__).parent


def test_a_long_query_writes_nothing_to_standard_output() -> None:
    """By default, DuckDB draws a progress bar there during queries of more than two seconds."""
    setting = connect().execute("SELECT current_setting('enable_progress_bar')").fetchone()
    assert setting == (False,)


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


def test_a_statement_without_rows(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof", layers=False, operators=False) as recording:
        pass
    recording.run.sql("CREATE TABLE mine (number INT)")
    assert recording.run.sql("SELECT 1").fetchall() == [(1,)]


FORKS = """
import gc, os, sys, gpuprof
with gpuprof.profile(out=sys.argv[1]) as recording:
    with gpuprof.span("x"):
        pass

def ask(run):
    return run.sql("SELECT count(*) FROM spans").fetchall()

class Owner:
    pass

run, lost = recording.run, Owner()
lost.itself, lost.run = lost, gpuprof.open(sys.argv[1])
assert ask(run) == ask(lost.run) == [(1,)]
relation = run.sql("FROM spans")
del lost
child = os.fork()
if child == 0:
    {in_child}
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert ask(run) == [(1,)]
assert len(relation.fetchall()) == 1
"""


@pytest.mark.parametrize(
    "in_child",
    [
        "pass",
        "gc.collect()",
        "del run, relation, recording; gc.collect()",
        "assert ask(run) == [(1,)]",
        "assert ask(gpuprof.open(sys.argv[1])) == [(1,)]",
        "grandchild = os.fork(); grandchild or sys.exit(0); assert os.waitpid(grandchild, 0)[1] == 0",
    ],
)
def test_a_forked_child_lets_go_of_runs_that_its_parent_has_open(
    run_python: Any, tmp_path: Path, in_child: str
) -> None:
    """DuckDB's threads are not in the child, where the end of a database would wait for them and crash."""
    ended = run_python("-c", FORKS.format(in_child=in_child), tmp_path / "r.gpuprof")
    assert ended.returncode == 0, ended.stderr


FORKS_MEANWHILE = """
import os, signal, sys, threading, gpuprof
from gpuprof.record import recording_folder
from gpuprof.run.folder import RunFolder

def record(path):
    with gpuprof.profile(out=path, layers=False, operators=False) as recording, gpuprof.span("x"):
        pass
    return recording.run

run = record(sys.argv[1])
connect = RunFolder.connect
inside, may_end = threading.Event(), threading.Event()

def wait():
    inside.set()
    may_end.wait()

def connect_slowly(folder):
    if not inside.is_set():
        wait()
    return connect(folder)

RunFolder.connect = connect_slowly

def open_slowly():
    run.sql("FROM spans")

def close_slowly():
    with recording_folder.exclusive(run.path):
        wait()

thread = threading.Thread(target={in_thread})
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    {in_child}
    os._exit(7)
may_end.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert run.sql("SELECT count(*) FROM spans").fetchall() == [(1,)]
"""


@pytest.mark.parametrize(
    ("in_thread", "in_child"),
    [
        ("open_slowly", 'assert run.sql("SELECT count(*) FROM spans").fetchall() == [(1,)]'),
        ("close_slowly", 'assert record(sys.argv[1] + "-2").meta["complete"]'),
    ],
)
def test_a_forked_child_takes_locks_that_another_thread_held(
    run_python: Any, tmp_path: Path, in_thread: str, in_child: str
) -> None:
    source = FORKS_MEANWHILE.format(in_thread=in_thread, in_child=in_child)
    ended = run_python("-c", source, tmp_path / "r.gpuprof")
    assert ended.returncode == 0, ended.stderr
