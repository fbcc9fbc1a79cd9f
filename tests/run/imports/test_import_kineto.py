# SPDX-License-Identifier: Apache-2.0
"""Traces of other tools as runs: Chrome and Kineto JSON. Kernels in them are written by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from import_oracle import differences, kineto_figures, run_figures
from refusals import refused, refused_command

import gpuprof
from gpuprof.cli.exchange import default_run
from gpuprof.cli.main import execute
from gpuprof.errors import RecordingError, RunError
from gpuprof.record.facts import NoteCode, note
from gpuprof.run.damage import DamageCode

Event = dict[str, Any]
Import = Callable[..., gpuprof.Run]


def x(name: str, ts: Any, dur: Any, cat: str = "cpu_op", tid: Any = 1, pid: Any = 7, **args: Any) -> Event:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


def damage(run: gpuprof.Run) -> list[tuple[DamageCode, int | None]]:
    return [(each.code, each.count) for each in run.damage]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """`imported(events)` or `imported(text)` is the run of that trace."""
    count = 0

    def imported(content: list[Event] | str | bytes, name: str = "trace.json") -> gpuprof.Run:
        nonlocal count
        count += 1
        if isinstance(content, list):
            content = json.dumps({"traceEvents": content})
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return gpuprof.import_trace(path, tmp_path / f"{count}.gpuprof")

    return imported


def rows(run: gpuprof.Run, query: str) -> list[tuple[Any, ...]]:
    return run.sql(query).fetchall()


def tree(run: gpuprof.Run) -> list[tuple[Any, ...]]:
    """Return kind, name, parent's name, start and duration of each span."""
    return rows(
        run,
        "SELECT s.kind, s.name, p.name, s.start_ns, s.duration_ns FROM spans s "
        "LEFT JOIN spans p ON p.span_id = s.parent_id ORDER BY s.span_id",
    )


KINETO = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "main thread"}},
    x("ProfilerStep#1", 100, 900, "user_annotation"),
    x("nn.Module: Net_0", 110, 500, "python_function"),
    x("train.py(3): step", 105, 700, "python_function"),
    x("aten::linear", 120, 300, **{"External id": 1}),
    x("aten::addmm", 130, 280, **{"External id": 2}),
    x("cudaLaunchKernel", 200, 5, "cuda_runtime", correlation=31, **{"External id": 2}),
    x("autograd::engine::evaluate_function: AddmmBackward0", 300, 10, tid=2),
    x("aten::copy_", 900, 50, **{"External id": 3}),
    x("cudaMemcpyAsync", 910, 5, "cuda_runtime", correlation=32),
    x("cudaStreamSynchronize", 920, 20, "cuda_runtime", correlation=33),
    {**x("gemm", 250, 40.5, "kernel", 7, 0, correlation=31, device=0, context=1, stream=7), "cat": "kernel"},
    x("Memcpy DtoH (Device -> Pinned)", 915, 9, "gpu_memcpy", 7, 0, correlation=32, device=0, bytes=64),
    x("Memset (Device)", 930, 1, "gpu_memset", 7, 0, correlation=77, device=0, bytes=8, **{"External id": 3}),
    x("Stream Synchronize", 921, 15, "cuda_sync", 7, 0, correlation=33, stream=7),
    x("ProfilerStep#1", 250, 700, "gpu_user_annotation", 7, 0),
    x("PyTorch Profiler (0)", 90, 2000, "Trace", "PyTorch Profiler", "Spans"),
    {"ph": "s", "id": 31, "pid": 7, "tid": 1, "ts": 200, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 31, "pid": 0, "tid": 7, "ts": 250, "cat": "ac2g", "name": "ac2g", "bp": "e"},
]


def test_kineto_events_become_spans_of_their_kinds(imported: Import) -> None:
    run = imported(KINETO)
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    assert tree(run) == [
        ("span", "ProfilerStep#1", None, 0, 900_000),
        ("span", "train.py(3): step", "ProfilerStep#1", 5_000, 700_000),
        ("layer", "Net_0", "train.py(3): step", 10_000, 500_000),
        ("operator", "aten::linear", "Net_0", 20_000, 300_000),
        ("operator", "aten::addmm", "aten::linear", 30_000, 280_000),
        ("operator", "cudaLaunchKernel", "aten::addmm", 100_000, 5_000),
        ("operator", "aten::copy_", "ProfilerStep#1", 800_000, 50_000),
        ("operator", "cudaMemcpyAsync", "aten::copy_", 810_000, 5_000),
        ("operator", "cudaStreamSynchronize", "aten::copy_", 820_000, 20_000),
        ("backward", backward, None, 200_000, 10_000),
    ]
    assert run.meta["complete"] is True
    assert run.meta["threads"][0]["name"] == "main thread"
    assert rows(run, "SELECT name FROM call_tree WHERE kind = 'process'") == [("python (7)",)]


def test_gpu_work_belongs_to_the_operator_that_launched_it(imported: Import) -> None:
    run = imported(KINETO)
    assert rows(
        run,
        "SELECT k.name, s.name, k.start_ns, k.duration_ns, k.launch_ns, k.stream, k.grid_x "
        "FROM kernels k JOIN spans s USING (span_id)",
    ) == [("gemm", "aten::addmm", 150_000, 40_500, 100_000, 7, None)]
    # The fill's launch was not traced: it is the operator's by the id that it carries.
    assert rows(
        run,
        "SELECT t.kind, bytes, src, dst, s.name FROM transfers t JOIN spans s USING (span_id) ORDER BY 1",
    ) == [("copy", 64, "device", "pinned", "aten::copy_"), ("fill", 8, None, "device", "aten::copy_")]
    assert rows(run, "SELECT type, duration_ns FROM synchronizations") == [("stream", 15_000)]
    by_kernel = run.summary(by="kernel")
    assert {row.name: row.gpu_total_ns for row in by_kernel.rows}["gemm"] == 40_500
    operators = {row.name: row.gpu_own_ns for row in run.summary(by="operator").rows}
    assert (operators["aten::addmm"], operators["cudaLaunchKernel"]) == (40_500, 0)


FORMER = [
    x("aten::empty", 0, 25, "Operator", "25738", 25738, **{"External id": 2, "Device": 25738}),
    x("cudaMemcpyAsync", 5, 10, "Runtime", "25738", 25738, correlation=34417, **{"external id": 2}),
    x("cudaLaunchKernel", 16, 2, "Runtime", "25738", 25738, correlation=34441, **{"external id": 2}),
    x("Memcpy HtoD (Pageable -> Device)", 30, 3, "Memcpy", "stream 7", 0, device=0, stream=7, bytes=256)
    | {"args": {"device": 0, "stream": 7, "bytes": 256, "correlation": 34417, "external id": 2}},
    x("volta_sgemm_128x64_nt", 35, 6, "Kernel", "stream 7", 0, device=0, stream=7, correlation=34441),
    x("Memset (Device)", 45, 1, "Memset", "stream 7", 0, device=0, stream=7, bytes=64, correlation=99),
]


def test_categories_of_traces_before_april_2022_are_those_of_today(imported: Import) -> None:
    run = imported(FORMER)
    assert [each[:3] for each in tree(run)] == [
        ("operator", "aten::empty", None),
        ("operator", "cudaMemcpyAsync", "aten::empty"),
        ("operator", "cudaLaunchKernel", "aten::empty"),
    ]
    query = "SELECT k.name, s.name, duration_ns, stream FROM kernels k JOIN spans s USING (span_id)"
    assert rows(run, query.replace("duration_ns", "k.duration_ns")) == [
        ("volta_sgemm_128x64_nt", "aten::empty", 6_000, 7)
    ]
    query = "SELECT kind, bytes, src, dst, duration_ns FROM transfers ORDER BY start_ns"
    assert rows(run, query) == [
        ("copy", 256, "pageable", "device", 3_000),
        ("fill", 64, None, "device", 1_000),
    ]
    assert run.meta["imported"] == "Kineto JSON"
    assert run.meta["not_imported"] == []


def many_events(seed: str) -> list[Event]:
    random = Random(seed)
    calls = ("cudaLaunchKernel", "cudaMemcpyAsync")
    events = []
    for number in range(200):
        start = random.randrange(10_000_000) / 1000
        events.append(x(random.choice(calls), start, random.randrange(9000) / 1000, "cuda_runtime"))
        where = {"device": 0, "stream": random.randrange(3), "correlation": number, "pid": 0}
        category = random.choice(("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"))
        size = {} if category in ("kernel", "cuda_sync") else {"bytes": random.randrange(1 << 40)}
        events.append(x("work", start, random.randrange(90_000) / 1000, category, **where, **size))
    return events


@pytest.mark.parametrize("events", [KINETO, FORMER, many_events("a"), many_events("b")])
def test_figures_equal_those_of_the_file(imported: Import, tmp_path: Path, events: list[Event]) -> None:
    run = imported(events)
    expected = kineto_figures(tmp_path / "trace.json")
    assert differences(expected, run_figures(run)) == []
    assert expected["kernels"][1] > 0


def test_work_of_a_device_in_an_unknown_category_is_counted_and_no_span_of_a_thread(imported: Import) -> None:
    run = imported(
        [
            x("fft", 1, 2, "ConcurrentKernel", 7, 0, device=0, stream=7),
            x("fft", 4, 2, "ConcurrentKernel", 7, 0, stream=7, grid=[1, 1, 1]),
            x("my range", 1, 9, "my category"),
            x("on no device", 2, 1, "ConcurrentKernel"),
        ]
    )
    assert [name for _, name, *_ in tree(run)] == ["my range", "on no device"]
    assert run.meta["not_imported"] == [
        {"kind": "unknown device category", "name": "ConcurrentKernel", "events": 2}
    ]


def test_what_is_not_imported_is_counted_by_what_it_is(imported: Import) -> None:
    assert imported([*KINETO, {**KINETO[2], "ph": "i"}]).meta["not_imported"] == [
        {"kind": "category", "name": "Trace", "events": 1},
        {"kind": "category", "name": "gpu_user_annotation", "events": 1},
        {"kind": "phase", "name": "f", "events": 1},
        {"kind": "phase", "name": "i", "events": 1},
        {"kind": "phase", "name": "s", "events": 1},
    ]


def test_devices_versions_and_rank_are_those_of_the_trace(imported: Import) -> None:
    device = {"id": 1, "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 34084028416, "computeMajor": 7}
    outer = {
        "deviceProperties": [{**device, "computeMinor": 0, "numSms": 80}, {"no": "id"}, 3],
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    }
    run = imported(json.dumps({**outer, "traceEvents": KINETO}))
    assert run.meta["devices"] == [
        {
            "index": 1,
            "name": "Tesla V100-DGXS-32GB",
            "memory_bytes": 34084028416,
            "multiprocessors": 80,
            "compute_capability": "7.0",
        }
    ]
    assert run.meta["versions"] == {"CUDA runtime": "12.9", "CUDA driver": "13.0"}
    assert run.meta["processes"][0]["rank"] == 3
    assert rows(run, "SELECT name FROM call_tree WHERE kind = 'process'") == [("rank 3: python (7)",)]


@pytest.mark.parametrize(
    "damaged", ["3", '{"rank": "x"}', '{"rank": true}', '[{"id": true}]', '"[1"', "[[[]]]"]
)
def test_damaged_facts_of_a_trace_are_unknown(imported: Import, damaged: str) -> None:
    outer = f'"deviceProperties": {damaged}, "distributedInfo": {damaged}, "cuda_driver_version": {damaged}'
    run = imported(f'{{{outer}, "traceEvents": {json.dumps(KINETO)}}}')
    assert (run.meta["devices"], "rank" in run.meta["processes"][0]) == ([], False)
    assert len(tree(run)) == 10


def test_kernels_without_any_thread(imported: Import) -> None:
    run = imported([x("k", 5, 2, "kernel", 7, 0, device=0, stream=7), x("k", 9, 1, "kernel", 7, 0, device=0)])
    assert rows(run, "SELECT span_id, start_ns, process_id FROM kernels ORDER BY 2") == [
        (None, 0, 0),
        (None, 4_000, 0),
    ]
    assert [(row.name, row.calls, row.gpu_total_ns) for row in run.summary(by="kernel").rows] == [
        ("k", 2, 3_000)
    ]


def test_two_processes_keep_apart(imported: Import) -> None:
    run = imported([x("a", 0, 10, pid=5), x("b", 2, 3, pid=6), x("c", 3, 1, pid=6)])
    assert rows(run, "SELECT process_id, name, depth FROM spans ORDER BY name") == [
        (5, "a", 0),
        (6, "b", 0),
        (6, "c", 1),
    ]
    assert [each["process_id"] for each in run.meta["processes"]] == [6, 5]  # the busier one first


def test_an_imported_run_is_a_run(imported: Import, tmp_path: Path) -> None:
    run = imported(KINETO)
    assert "aten::addmm" in str(run.summary(by="operator"))
    assert "gemm" in run.flamegraph(tmp_path / "flame.html").read_text(encoding="utf-8")
    assert execute(["summary", str(run.path), "--json"]) == 0


def test_torch_profiler_and_its_table_agree(imported: Import, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("step"):
        (model(torch.randn(4, 8)) * 2).sum().backward()
    path = tmp_path / "kineto.json.gz"
    profiler.export_chrome_trace(str(path))
    run = gpuprof.import_trace(path, tmp_path / "kineto.gpuprof")
    found = {
        name: row for name, *row in rows(run, "SELECT name, count(*), sum(duration_ns) FROM spans GROUP BY 1")
    }
    table = {each.key: each for each in profiler.key_averages()}
    assert set(found) == set(table)
    for name, (calls, total_ns) in found.items():
        assert calls == table[name].count, name
        assert total_ns == pytest.approx(table[name].cpu_time_total * 1000, abs=1), name
    assert len(found) > 20
    own = {row.name: row.own_ns for row in run.summary(by="operator").rows}
    assert own["aten::addmm"] == pytest.approx(table["aten::addmm"].self_cpu_time_total * 1000, abs=1)


def test_an_operator_that_calls_its_own_overload_is_one(imported: Import) -> None:
    events = [x("aten::mul", 0, 10), x("aten::mul", 1, 8), x("aten::empty", 2, 1), x("aten::mul", 20, 5)]
    assert [each[1:3] for each in tree(imported(events))] == [
        ("aten::mul", None),
        ("aten::empty", "aten::mul"),
        ("aten::mul", None),
    ]


def test_begin_and_end_events(imported: Import) -> None:
    def at(phase: str, ts: float, name: str = "a", tid: int = 1) -> Event:
        return {"ph": phase, "ts": ts, "pid": 1, "tid": tid, "name": name}

    run = imported(
        [at("B", 1, "a"), at("B", 2, "b"), at("E", 3), at("E", 6), at("B", 4, "c", 2), at("E", 5, "", 2)]
    )
    assert tree(run) == [
        ("span", "a", None, 0, 5_000),
        ("span", "b", "a", 1_000, 1_000),
        ("span", "c", None, 3_000, 1_000),
    ]


def test_unbalanced_events_are_cut_off_and_counted(imported: Import) -> None:
    begin = {"ph": "B", "ts": 1, "pid": 1, "tid": 1, "name": "open"}
    run = imported([{**begin, "ph": "E", "ts": 0}, begin, x("a", 2, 7, pid=1)])
    assert tree(run) == [("span", "open", None, 0, 8_000), ("operator", "a", "open", 1_000, 7_000)]
    totals = run.meta["totals"]
    assert (totals["unfinished_spans"], totals["unmatched_ends"]) == (1, 1)


def test_negative_durations_are_left_out_and_reported(imported: Import) -> None:
    run = imported([x("a", 5, -1), x("b", 5, 1), x("c", "no time", 1)])
    assert [name for _, name, *_ in tree(run)] == ["b"]
    assert run.meta["complete"] is False
    assert damage(run) == [
        (DamageCode.TRACE_EVENTS_INVALID, 1),
        (DamageCode.TRACE_NEGATIVE_DURATIONS, 1),
    ]


def test_intervals_that_cross_become_siblings(imported: Import) -> None:
    run = imported([x("out", 0, 100), x("a", 10, 20), x("b", 20, 20), x("in b", 25, 5)])
    assert [each[1:3] for each in tree(run)] == [("out", None), ("a", "out"), ("b", "out"), ("in b", "b")]
    assert run.notes == [note(NoteCode.INTERVALS_CROSS, count=1)]


@pytest.mark.parametrize(
    "content", ['{"traceEvents": []}', "[]", "[", '{"traceEvents":[],"other":{"a":[1]}}']
)
def test_a_trace_of_no_events(imported: Import, content: str) -> None:
    run = imported(content)
    assert (tree(run), run.meta["complete"]) == ([], True)
    assert str(run.summary())


def test_truncated_json_keeps_what_was_whole(imported: Import) -> None:
    text = json.dumps({"traceEvents": [x("a", 1, 2), x("b", 5, 2)]})
    run = imported(text[:-20])
    assert [name for _, name, *_ in tree(run)] == ["a"]
    assert run.meta["complete"] is False
    assert damage(run) == [(DamageCode.TRACE_CUT, 1)]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
def test_a_small_gzip_keeps_what_was_whole_too(imported: Import, share: float) -> None:
    events = [x(f"name {number * 7919 % 10007}", number, 0.5) for number in range(600)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    run = imported(packed[: int(len(packed) * share)], "small.json.gz")
    assert run.meta["totals"]["spans"] == pytest.approx(600 * share, abs=100)
    assert [each.code for each in run.damage] == [DamageCode.TRACE_CUT]


def test_a_gzip_of_several_parts_is_read_to_its_end(imported: Import) -> None:
    text = json.dumps({"traceEvents": [x(f"name {number}", number, 0.5) for number in range(500)]}).encode()
    parts = [gzip.compress(text[:4000]), gzip.compress(text[4000:9000]), gzip.compress(text[9000:])]
    run = imported(b"".join(parts) + b"\0" * 512, "parts.json.gz")
    assert (run.meta["totals"]["spans"], run.meta["complete"]) == (500, True)


def test_truncated_gzip_keeps_what_was_whole(imported: Import) -> None:
    events = [x(f"name {number * 7919 % 10007}", number, 0.5) for number in range(20_000)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    run = imported(packed[: len(packed) // 2], "trace.json.gz")
    assert 1_000 < run.meta["totals"]["spans"] < 19_000
    assert [each.code for each in run.damage] == [DamageCode.TRACE_CUT]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty_trace"),
        ('{"traceEvents": [', "damaged"),
        ('{"traceEvents": [{"ph": "X", "name"', "damaged"),
        (gzip.compress(b'{"traceEvents": [' + b" " * 99, mtime=0)[:-9], "damaged"),
        ("hello", "not_a_trace"),
        ('{"nodes": [1, {"traceEvents": []}]}', "not_a_trace"),
        ('{"traceEvents": 3}', "not_a_trace"),
        ('{"traceEvents": [1, 2]}', "not_a_trace"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not_a_trace"),
        (b"\x1f\x8b\x08\x00garbage", "empty_trace"),
    ],
)
def test_what_is_no_trace_is_refused(imported: Import, tmp_path: Path, content: Any, reason: str) -> None:
    with refused(RunError, reason) as caught:
        imported(content)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.gpuprof"))


def test_events_after_damage_are_reported(imported: Import) -> None:
    run = imported('{"traceEvents": [' + json.dumps(x("a", 1, 2)) + ', nonsense, {"ph": "X"}]}')
    assert [name for _, name, *_ in tree(run)] == ["a"]
    assert damage(run) == [(DamageCode.TRACE_NOT_READABLE, 1)]
    assert run.damage[0].values["error"]


def test_names_and_ids_of_every_sort(imported: Import) -> None:
    hostile = '</script>\u202e"\\\n\x00é火😀;'
    events = [
        x(hostile, 1, 5, tid="main", pid="P"),
        x("half \ud800 pair", 2, 1, tid="main", pid="P"),
        x("", 1, 1, "", tid=-5),
        {"ph": "X", "name": "bare", "ts": "7.5", "dur": "0.25"},
    ]
    run = imported(events)
    names = {name: (start, duration) for _, name, _, start, duration in tree(run)}
    assert names[hostile] == (0, 5_000)
    assert names["half \ufffd pair"] == (1_000, 1_000)
    assert names["bare"] == (6_500, 250)
    assert {each["name"] for each in run.meta["threads"]} >= {"main"}


def test_times_are_exact_to_the_nanosecond(imported: Import) -> None:
    text = (
        '{"baseTimeNanoseconds": 1700000000000000000, "traceEvents": ['
        '{"ph":"X","pid":1,"tid":1,"name":"a","ts":1789012345678.123,"dur":0.001},'
        '{"ph":"X","pid":1,"tid":1,"name":"b","ts":1789012345678.125,"dur":1.5e1},'
        '{"ph":"X","pid":1,"tid":1,"name":"c","ts":1789012345700,"dur":12.3456}]}'
    )
    run = imported(text)
    assert [each[3:] for each in tree(run)] == [(0, 1), (2, 15_000), (21_877, 12_346)]
    assert run.meta["origin_unix_ns"] == str(1_700_000_000_000_000_000 + 1_789_012_345_678_123)


def test_depth_of_twenty_thousand_and_many_siblings(imported: Import) -> None:
    deep = [x("deep", number, 100_000 - 2 * number, "span") for number in range(20_000)]
    wide = [x("wide", number, 0.5, "span", tid=2) for number in range(50_000)]
    run = imported(deep + wide)
    assert rows(run, "SELECT max(depth), count(*) FROM spans") == [(19_999, 70_000)]


def test_a_run_that_exists_is_not_touched(imported: Import, tmp_path: Path) -> None:
    (tmp_path / "1.gpuprof").mkdir()
    (tmp_path / "1.gpuprof" / "mine").write_text("kept")
    with refused(RecordingError, "exists"):
        imported([x("a", 1, 2)])
    assert (tmp_path / "1.gpuprof" / "mine").read_text() == "kept"


def test_the_command_imports(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "net.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": KINETO}))
    assert execute(["import", str(path)]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'net.gpuprof'}\n"
    assert "gpuprof summary" in output.err
    refused_command(["import", str(path)], "exists", tmp_path / "net.gpuprof")
    refused_command(["import", str(tmp_path / "nothing.json")], "cannot_read", "No such file")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"\x00\x01")
    refused_command(["import", str(report)], "needs_nsys_export", report)


@pytest.mark.parametrize(
    ("trace", "run"),
    [
        ("a.json.gz", "a.gpuprof"),
        ("a.b.pt.trace.json", "a.b.gpuprof"),
        ("r.sqlite", "r.gpuprof"),
        (".json", ".json.gpuprof"),
    ],
)
def test_the_default_name_of_a_run(trace: str, run: str) -> None:
    assert default_run(Path(trace)) == Path(run)


def waiting(*waits: Event) -> list[Event]:
    """Launch a kernel of 100 us and wait for it, then wait once more for nothing."""
    return [
        x("cudaLaunchKernel", 0, 5, "cuda_runtime", correlation=1),
        x("gemm", 10, 100, "kernel", 7, 0, correlation=1, device=0, context=1, stream=7),
        x("cudaStreamSynchronize", 20, 95, "cuda_runtime", correlation=2),
        x("cudaDeviceSynchronize", 120, 12, "cuda_runtime", correlation=3),
        *waits,
    ]


def test_waits_have_the_names_of_kineto(imported: Import) -> None:
    run = imported(
        waiting(
            x("Stream Sync", 21, 93, "cuda_sync", 7, 0, correlation=2, stream=7, context=1),
            x("Context Sync", 121, 10, "cuda_sync", 7, 0, correlation=3, stream=-1, context=1),
            x("Event Sync", 133, 1, "cuda_sync", 7, 0, correlation=4, stream=-1, context=1),
        )
    )
    assert rows(run, "SELECT type, duration_ns FROM synchronizations ORDER BY start_ns") == [
        ("stream", 93_000),
        ("context", 10_000),
        ("event", 1_000),
    ]


def test_calls_are_the_waits_of_a_trace_without_records_of_waits(imported: Import) -> None:
    run = imported(waiting())
    assert rows(
        run, "SELECT type, start_ns, duration_ns, stream, correlation_id FROM synchronizations ORDER BY 2"
    ) == [("stream", 20_000, 95_000, None, 2), ("context", 120_000, 12_000, None, 3)]


def test_calls_that_wait_are_no_waits_without_any_work_on_a_gpu(imported: Import) -> None:
    run = imported([event for event in waiting() if event["cat"] != "kernel"])
    assert rows(run, "SELECT count(*) FROM synchronizations") == [(0,)]


def test_the_wall_time_includes_work_on_the_gpu_after_the_last_call(imported: Import) -> None:
    run = imported(
        [
            x("cudaLaunchKernel", 0, 5, "cuda_runtime", correlation=1),
            x("gemm", 10, 100, "kernel", 7, 0, correlation=1, device=0, context=1, stream=7),
        ]
    )
    assert run.meta["duration_ns"] == 110_000
