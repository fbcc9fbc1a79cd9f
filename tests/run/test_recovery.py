# SPDX-License-Identifier: Apache-2.0
"""A program that is killed loses no event that it had recorded, and a run is opened by one at a time."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import check_refusal

import gpuprof
from gpuprof.run.format import TABLES

QUIET = {"layers": False, "operators": False}

# Each thread counts in a shared file what it has written. One that has reached the limit kills the process,
# once the others have written something too.
KILLED = """
import mmap, os, signal, sys, threading, gpuprof
limit, threads = int(sys.argv[1]), int(sys.argv[2])
with open("counts", "r+b") as file:
    counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
begin = threading.Barrier(threads)
sys.setswitchinterval(1e-4)
def work(number):
    begin.wait()
    outer, inner = gpuprof.span(f"outer {number}"), gpuprof.span("inner")
    while True:
        with outer:
            with inner: pass
        counts[number] += 1
        if counts[number] >= limit and min(counts) >= limit // 4:
            os.kill(os.getpid(), signal.SIGKILL)
gpuprof.profile(out="r.gpuprof", layers=False, operators=False).__enter__()
for number in range(threads):
    threading.Thread(target=work, args=(number,)).start()
"""


def kill_in_the_middle(folder: Path, run_python: Any, limit: int, threads: int) -> list[int]:
    """Return what each thread had counted when the process was killed."""
    counts = folder / "counts"
    counts.write_bytes(bytes(8 * threads))
    assert run_python("-c", KILLED, limit, threads).returncode == -9
    return list(memoryview(counts.read_bytes()).cast("Q"))


@pytest.mark.parametrize(("limit", "threads"), [(100_000, 8), (2_047, 8), (2_046, 1), (1, 4)])
def test_not_one_counted_event_is_missing(tmp_path: Path, run_python: Any, limit: int, threads: int) -> None:
    counts = kill_in_the_middle(tmp_path, run_python, limit, threads)
    assert max(counts) >= limit
    assert min(counts) >= limit // 4  # so 8 threads of 100,000 recorded over a million events
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert run.meta["complete"] is False
    assert run.meta["totals"]["dropped_events"] == run.meta["totals"]["damaged_events"] == 0
    rows = run.sql("""
        SELECT coalesce(parent.name, span.name), count(*), count(parent.name), count(DISTINCT span.thread_id)
        FROM spans span LEFT JOIN spans parent ON span.parent_id = parent.span_id GROUP BY 1
    """).fetchall()
    found = {name: (total, nested, ids) for name, total, nested, ids in rows}
    for number, counted in enumerate(counts):
        total, nested, ids = found.get(f"outer {number}", (0, 0, 1))
        # One pair of spans may have been begun or even ended, but not counted yet.
        assert counted <= nested <= counted + 1
        assert 2 * counted <= total <= 2 * counted + 2
        assert ids == 1
    assert run.sql("SELECT count(*) FROM spans WHERE name = '(lost name)'").fetchall() == [(0,)]


# --- a run that is still being recorded ----------------------------------------------------------

WAITING = """
import gpuprof, os, sys
with gpuprof.profile(out="r.gpuprof", layers=False, operators=False):
    with gpuprof.span("before"): pass
    print("ready", flush=True)
    sys.stdin.read()
    with gpuprof.span("after"): pass
"""


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that records into r.gpuprof until its standard input is closed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(gpuprof.__file__).parents[1])}
    command = [sys.executable, "-c", WAITING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def check_busy(error: gpuprof.RunError, path: Path) -> None:
    assert len(str(error).splitlines()) == 1
    assert str(path) in str(error)
    assert error.code == "still_recording"
    assert f"gpuprof top {path}" in str(error.hint)


def test_a_run_of_another_process_that_still_records(
    tmp_path: Path, recorder: subprocess.Popen[str], run_python: Any, recorded: Any
) -> None:
    path = tmp_path / "r.gpuprof"
    for _ in range(2):
        with pytest.raises(gpuprof.RunError) as caught:
            gpuprof.open(path)
        check_busy(caught.value, path)
    check_refusal(run_python("-m", "gpuprof", "summary", "r.gpuprof"), "r.gpuprof")
    recorder.communicate()
    assert recorder.returncode == 0
    assert recorded(gpuprof.open(path)).names() == ["before", "after"]
    assert gpuprof.open(path).meta["complete"] is True


def test_a_run_of_this_process_that_still_records(tmp_path: Path, recorded: Any, run_python: Any) -> None:
    path = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=path, **QUIET) as recording:
        with gpuprof.span("before"):
            pass
        with pytest.raises(gpuprof.RunError) as caught:
            gpuprof.open(path)
        # And having been asked, the run is still locked against others.
        other = run_python("-m", "gpuprof", "summary", path)
        with gpuprof.span("after"):
            pass
    check_busy(caught.value, path)
    assert (other.returncode, other.stdout) == (2, "")
    assert recorded(recording.run).names() == ["before", "after"]


def test_a_run_that_a_forked_child_opens_is_refused(tmp_path: Path, recorded: Any) -> None:
    path = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=path, **QUIET) as recording:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                gpuprof.open(path)
            except gpuprof.RunError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with gpuprof.span("after"):
            pass
    assert recorded(recording.run).names() == ["after"]


# --- recovering ----------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path, run_python: Any) -> Path:
    kill_in_the_middle(tmp_path, run_python, 500, 2)
    return tmp_path / "r.gpuprof"


def test_recovering_twice_gives_the_same(killed: Path, tmp_path: Path, recorded: Any) -> None:
    copied = Path(shutil.copytree(killed, tmp_path / "copied.gpuprof"))
    first = recorded(gpuprof.open(killed))
    assert {path.name for path in killed.iterdir()} == {*TABLES, "meta.json"}
    again, other = recorded(gpuprof.open(killed)), recorded(gpuprof.open(copied))
    assert (again.rows, again.run.meta) == (first.rows, first.run.meta)
    assert (other.rows, other.run.meta) == (first.rows, first.run.meta)
    assert first.totals["spans"] == len(first.rows) >= 1_000


def test_an_interrupted_recovery_is_done_again(killed: Path, tmp_path: Path, recorded: Any) -> None:
    copied = Path(shutil.copytree(killed, tmp_path / "copied.gpuprof"))
    expected = recorded(gpuprof.open(copied)).rows
    for table in ("spans", "call_tree"):
        shutil.copytree(copied / table, killed / table)
        for number, part in enumerate(sorted((killed / table).rglob("*.parquet"))):
            part.rename(part.with_name(f"part-of-an-earlier-attempt-{number}.parquet"))
    (killed / "meta.json.new").write_text("{")
    assert recorded(gpuprof.open(killed)).rows == expected


def test_a_run_on_a_read_only_medium(
    killed: Path,
    read_only: Callable[[Path], Path],
    recorded: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    view = read_only(killed)
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*")}
    first, second = recorded(gpuprof.open(view)), recorded(gpuprof.open(view))
    assert first.rows == second.rows
    assert first.run.meta == second.run.meta
    assert first.run.meta["complete"] is False
    assert "inner" in str(first.run.summary(by="span"))
    assert {path: path.stat().st_mtime_ns for path in killed.rglob("*")} == before
    del first, second
    gc.collect()
    assert list(scratch.iterdir()) == []
    monkeypatch.undo()
    assert len(recorded(gpuprof.open(killed)).rows) >= 1_000


def test_a_closed_run_on_a_read_only_medium(
    killed: Path, read_only: Callable[[Path], Path], recorded: Any
) -> None:
    expected = recorded(gpuprof.open(killed)).rows
    assert recorded(gpuprof.open(read_only(killed))).rows == expected


def test_many_threads_open_an_unclosed_run(killed: Path, recorded: Any) -> None:
    meet, counts, errors = threading.Barrier(4), [], []

    def work() -> None:
        meet.wait(120)
        try:
            counts.append(len(recorded(gpuprof.open(killed)).rows))
        except gpuprof.RunError as error:
            errors.append(error)  # another process recovers it: an error of one line

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) + len(errors) == 4
    assert counts
    expected = len(recorded(gpuprof.open(killed)).rows)
    assert expected >= 1_000
    assert set(counts) == {expected}
    for error in errors:
        check_busy(error, killed)


def test_a_killed_program_with_children_keeps_theirs_too(
    tmp_path: Path, run_python: Any, recorded: Any
) -> None:
    source = """
import gpuprof, os, signal
gpuprof.profile(out="r.gpuprof", layers=False, operators=False).__enter__()
def spans(name):
    for _ in range(1_000):
        with gpuprof.span(name): pass
spans("parent")
child = os.fork()
if child == 0:
    spans("child")
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
with gpuprof.span("open"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python("-c", source).returncode == -9
    result = recorded(gpuprof.open(tmp_path / "r.gpuprof"))
    names = result.names()
    assert [names.count(name) for name in ("parent", "child", "open")] == [1_000, 1_000, 1]
    assert result.totals["unfinished_spans"] == 1
    assert [process["closed"] for process in result.run.meta["processes"]] == [False, False]
