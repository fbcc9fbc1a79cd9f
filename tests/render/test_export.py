# SPDX-License-Identifier: Apache-2.0
"""What is exported, read back by independent readers. GPU work is replayed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cpu_work import busy
from refusals import refused, refused_command
from run_edits import forget_parts, parquet_of
from trace_readers import Trace, read_chrome, read_perfetto, read_speedscope

import gpuprof
from gpuprof.cli.main import execute
from gpuprof.errors import RunError
from gpuprof.render.export import FORMATS

HOSTILE = 'a;b\n"c\\</script>\u202e\x00 \u2028'
READERS = {".pftrace": read_perfetto, ".json": read_chrome, ".speedscope.json": read_speedscope}


def exported(run: gpuprof.Run, tmp_path: Path, ending: str) -> Trace:
    path = run.export(tmp_path / f"trace{ending}")
    return READERS[ending](path)


def spans_of(run: gpuprof.Run) -> Counter[tuple[str, int, int]]:
    return Counter(run.sql("SELECT name, start_ns, duration_ns FROM spans").fetchall())


def slices_of(trace: Trace) -> Counter[tuple[str, int, int]]:
    return Counter((each.name, each.start_ns, each.duration_ns) for each in trace.slices)


def paths_of(run: gpuprof.Run) -> Counter[tuple[str, tuple[str, ...]]]:
    rows = {row[0]: row[1:] for row in run.sql("SELECT span_id, name, parent_id FROM spans").fetchall()}

    def around(span: int | None) -> tuple[str, ...]:
        return () if span is None else (*around(rows[span][1]), rows[span][0])

    return Counter((name, around(parent)) for name, parent in rows.values())


def nested_program() -> None:
    def work(label: str) -> None:
        with gpuprof.span(label):
            for _ in range(3):
                with gpuprof.span("inner"), gpuprof.span(HOSTILE):
                    pass
            with gpuprof.span("inner"):
                pass

    work("main")
    thread = threading.Thread(target=work, args=("second",))
    thread.start()
    thread.join()


def event(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 7, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


def on_gpu(name: str, ts: float, dur: float, correlation: int, **more: Any) -> dict[str, Any]:
    args = {"correlation": correlation, "device": 0, "context": 1, "stream": 7, **more}
    cat = more.pop("cat", "kernel")
    return {"ph": "X", "pid": 0, "tid": 7, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


@pytest.fixture
def gpu_run(tmp_path: Path) -> gpuprof.Run:
    """Two operators that launched kernels, two of which overlap on their stream, and a copy."""
    sizes = {"grid": [4, 2, 1], "block": [64, 1, 1], "registers per thread": 32}
    events = [
        event("aten::mm", 10, 30),
        event("cudaLaunchKernel", 12, 3, cat="cuda_runtime", correlation=1),
        event("cudaLaunchKernel", 20, 3, cat="cuda_runtime", correlation=2),
        event("aten::copy_", 50, 10),
        event("cudaMemcpyAsync", 52, 3, cat="cuda_runtime", correlation=3),
        on_gpu("gemm<float>", 20, 40, 1, **sizes),
        on_gpu("relu", 30, 50, 2),
        on_gpu("orphan", 90, 5, 99),
        on_gpu("Memcpy HtoD (Pageable -> Device)", 100, 8.125, 3, cat="gpu_memcpy", bytes=4096),
    ]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return gpuprof.import_trace(path, tmp_path / "gpu.gpuprof")


@pytest.mark.parametrize("ending", READERS)
def test_spans_come_back_with_their_times_and_nesting(record: Any, tmp_path: Path, ending: str) -> None:
    run = record(nested_program).run
    trace = exported(run, tmp_path, ending)
    assert len(trace.slices) == 16
    assert slices_of(trace) == spans_of(run)
    assert Counter((each.name, each.around) for each in trace.slices) == paths_of(run)
    assert len({each.track for each in trace.slices}) == 2


@pytest.mark.parametrize("ending", READERS)
def test_stack_samples_are_slices_of_a_track_of_their_own(record: Any, tmp_path: Path, ending: str) -> None:
    def inner() -> int:
        return busy()

    def outer() -> int:
        with gpuprof.span("work"):
            return inner()

    run = record(outer, python=True).run
    trace = exported(run, tmp_path, ending)
    of_spans = [each for each in trace.slices if each.name == "work"]
    assert len(of_spans) == 1
    # Other threads of the test's process are sampled too.
    (track,) = {each.track for each in trace.slices if "inner (" in each.name and "test_export" in each.name}
    of_stacks = [each for each in trace.slices if each.track == track]
    assert track != of_spans[0].track
    samples = run.sql(
        f"SELECT t_ns, duration_ns, frames FROM stacks WHERE thread_id = {threading.get_native_id()}"
    ).fetchall()
    assert samples
    for t_ns, duration_ns, frames in samples:
        shown = [
            each
            for each in of_stacks
            if each.start_ns <= t_ns - duration_ns and t_ns <= each.start_ns + each.duration_ns
        ]
        assert [each.name for each in sorted(shown, key=lambda each: len(each.around))] == frames


@pytest.mark.parametrize("ending", READERS)
def test_spans_that_cross_are_on_lanes_where_they_nest(record: Any, tmp_path: Path, ending: str) -> None:
    async def task(name: str, begun: asyncio.Event, then: asyncio.Event, ended: asyncio.Event) -> None:
        with gpuprof.span(name):
            begun.set()
            await then.wait()
            with gpuprof.span(f"{name} inner"):
                pass
        ended.set()

    async def program() -> None:
        a_begun, b_begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(task("a", a_begun, b_begun, ended))
        await a_begun.wait()
        await asyncio.gather(first, task("b", b_begun, ended, ended))

    run = record(lambda: asyncio.run(program())).run
    trace = exported(run, tmp_path, ending)
    assert slices_of(trace) == spans_of(run)
    tracks = {each.name: each.track for each in trace.slices}
    assert tracks["a"] != tracks["b"]


@pytest.mark.parametrize("ending", READERS)
def test_kernels_that_overlap_are_on_lanes_of_their_stream(
    gpu_run: gpuprof.Run, tmp_path: Path, ending: str
) -> None:
    trace = exported(gpu_run, tmp_path, ending)
    work = {each.name: each for each in trace.slices if "stream 7" in each.track}
    assert set(work) == {"gemm<float>", "relu", "orphan", "copy pageable to device"}
    assert all(each.around == () for each in work.values())
    assert work["gemm<float>"].track != work["relu"].track
    assert work["orphan"].track == work["gemm<float>"].track
    assert work["copy pageable to device"].duration_ns == 8125
    assert (work["relu"].start_ns, work["relu"].duration_ns) == (20_000, 50_000)  # from the first instant


@pytest.mark.parametrize("ending", [".pftrace", ".json"])
def test_arrows_lead_from_the_launching_span_to_the_kernel(
    gpu_run: gpuprof.Run, tmp_path: Path, ending: str
) -> None:
    trace = exported(gpu_run, tmp_path, ending)
    assert trace.flows == [
        ("aten::copy_", "copy pageable to device"),
        ("aten::mm", "gemm<float>"),
        ("aten::mm", "relu"),
    ]


def write_samples(run: gpuprof.Run) -> None:
    folder = run.path / "samples" / "rank=0"
    for part in folder.glob("*.parquet"):
        part.unlink()
    forget_parts(run.path)
    readings = "(5, 0, 'power_w', 70), (5, 1, 'temperature_c', 40)"
    rows = f"VALUES (20::BIGINT, 0::INTEGER, 'power_w', 71.5::DOUBLE), {readings}"
    query = f"SELECT * FROM ({rows}) AS rows(t_ns, device, metric, value)"
    duckdb.sql(query).write_parquet(str(folder / "part.parquet"))


def test_readings_of_devices_are_counters(gpu_run: gpuprof.Run, tmp_path: Path) -> None:
    write_samples(gpu_run)
    run = gpuprof.open(gpu_run.path)
    assert exported(run, tmp_path, ".pftrace").counters == {
        "GPU 0/power_w [W]": [(5, 70.0), (20, 71.5)],
        "GPU 1/temperature_c [C]": [(5, 40.0)],
    }
    chrome = exported(run, tmp_path, ".json")
    assert chrome.counters == {"power_w": [(5, 70.0), (20, 71.5)], "temperature_c": [(5, 40.0)]}


def test_chrome_export_contains_what_is_known_of_a_kernel(gpu_run: gpuprof.Run, tmp_path: Path) -> None:
    content = json.loads(gpu_run.export(tmp_path / "t.json").read_text())
    found = {each["name"]: each.get("args") for each in content["traceEvents"] if each.get("cat") == "kernel"}
    assert found["gemm<float>"] == {
        "External id": 0,
        "correlation": 1,
        "device": 0,
        "context": 1,
        "stream": 7,
        "registers per thread": 32,
        "grid": [4, 2, 1],
        "block": [64, 1, 1],
    }
    assert "External id" not in found["orphan"]


def test_an_export_imports_as_the_same_run(gpu_run: gpuprof.Run, tmp_path: Path) -> None:
    again = gpuprof.import_trace(gpu_run.export(tmp_path / "t.json"), tmp_path / "again.gpuprof")
    for query in (
        "SELECT name, kind, depth, start_ns, duration_ns FROM spans ORDER BY ALL",
        "SELECT k.name, s.name, k.start_ns, k.duration_ns, k.grid_x, k.stream FROM kernels k "
        "LEFT JOIN spans s USING (span_id) ORDER BY ALL",
        "SELECT kind, bytes, src, dst, start_ns, duration_ns FROM transfers ORDER BY ALL",
    ):
        assert again.sql(query).fetchall() == gpu_run.sql(query).fetchall()


def test_imported_processes_and_threads_keep_their_names(tmp_path: Path) -> None:
    def named(what: str, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": 7, "tid": 1, "name": what, "args": {"name": name}}

    events = [named("process_name", "trainer"), named("thread_name", "loop"), event("a", 1, 2)]
    (tmp_path / "t.json").write_text(json.dumps(events))
    run = gpuprof.import_trace(tmp_path / "t.json", tmp_path / "t.gpuprof")
    assert {each.track for each in exported(run, tmp_path, ".json").slices} == {"trainer/loop#1"}
    assert set(exported(run, tmp_path, ".pftrace").tracks.values()) == {"trainer", "loop"}


def test_folded_stacks_add_up_to_the_self_time(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    lines = run.export(tmp_path / "t.folded").read_text("utf-8").splitlines()
    stacks = [line.rsplit(" ", 1) for line in lines]
    tree = run.call_tree
    assert sum(int(weight) for _, weight in stacks) == int(tree.own_ns.sum())
    assert len(stacks) == int((tree.own_ns > 0).sum())
    names = {name for stack, _ in stacks for name in stack.split(";")}
    assert 'a, b "c\\</script>\u202e' in names
    assert {"main", "second", "inner"} <= names


def test_one_parquet_file_holds_every_slice(gpu_run: gpuprof.Run, tmp_path: Path) -> None:
    path = gpu_run.export(tmp_path / "o'clock.parquet")
    rows = duckdb.from_parquet(str(path))
    counts = dict(rows.aggregate("kind, count(*)").fetchall())
    assert counts == {"operator": 5, "kernel": 3, "transfer": 1}
    query = "SELECT name, parent_id, bytes, device FROM rows WHERE kind = 'transfer'"
    parent = gpu_run.sql("SELECT span_id FROM spans WHERE name = 'aten::copy_'").fetchall()[0][0]
    assert duckdb.query(query).fetchall() == [("copy pageable to device", parent, 4096, 0)]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_run_without_anything_is_exported(record: Any, tmp_path: Path, ending: str) -> None:
    run = record(lambda: None).run
    path = run.export(tmp_path / f"empty{ending}")
    assert path.exists()
    if ending in READERS:
        assert READERS[ending](path).slices == []


@pytest.mark.parametrize("ending", FORMATS)
def test_any_name_is_exported(record: Any, tmp_path: Path, ending: str) -> None:
    empty, run = record(lambda: None).run, record(nested_program).run
    sizes = [each.export(tmp_path / f"t{ending}").stat().st_size for each in (empty, run)]
    assert sizes[0] < sizes[1]


def test_depth_of_twenty_thousand(tmp_path: Path, record: Any) -> None:
    def program() -> None:
        spans = [gpuprof.span("deep") for _ in range(20_000)]
        for span in spans:
            span.__enter__()
        for span in reversed(spans):
            span.__exit__(None, None, None)

    run = record(program).run
    trace = read_perfetto(run.export(tmp_path / "deep.pftrace"), shows_around=False)
    assert slices_of(trace) == spans_of(run)


def test_an_ending_that_names_no_format_is_refused(record: Any, tmp_path: Path) -> None:
    run = record(lambda: None).run
    with refused(RunError, "unknown_format", "trace.xyz", "pftrace"):
        run.export(tmp_path / "trace.xyz")


def test_a_failed_export_leaves_the_older_file(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    target = tmp_path / "t.json"
    target.write_text("older")
    part = parquet_of(run.path, "spans")
    content = bytearray(part.read_bytes())
    content[8 : len(content) // 2] = b"\xff" * (len(content) // 2 - 8)
    part.write_bytes(content)
    with refused(RunError, "damaged", "spans") as caught:
        gpuprof.open(run.path).export(target)
    assert "room" not in str(caught.value)
    assert target.read_text() == "older"
    assert not list(tmp_path.glob(".gpuprof-export-*"))


# Where the first has no room for the database that sorts, the second has none for its log.
@pytest.mark.parametrize("size", ["4k", "16k"])
def test_an_export_to_a_full_disk_asks_for_room(record: Any, small_disk: Any, size: str) -> None:
    disk = small_disk(size)
    run = record(nested_program).run
    with refused(RunError, "cannot_export", "device"):
        run.export(disk / "t.pftrace")
    assert not list(disk.iterdir())


def test_spans_of_other_columns_are_no_matter_of_room(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    duckdb.sql("SELECT 1 AS other FROM range(16)").write_parquet(str(parquet_of(run.path, "spans")))
    forget_parts(run.path)
    with refused(RunError, "cannot_export", "Binder", "Error"):
        gpuprof.open(run.path).export(tmp_path / "t.parquet")


def test_a_folder_that_is_not_there_is_refused(record: Any, tmp_path: Path) -> None:
    run = record(lambda: None).run
    with refused(RunError, "cannot_write", "file"):
        run.export(tmp_path / "nowhere" / "t.json")


def test_the_command_exports(record: Any, tmp_path: Path, capsys: Any) -> None:
    run = record(nested_program).run
    target = tmp_path / "t.pftrace"
    assert execute(["export", str(run.path), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert slices_of(read_perfetto(target)) == spans_of(run)
    refused_command(["export", run.path, "-o", tmp_path / "t.txt"], "unknown_format", tmp_path / "t.txt")
