# SPDX-License-Identifier: Apache-2.0
"""A recording from its first line to the run that can be asked: once, often, in forks, in many threads."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from run_codes import source_code

import gpuprof
from gpuprof.record import recording
from gpuprof.run.format import TABLES

QUIET = {"layers": False, "operators": False}


def span_once(name: str = "a") -> None:
    with gpuprof.span(name):
        pass


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have temporary folders made below one that the test can look into."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def in_a_child(body: Callable[[], object]) -> None:
    """Fork, run `body` in the child, and pass on whether it succeeded."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture(autouse=True)
def _forking_with_threads_is_what_is_tested() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


# --- beginning and ending ------------------------------------------------------------------------


def test_recordings_one_after_the_other_do_not_mix(record: Any) -> None:
    kept = gpuprof.span("kept")

    def body(number: int) -> None:
        with kept, gpuprof.span(f"name {number}"):
            span_once()

    results = [record(lambda: body(number)) for number in range(20)]  # noqa: B023 - called at once
    for number, result in enumerate(results):
        assert result.paths() == ["kept", f"kept/name {number}", f"kept/name {number}/a"]
    origins = [int(result.run.meta["origin_unix_ns"]) for result in results]
    assert origins == sorted(set(origins))


def test_starting_and_stopping_many_times_keeps_threads_apart(record: Any) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(1e-4):
            with gpuprof.span("outer"):
                span_once("inner")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        results = [record(lambda: [span_once("main") for _ in range(200)]) for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for result in results:
        assert result.names().count("main") == 200
        assert set(result.paths()) <= {"main", "outer", "outer/inner", "inner"}
        assert result.paths().count("inner") <= 2  # its outer had begun before the recording
        assert result.totals["unmatched_ends"] <= 4
        assert result.totals["dropped_events"] == result.totals["damaged_events"] == 0
        assert result.run.meta["complete"] is True


def test_a_recording_inside_a_recording_is_refused_and_the_outer_continues(
    record: Any, tmp_path: Path
) -> None:
    inner = tmp_path / "inner.gpuprof"

    def body() -> None:
        span_once("before")
        with refused(gpuprof.RecordingError, "recording_active") as caught:
            gpuprof.profile(out=inner, **QUIET).__enter__()
        assert len(str(caught.value).splitlines()) == 1
        span_once("after")

    assert record(body).names() == ["before", "after"]
    assert not inner.exists()


def test_a_profile_is_entered_once(tmp_path: Path) -> None:
    profile = gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET)
    with profile:
        pass
    with refused(gpuprof.RecordingError, "entered_twice"):
        profile.__enter__()
    assert profile.run.meta["complete"] is True


def test_the_run_is_ready_after_the_block_only(tmp_path: Path) -> None:
    recording = gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET)
    with pytest.raises(gpuprof.RunError) as before:
        _ = recording.run
    with recording:
        with refused(gpuprof.RunError, "still_recording"):
            _ = recording.run
        assert recording.path == tmp_path / "r.gpuprof"
    assert recording.run is recording.run
    assert len(str(before.value).splitlines()) == 1


@pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_in_the_block_passes_through_and_the_run_is_there(
    tmp_path: Path, recorded: Any, error: BaseException
) -> None:
    recording = gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET)
    with pytest.raises(type(error)) as caught, recording, gpuprof.span("failing"):
        raise error
    assert caught.value is error
    assert recorded(recording.run).names() == ["failing"]
    assert recording.run.meta["complete"] is True


@pytest.mark.parametrize(
    ("option", "code"), [({"gpu": True}, "no_driver"), ({"python": "pyinstrument"}, "not_installed")]
)
def test_what_this_machine_lacks_is_reported_at_once(
    temporary_files: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], code: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyinstrument.low_level", None)
    with refused(gpuprof.UnavailableError, code):
        gpuprof.profile(**option)
    with refused(gpuprof.RecordingError, "not_a_torch_module", "str"):
        gpuprof.profile("model.pt")
    assert list(temporary_files.iterdir()) == []


# --- runs without a folder -----------------------------------------------------------------------


def test_a_run_without_a_folder_lives_as_long_as_its_object(temporary_files: Path) -> None:
    with gpuprof.profile(**QUIET) as recording:
        span_once()
    run = recording.run
    assert run.path.is_relative_to(temporary_files)
    del recording
    gc.collect()
    assert run.sql("SELECT name FROM spans").fetchall() == [("a",)]
    del run
    gc.collect()
    assert list(temporary_files.iterdir()) == []


def test_an_unused_run_without_a_folder_leaves_nothing(temporary_files: Path) -> None:
    with gpuprof.profile(**QUIET):
        span_once()
    gc.collect()
    assert list(temporary_files.iterdir()) == []


def test_a_profile_that_is_never_entered_leaves_nothing(temporary_files: Path) -> None:
    gpuprof.profile(**QUIET)
    gc.collect()
    assert list(temporary_files.iterdir()) == []


def test_a_profile_that_cannot_begin_leaves_nothing(temporary_files: Path, record: Any) -> None:
    def body() -> None:
        with pytest.raises(gpuprof.RecordingError):
            gpuprof.profile(**QUIET).__enter__()
        gc.collect()

    record(body)
    assert list(temporary_files.iterdir()) == []


def test_a_child_that_exits_does_not_take_its_parents_run(run_python: Any) -> None:
    source = """
import gpuprof, os, sys
with gpuprof.profile(layers=False, operators=False) as recording:
    with gpuprof.span("a"): pass
run = recording.run
if os.fork() == 0:
    sys.exit()
os.wait()
print(run.path.exists(), run.sql("SELECT name FROM spans").fetchall())
"""
    done = run_python("-c", source)
    assert (done.stdout, done.stderr) == ("True [('a',)]\n", "")


# --- forks ---------------------------------------------------------------------------------------


def test_a_forked_child_records_into_the_same_run(record: Any) -> None:
    children: list[int] = []

    def body() -> None:
        with gpuprof.span("parent"):
            reader, writer = os.pipe()

            def child() -> None:
                with gpuprof.span("child"):
                    span_once("new name")
                os.write(writer, str(os.getpid()).encode())

            in_a_child(child)
            children.append(int(os.read(reader, 20)))
            os.close(reader)
            os.close(writer)
            span_once("after")

    result = record(body)
    by_process = {row.name: row.process_id for row in result.rows}
    here, (child,) = os.getpid(), children
    assert by_process == {"parent": here, "after": here, "child": child, "new name": child}
    assert sorted(result.paths()) == ["child", "child/new name", "parent", "parent/after"]
    processes = {each["process_id"]: each for each in result.run.meta["processes"]}
    assert processes[child]["parent_process_id"] == here
    assert result.run.meta["process_id"] == here
    assert {
        name for (name,) in result.run.sql("SELECT name FROM call_tree WHERE kind = 'process'").fetchall()
    } == {
        f"process {here}",
        f"process {child}",
    }


def test_a_child_that_leaves_the_block_does_not_close_the_run(tmp_path: Path, recorded: Any) -> None:
    path = tmp_path / "r.gpuprof"
    recording = gpuprof.profile(out=path, **QUIET)
    child = 1
    with recording:
        span_once("before")
        child = os.fork()
        if child == 0:
            span_once("in child")
    if child == 0:
        code = 1
        try:
            span_once("not recorded any more")
            with refused(gpuprof.RunError, "forked_child"):
                _ = recording.run
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (path / "meta.json").exists()
    result = recorded(recording.run)
    assert sorted(name for name in result.names() if name != "in child") == ["before"]


def test_a_child_that_leaves_the_block_first(tmp_path: Path, recorded: Any) -> None:
    path = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=path, **QUIET) as recording:
        span_once("before")

        def child() -> None:
            span_once("in child")
            recording.__exit__(None, None, None)
            span_once("not recorded any more")

        in_a_child(child)
        assert not (path / "meta.json").exists()
        span_once("after")
    result = recorded(recording.run)
    assert sorted(result.names()) == ["after", "before", "in child"]
    assert all(process["closed"] for process in result.run.meta["processes"])
    assert result.run.meta["complete"] is True


def test_children_of_children_and_spans_across_a_fork(record: Any) -> None:
    def grandchild() -> None:
        span_once("grandchild")

    def child() -> None:
        span_once("child")
        in_a_child(grandchild)
        span_once("child again")

    def body() -> None:
        with gpuprof.span("open"):
            in_a_child(child)

    result = record(body)
    assert sorted(result.names()) == ["child", "child again", "grandchild", "open"]
    assert len({row.process_id for row in result.rows}) == 3
    assert result.run.meta["complete"] is True


def test_forking_while_threads_record(record: Any) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(1e-4):
            span_once("thread")

    def body() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                in_a_child(lambda: span_once(f"child {number}"))  # noqa: B023 - called at once
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    result = record(body)
    assert sorted(set(result.names()) - {"thread"}) == [f"child {number}" for number in range(5)]
    assert result.totals["damaged_events"] == result.totals["dropped_events"] == 0


def _spanned(number: int) -> tuple[int, int]:
    with gpuprof.span("pool work"):
        return os.getpid(), number


def test_a_pool_of_forked_processes(record: Any) -> None:
    answers: list[tuple[int, int]] = []

    def body() -> None:
        with multiprocessing.get_context("fork").Pool(3) as pool:
            answers.extend(pool.map(_spanned, range(300), chunksize=10))
            pool.close()
            pool.join()

    result = record(body)
    assert sorted(number for _, number in answers) == list(range(300))
    expected = sorted(process for process, _ in answers)
    assert sorted(row.process_id for row in result.rows) == expected
    assert len({row.span_id for row in result.rows}) == 300


# --- threads and sizes ---------------------------------------------------------------------------


def test_two_thousand_short_threads_stay_small(tmp_path: Path) -> None:
    path = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=path, **QUIET) as recording:
        for _ in range(2_000):
            thread = threading.Thread(target=span_once)
            thread.start()
            thread.join()
        used = sum(file.stat().st_size for file in path.rglob("*"))
    assert used < 2_000_000
    run = recording.run
    assert run.sql("SELECT count(*), sum(depth) FROM spans WHERE parent_id IS NULL").fetchall() == [
        (2_000, 0)
    ]
    assert len(run.meta["threads"]) == 2_000
    assert sum(file.stat().st_size for file in path.rglob("*")) < 500_000
    assert run.sql("SELECT calls, threads FROM call_tree WHERE name = 'a'").fetchall() == [(2_000, 2_000)]


def test_more_events_than_a_segment_holds(record: Any) -> None:
    span = gpuprof.span("s")

    def body() -> None:
        for _ in range(150_000):
            with span:
                pass

    with_sql = "SELECT count(*), count(DISTINCT span_id), min(duration_ns) >= 0 FROM spans"
    options: dict[str, Any] = {}
    result = record(body, **options)
    assert result.run.sql(with_sql).fetchall() == [(150_000, 150_000, True)]
    starts = [row.start_ns for row in result.rows]
    assert starts == sorted(starts)
    assert result.totals["events"] >= 300_000


# --- the facts of the run -----------------------------------------------------------------------


def test_tables_have_the_columns_of_the_contract(record: Any) -> None:
    run = record(span_once).run
    spans = dict(zip(*(run.sql("FROM spans").columns, map(str, run.sql("FROM spans").types)), strict=True))
    whole = ("span_id", "parent_id", "process_id", "thread_id", "start_ns", "duration_ns")
    assert {name: spans[name] for name in whole} == dict.fromkeys(whole, spans["span_id"])
    assert spans["span_id"].upper() in ("BIGINT", "INT64")
    assert spans["name"] == spans["kind"]
    assert list(spans) == [*whole[:4], "kind", "name", "start_ns", "duration_ns", "depth", "path_id", "rank"]
    assert run.tables == sorted(TABLES)
    row = run.sql("SELECT parent_id, process_id, thread_id, kind, name, depth FROM spans").fetchall()
    assert row == [(None, os.getpid(), threading.get_native_id(), "span", "a", 0)]
    assert all((run.path / table / "rank=0").is_dir() for table in run.tables)


def test_an_empty_run_can_be_asked_all_the_same(record: Any) -> None:
    run = record(lambda: None).run
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(0,)]
    assert run.sql("SELECT typeof(span_id) FROM (SELECT max(span_id) AS span_id FROM spans)").fetchall() == [
        ("BIGINT",)
    ]
    assert "no span was recorded here" in str(run.summary(by="span"))
    for by in ("layer", "operator", "kernel", "span"):
        assert run.summary(by=by).rows == ()


def test_meta_contains_what_was_recorded_and_where(record: Any) -> None:
    before = time.time_ns()
    meta = record(span_once).run.meta
    after = time.time_ns()
    assert {
        "format_version", "gpuprof", "complete", "origin_unix_ns", "duration_ns", "command", "process_id",
        "machine", "versions", "sources", "totals", "damage", "notes", "clock", "processes", "threads",
    } <= set(meta)  # fmt: skip
    assert (meta["format_version"], meta["gpuprof"], meta["complete"]) == (2, gpuprof.__version__, True)
    assert isinstance(meta["origin_unix_ns"], str)
    assert before <= int(meta["origin_unix_ns"]) <= after
    assert 0 < meta["duration_ns"] <= after - before
    assert meta["totals"]["spans"] == 1
    assert meta["totals"]["events"] in (2, 3)  # a mark of the context may come before
    assert meta["damage"] == meta["notes"] == []
    assert [process["process_id"] for process in meta["processes"]] == [os.getpid()]
    assert source_code(meta, "spans") == "recorded"
    assert source_code(meta, "layers") == source_code(meta, "operators") == "off: not_wanted"


def test_what_processors_did_during_the_recording_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([(100.0, 7.0), (103.5, 7.25)])
    monkeypatch.setattr(recording, "processor_seconds", lambda: next(seconds))
    with gpuprof.profile(out=tmp_path / "r.gpuprof", layers=False, operators=False) as profile:
        pass
    meta = profile.run.meta
    assert (meta["machine_busy_ns"], meta["machine_steal_ns"]) == (3_500_000_000, 250_000_000)


def test_spans_lie_within_the_recording(record: Any) -> None:
    result = record(lambda: [span_once() for _ in range(100)])
    end = result.run.meta["duration_ns"]
    assert all(0 <= row.start_ns <= row.start_ns + row.duration_ns <= end for row in result.rows)


def test_a_closed_run_opens_again_and_is_the_same(record: Any, recorded: Any) -> None:
    first = record(lambda: [span_once(name) for name in "abc"])
    again = gpuprof.open(str(first.run.path))
    assert (again.meta, recorded(again).rows) == (first.run.meta, first.rows)
    assert eval(repr(again), {"gpuprof": gpuprof}).path == again.path
    assert {path.name for path in again.path.iterdir()} == {*TABLES, "meta.json"}


def test_a_run_can_be_asked_from_many_threads(record: Any) -> None:
    run = record(lambda: [span_once() for _ in range(10)]).run
    answers: list[Any] = []

    def ask() -> None:
        answers.append(run.sql("SELECT count(*) FROM spans").fetchall())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[(10,)]] * 8


def test_the_call_tree_merges_by_path(record: Any) -> None:
    def body() -> None:
        for name in "aba":
            with gpuprof.span(name):
                span_once("x")
                span_once("x")

    run = record(body).run
    rows = run.sql("""
        SELECT parent.name, node.name, node.calls, node.total_ns >= node.own_ns
        FROM call_tree node JOIN call_tree parent ON node.parent_id = parent.node_id ORDER BY 1, 2
    """).fetchall()
    process = f"process {os.getpid()}"
    assert sorted(rows) == sorted(
        [(process, "a", 2, True), (process, "b", 1, True), ("a", "x", 4, True), ("b", "x", 2, True)]
    )
    assert {row.name: row.calls for row in run.summary(by="span").rows} == {"a": 2, "b": 1, "x": 6}


def test_without_a_wish_the_table_shows_what_there_is(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET) as recording, gpuprof.span("load"):
        pass
    table = recording.run.summary()
    assert (table.by, [row.name for row in table.rows]) == ("span", ["load"])
    assert table.notes[0] == "no layer was recorded here, so this is the table by span"
    assert recording.run.summary("layer").rows == ()
