# SPDX-License-Identifier: Apache-2.0
"""The timeline in the page, read back by an independent reader. GPU work is replayed."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_reader import PageTimeline, script, timeline_of
from refusals import refused
from run_edits import forget_parts, parquet_of

import gpuprof
from gpuprof.cli.main import execute
from gpuprof.errors import RunError
from gpuprof.render import timeline as timeline_module
from gpuprof.render.timeline import thinned
from gpuprof.render.timeline_columns import planes, zigzag
from gpuprof.run.format import KINDS, TABLES
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import imported_run, kind_code

HOSTILE = "</script><img src=x onerror=alert(1)>"


def page_of(run: gpuprof.Run, tmp_path: Path, **options: Any) -> str:
    return run.flamegraph(tmp_path / "page.html", **options).read_text(encoding="utf-8")


def shown(run: gpuprof.Run, tmp_path: Path, **options: Any) -> PageTimeline:
    return timeline_of(page_of(run, tmp_path, **options))


def spans_of(run: gpuprof.Run) -> Counter[tuple[str, str, int, int]]:
    return Counter(run.sql("SELECT name, kind, start_ns, duration_ns FROM spans").fetchall())


def slices_of(found: PageTimeline) -> Counter[tuple[str, str, int, int]]:
    return Counter((each.name, KINDS[each.kind], each.start_ns, each.duration_ns) for each in found.slices)


def write_spans(path: Path, start: list[int], duration: list[int], names: list[str]) -> gpuprof.Run:
    with imported_run(path) as run:
        run.add_spans(
            {
                "process_id": np.full(len(start), 1),
                "thread_id": np.full(len(start), 1),
                "name_id": np.array([run.name_id(name) for name in names]),
                "kind": np.full(len(start), kind_code("operator")),
                "start_ns": np.array(start),
                "duration_ns": np.array(duration),
            }
        )
        run.finish(ImportFacts(source="test"))
    return gpuprof.open(path)


def nested_program() -> None:
    def work(label: str) -> None:
        with gpuprof.span(label):
            for _ in range(3):
                with gpuprof.span("inner"), gpuprof.span(HOSTILE):
                    pass

    work("main")
    thread = threading.Thread(target=work, args=("second",))
    thread.start()
    thread.join()


@pytest.fixture
def gpu_run(tmp_path: Path) -> gpuprof.Run:
    """An operator that launched two kernels, which overlap on their stream; one that copied; an orphan."""

    def event(name: str, ts: float, dur: float, cat: str, tid: int = 1, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "pid": 7, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}

    def on_gpu(name: str, ts: float, dur: float, number: int, cat: str = "kernel") -> dict[str, Any]:
        where = {"correlation": number, "device": 0, "context": 1, "stream": 7}
        return event(name, ts, dur, cat, tid=7, **where)

    events = [
        event("aten::mm", 10, 30, "cpu_op"),
        event("cudaLaunchKernel", 12, 3, "cuda_runtime", correlation=1),
        event("cudaLaunchKernel", 20, 3, "cuda_runtime", correlation=2),
        event("aten::copy_", 50, 10, "cpu_op"),
        event("cudaMemcpyAsync", 52, 3, "cuda_runtime", correlation=3),
        on_gpu("gemm<float>", 20, 40, 1),
        on_gpu("relu", 30, 50, 2),
        on_gpu("orphan", 90, 5, 99),
        on_gpu("Memcpy HtoD (Pageable -> Device)", 100, 8.125, 3, cat="gpu_memcpy"),
    ]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return gpuprof.import_trace(path, tmp_path / "gpu.gpuprof")


# ---- slices ------------------------------------------------------------------------------------


def test_the_page_holds_every_span_with_its_times(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    found = shown(run, tmp_path)
    assert len(found.slices) == 14
    assert slices_of(found) == spans_of(run)
    assert len(found.head["tracks"]) == 2


def test_threads_of_a_process_have_their_own_tracks(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    threads = run.sql("SELECT DISTINCT thread_id FROM spans ORDER BY 1").fetchall()
    names = [track["name"] for track in shown(run, tmp_path).head["tracks"]]
    assert [name.rpartition(" ")[2] for name in names] == [str(thread_id) for (thread_id,) in threads]


def test_the_only_thread_of_a_process_needs_no_number(record: Any, tmp_path: Path) -> None:
    def program() -> None:
        with gpuprof.span("alone"):
            pass

    run = record(program).run
    (thread,) = run.meta["threads"]
    assert [track["name"] for track in shown(run, tmp_path).head["tracks"]] == [thread["name"]]


def test_slices_of_a_row_follow_one_another(record: Any, tmp_path: Path) -> None:
    async def task(name: str, begun: asyncio.Event, then: asyncio.Event, ended: asyncio.Event) -> None:
        with gpuprof.span(name):
            begun.set()
            await then.wait()
        ended.set()

    async def program() -> None:
        a_begun, b_begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(task("a", a_begun, b_begun, ended))
        await a_begun.wait()
        await asyncio.gather(first, task("b", b_begun, ended, ended))

    run = record(lambda: asyncio.run(program())).run
    found = shown(run, tmp_path)
    assert slices_of(found) == spans_of(run)
    assert {each.lane for each in found.slices} == {0, 1}
    for before, after in zip(found.slices, found.slices[1:], strict=False):
        if before[:3] == after[:3]:
            assert before.start_ns + before.duration_ns <= after.start_ns


def test_times_of_a_long_run_are_exact(tmp_path: Path) -> None:
    day = 86_400_000_000_000
    run = write_spans(tmp_path / "long.gpuprof", [0, 3, day, day + 7], [2, day // 2, 12_345, 1], list("abcd"))
    assert slices_of(shown(run, tmp_path)) == spans_of(run)
    assert sum(each.duration_ns for each in shown(run, tmp_path).slices) == 2 + day // 2 + 12_345 + 1


def test_a_large_run_is_compressed_and_whole(tmp_path: Path) -> None:
    count = 120_000
    start = list(range(0, count * 10, 10))
    names = [f"name {i % 50}" for i in range(count)]
    run = write_spans(tmp_path / "large.gpuprof", start, [7] * count, names)
    found = shown(run, tmp_path)
    assert found.head["gzip"] is True
    assert slices_of(found) == spans_of(run)
    assert len(script(page_of(run, tmp_path), "timeline-columns")) < 60_000


def test_equal_runs_give_equal_pages(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    assert page_of(run, tmp_path) == page_of(run, tmp_path)


def test_a_name_cannot_leave_its_script(record: Any, tmp_path: Path) -> None:
    page = page_of(record(nested_program).run, tmp_path)
    assert "<img" not in script(page, "timeline-head")
    assert HOSTILE in json.loads(script(page, "timeline-head"))["names"]


# ---- classes ------------------------------------------------------------------------------------


def assert_cells_count_their_slices(run: gpuprof.Run, found: PageTimeline, calls: dict[int, int]) -> None:
    """Each class has as many slices as its cells have calls together."""
    slices = Counter(each.class_number for each in found.slices)
    expected: Counter[int] = Counter()
    for node, number in enumerate(found.class_of_node):
        if number >= 0 and KINDS[found.classes[number][1]] != "process":
            expected[number] += calls[node]
    assert {number: slices[number] for number in expected} == dict(expected)


def calls_of_nodes(page: str) -> dict[int, int]:
    """Read `calls` of the flame graph's own columns, which are float64 after two others."""
    import base64
    import gzip
    import struct

    head = json.loads(script(page, "head"))
    raw = base64.b64decode(script(page, "columns"))
    raw = gzip.decompress(raw) if head["gzip"] else raw
    sizes = {"float64": 8, "int32": 4, "uint8": 1}
    offset = 0
    for name, kind in head["columns"]:
        if name == "calls":
            return dict(enumerate(map(int, struct.unpack_from(f"<{head['count']}d", raw, offset))))
        offset += sizes[kind] * head["count"]
    raise AssertionError("no column of calls")


def test_each_cell_has_its_calls_as_slices(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    page = page_of(run, tmp_path)
    found = timeline_of(page)
    assert_cells_count_their_slices(run, found, calls_of_nodes(page))
    assert all(found.classes[each.class_number][3] >= 0 for each in found.slices)


def test_cells_of_a_backward_pass_have_their_calls_as_slices(record: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def steps() -> None:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()

    with gpuprof.profile(model, out=tmp_path / "steps.gpuprof") as recording:
        steps()
    page = page_of(recording.run, tmp_path)
    found = timeline_of(page)
    assert slices_of(found) == spans_of(recording.run)
    assert_cells_count_their_slices(recording.run, found, calls_of_nodes(page))
    # Every slice has its cell: the operator inside the engine's span of its name has that span's.
    assert all(found.classes[each.class_number][3] >= 0 for each in found.slices)


def test_gpu_work_is_below_what_launched_it(gpu_run: gpuprof.Run, tmp_path: Path) -> None:
    for weight in ("gpu", "cpu"):
        found = shown(gpu_run, tmp_path, weight=weight)
        by_name = {each.name: each for each in found.slices}
        assert len(found.slices) == 9
        launchers = {
            name: found.slices[each.launcher].name for name, each in by_name.items() if each.launcher >= 0
        }
        assert launchers == {
            "gemm<float>": "aten::mm",
            "relu": "aten::mm",
            "copy pageable to device": "aten::copy_",
        }
        assert by_name["gemm<float>"].lane != by_name["relu"].lane
        assert by_name["orphan"].launcher == -1
        kernels = {name: found.classes[by_name[name].class_number][3] for name in ("relu", "orphan")}
        assert min(kernels.values()) >= 0


def test_a_weight_without_a_call_leaves_its_slices(tmp_path: Path, gpu_run: gpuprof.Run) -> None:
    spans = {name for name, *_ in spans_of(gpu_run)}
    assert spans <= {each.name for each in shown(gpu_run, tmp_path, weight="gpu").slices}


# ---- what else is there ----------------------------------------------------------------------------


def write_samples(run: gpuprof.Run, rows: list[tuple[int, int, str, float]]) -> None:
    import duckdb

    part = parquet_of(run.path, "samples")
    part.unlink()
    forget_parts(run.path)
    connection = duckdb.connect()
    columns = ", ".join(f"{name} {kind}" for name, kind in TABLES["samples"].items())
    connection.execute(f"CREATE TABLE samples ({columns})")
    connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
    connection.execute(f"COPY samples TO '{part}' (FORMAT parquet)")
    connection.close()


def test_readings_of_devices_are_in_the_page(gpu_run: gpuprof.Run, tmp_path: Path) -> None:
    power = [(t * 1000, 0, "power_w", 100.5 + t) for t in range(20)]
    write_samples(gpu_run, [*power, (5, 0, "throttle_reasons", 4.0), (7, 1, "power_w", float("nan"))])
    found = shown(gpuprof.open(gpu_run.path), tmp_path)
    assert found.readings == {("GPU 0", "power_w"): [(t, value) for t, _, _, value in power]}


def test_of_many_readings_the_largest_of_each_stretch_stay() -> None:
    value = np.zeros(1_000)
    value[[3, 500, 999]] = (5, 7, 9)
    t_ns, kept = thinned(np.arange(1_000.0), value, most=10)
    assert len(kept) == 10
    assert t_ns[kept > 0].tolist() == [3, 500, 999]
    assert kept[kept > 0].tolist() == [5, 7, 9]


def test_a_run_without_calls_makes_a_page(tmp_path: Path) -> None:
    run = write_spans(tmp_path / "empty.gpuprof", [], [], [])
    found = shown(run, tmp_path)
    assert (found.slices, found.head["count"]) == ([], 0)


def test_a_run_without_paths_and_with_too_many_slices_has_a_hint(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of versions that wrote no `path_id`, by which slices are summed up."""
    monkeypatch.setattr(timeline_module, "MOST_SLICES", 13)
    monkeypatch.setattr(timeline_module, "BUDGET", 13)
    path = record(nested_program).run.path
    part = parquet_of(path, "spans")
    rows = gpuprof.open(path).sql("SELECT * EXCLUDE (path_id, rank) FROM spans")
    rows.write_parquet(str(part.with_suffix(".new")))
    part.with_suffix(".new").replace(part)
    forget_parts(path)
    with pytest.warns(RuntimeWarning, match="gpuprof: This run of an earlier version has 14 slices"):
        page = page_of(gpuprof.open(path), tmp_path)
    head = json.loads(script(page, "timeline-head"))
    assert head.keys() == {"left_out"}
    assert "gpuprof export RUN -o trace.pftrace" in head["left_out"]
    full = shown(gpuprof.open(path), tmp_path, full=True)
    assert len(full.slices) == 14


def test_a_damaged_table_leaves_the_flame_graph(record: Any, tmp_path: Path) -> None:
    run = record(nested_program).run
    parquet_of(run.path, "spans").write_bytes(b"no table")
    with pytest.warns(RuntimeWarning, match=r"could not be read: .*\bspans\b"):
        page = page_of(run, tmp_path)
    assert "could not be read" in json.loads(script(page, "timeline-head"))["left_out"]
    assert json.loads(script(page, "head"))["count"] > 1


def test_a_disk_without_room_to_sort_leaves_the_flame_graph(record: Any, small_disk: Any) -> None:
    def many_spans() -> None:
        for number in range(20_000):
            with gpuprof.span(f"number {number % 100}"):
                pass

    run = record(many_spans).run
    reason = "could not be written: No space left on device; hint: free disk space$"
    with pytest.warns(RuntimeWarning, match=reason):
        page_of(run, small_disk("800k"))


def test_the_command_reports_that_there_is_no_timeline(record: Any, tmp_path: Path, capsys: Any) -> None:
    run = record(nested_program).run
    spoil_a_page(parquet_of(run.path, "spans"))
    forget_parts(run.path)
    assert execute(["flamegraph", str(run.path), "-o", str(tmp_path / "page.html")]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path}/page.html\n"
    assert output.err.startswith("gpuprof: ")
    assert {"spans", str(run.path)} <= set(re.findall(r"[\w./-]+", output.err))
    assert output.err.count("\n") == 1
    assert (
        str(run.path) in json.loads(script((tmp_path / "page.html").read_text(), "timeline-head"))["left_out"]
    )


def spoil_a_page(part: Path) -> None:
    """Overwrite the header of the first page; where a file begins and ends it is as it was."""
    content = bytearray(part.read_bytes())
    content[4:40] = b"\xff" * 36
    part.write_bytes(content)


def test_a_folder_that_is_missing_is_one_line(record: Any, tmp_path: Path) -> None:
    with refused(RunError, "cannot_write"):
        record(nested_program).run.flamegraph(tmp_path / "missing" / "page.html")


@pytest.mark.parametrize("values", [[0], [1, -1, 5, -300, 2**40, -(2**50)]])
def test_signed_numbers_as_planes(values: list[int]) -> None:
    packed = zigzag(np.array(values, dtype=np.int64))
    assert (packed >= 0).all()
    count = len(values)
    written = planes(packed)
    read = [
        sum(written[plane * count + i] << 8 * plane for plane in range(len(written) // count))
        for i in range(count)
    ]
    assert [-(value + 1) // 2 if value % 2 else value // 2 for value in read] == values
