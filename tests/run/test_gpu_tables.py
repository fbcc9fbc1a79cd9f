# SPDX-License-Identifier: Apache-2.0
"""Replay: recordings with GPU records made by hand, closed into a run. No GPU is involved."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from run_codes import damage_codes, note_codes

import gpuprof
from gpuprof import _native
from gpuprof.analyze.call_tree import on_gpu
from gpuprof.analyze.calls import load_gpu_calls
from gpuprof.run import gpu_records, gpu_tables
from gpuprof.run.format import KINDS, TABLES
from gpuprof.run.gpu_records import (
    CALL,
    COPY,
    EVENT,
    FILL,
    GRAPH,
    HEAD,
    KERNEL,
    LAYER,
    MAGIC,
    RECORD,
    SYNCHRONIZATION,
    UNKNOWN,
    VERSION,
)

UNKNOWN_LONG = 0xFFFFFFFFFFFFFFFF


def test_record_is_128_bytes() -> None:
    assert RECORD.itemsize == 128
    assert HEAD.size == 64


class GpuBench:
    """Records real spans; the GPU's half is written by hand, with launches where the test puts them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.tail = b""

    def record(self, kind: int, correlation: int, start: int, duration: int, **fields: int) -> None:
        defaults = dict.fromkeys((RECORD.names or ())[4:-1], UNKNOWN)
        defaults |= dict.fromkeys(("thread", "event_sync_id", "event_id"), 0)
        known = {"graph_node_id": UNKNOWN_LONG, "bytes": UNKNOWN_LONG, "kind": kind, "reserved": 0}
        times = {"start_ns": self.now + start, "end_ns": self.now + start + duration}
        self.records.append({**defaults, **known, **times, "correlation_id": correlation, **fields})

    @property
    def now(self) -> int:
        return self._now

    def run(self, program: Callable[[GpuBench], None]) -> gpuprof.Run:
        with gpuprof.profile(out=self.path) as recording:
            self._now = int(_native.clock_info()["monotonic_ns"]) + 10**9  # after every launch
            program(self)
            self._write_records()
        return recording.run

    def _write_records(self) -> None:
        if not self.records and not self.tail:
            return
        segment = next((self.path / "segments").glob("*.segment"))
        process_id, key = segment.name.split(".")[0].split("-")
        rows = np.zeros(len(self.records), dtype=RECORD)
        for row, record in zip(rows, self.records, strict=True):
            for name, value in record.items():
                row[name] = value
        head = HEAD.pack(MAGIC, VERSION, RECORD.itemsize, int(process_id), os.getppid(), int(key))
        (segment.parent / f"{process_id}-{key}.gpu").write_bytes(head + rows.tobytes() + self.tail)


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path / "run.gpuprof")


def rows(run: gpuprof.Run, query: str) -> list[tuple[Any, ...]]:
    return run.sql(query).fetchall()


def launch(correlation: int) -> None:
    _native.link_gpu_work("launch", correlation)


def capture(node: int) -> None:
    _native.link_gpu_work("graph_node", node)


def end_launch(correlation: int) -> None:
    _native.link_gpu_work("launch_end", correlation)


def clone(original: int, copy: int) -> None:
    _native.link_gpu_work("graph_clone", original, copy)


def test_kernels_find_the_span_that_launched_them(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        name = _native.intern("gemm<float>")
        with gpuprof.span("step"):
            launch(1)
            with gpuprof.span("inner"):
                launch(2)
        launch(3)
        # In no order, as the driver hands them out.
        bench.record(KERNEL, 3, 300, 7, name=name, stream=7, grid_x=4, registers=32)
        bench.record(KERNEL, 1, 100, 10, name=name)
        bench.record(KERNEL, 2, 200, 20)
        bench.record(
            KERNEL, 99, 400, 1, graph_id=0, graph_node_id=0
        )  # launched by a thread that was not recorded

    run = bench.run(program)
    found = rows(
        run,
        "select k.kernel_id, k.name, s.name, k.duration_ns, k.stream, k.grid_x, k.registers, "
        "k.launch_ns between coalesce(s.start_ns, 0) and k.start_ns from kernels k "
        "left join spans s using (span_id) order by k.kernel_id",
    )
    assert found == [
        (0, "gemm<float>", "step", 10, None, None, None, True),
        (1, "(unknown kernel)", "inner", 20, None, None, None, True),
        (2, "gemm<float>", None, 7, 7, 4, 32, True),
        (3, "(unknown kernel)", None, 1, None, None, None, None),
    ]
    assert [(note.code, note.values) for note in run.notes] == [("unlaunched", {"count": 1, "records": 4})]


def test_call_tree_holds_the_gpu_below_its_calls(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        name = _native.intern("relu")
        for correlation in (1, 2):
            with gpuprof.span("step"):
                launch(correlation)
                launch(correlation + 10)
            bench.record(KERNEL, correlation, 100 * correlation, 10, name=name)
            bench.record(COPY, correlation + 10, 100 * correlation, 5, source_kind=1, destination_kind=3)
        bench.record(KERNEL, 77, 900, 3, name=name)

    tree = bench.run(program).call_tree
    assert tree.gpu_ns is not None
    found = [
        (tree.names[tree.name[node]], tree.names[tree.name[tree.parent[node]]].split()[0], calls, gpu)
        for node, (calls, gpu) in enumerate(zip(tree.calls.tolist(), tree.gpu_ns.tolist(), strict=True))
        if gpu
    ]
    assert found == [
        ("relu", "process", 1, 3),
        ("relu", "step", 2, 20),
        ("copy pageable to device", "step", 2, 10),
    ]
    assert (np.diff(tree.parent) >= -len(tree)).all()
    assert all(tree.parent[node] < node for node in range(len(tree)))


def test_replayed_kernels_belong_to_what_captured_them(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        with gpuprof.span("capture"), gpuprof.span("layer"):
            capture(5)
        clone(5, 50)
        clone(50, 500)
        with gpuprof.span("replay"):
            launch(1)
        bench.record(KERNEL, 1, 100, 10, graph_id=9, graph_node_id=500)
        bench.record(KERNEL, 1, 200, 20, graph_id=8, graph_node_id=4)  # of a graph from before
        bench.record(KERNEL, 1, 300, 30, graph_id=8, graph_node_id=6)

    run = bench.run(program)
    found = rows(
        run,
        "select s.name, k.graph_id, k.graph_node_id, k.duration_ns, k.launch_ns is null "
        "from kernels k join spans s using (span_id) order by k.start_ns",
    )
    assert found == [("layer", 9, 500, 10, False), ("replay", 8, 4, 20, False), ("replay", 8, 6, 30, False)]
    units = rows(run, "select name, calls, gpu_ns from call_tree where kind = 'kernel' order by gpu_ns")
    assert units == [("(unknown kernel)", 1, 10), ("CUDA graph 8", 1, 50)]
    assert [(note.code, note.values) for note in run.notes] == [("foreign_graphs", {"graphs": [8]})]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_kernels_of_compiled_code_belong_to_the_compiled_module(bench: GpuBench) -> None:
    """Both ways: a compiler whose code launches a kernel that is named as Inductor names its own."""
    torch = pytest.importorskip("torch")
    from torch._dynamo.backends.common import aot_autograd

    def compiler(name: str, correlation: int) -> Callable[..., Any]:
        def compile_graph(graph: Any, _inputs: Any) -> Any:
            def compiled(arguments: list[Any]) -> Any:
                launch(correlation)
                bench.record(KERNEL, correlation, 100 * correlation, 10, name=_native.intern(name))
                return graph.forward(*arguments)

            compiled._boxed_call = True  # type: ignore[attr-defined]
            return compiled

        return compile_graph

    backend = aot_autograd(
        fw_compiler=compiler("triton_per_fused_native_layer_norm_0", 1),
        bw_compiler=compiler("triton_per_fused_native_layer_norm_backward_0", 2),
    )
    inner = torch.compile(torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.GELU()), backend=backend)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), inner)
    tree = bench.run(lambda _bench: model(torch.ones(2, 4)).sum().backward()).call_tree
    found = {}
    for node in range(len(tree)):
        if tree.gpu_ns is None or not tree.gpu_ns[node]:
            continue
        above = [node]
        while tree.parent[above[-1]] >= 0:
            above.append(tree.parent[above[-1]])
        layers = [tree.names[tree.name[each]] for each in above if KINDS[tree.kind[each]] == "layer"]
        found[tree.names[tree.name[node]]] = (
            layers,
            any(tree.names[tree.name[n]] == "backward" for n in above),
        )
    assert found == {
        "triton_per_fused_native_layer_norm_0": (["1", "Sequential"], False),
        "triton_per_fused_native_layer_norm_backward_0": (["1", "Sequential"], True),
    }
    torch._dynamo.reset()


def test_transfers_and_waits(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        with gpuprof.span("load"):
            launch(1)
            launch(2)
            launch(3)
        bench.record(COPY, 1, 100, 10, bytes=4096, source_kind=2, destination_kind=3, device=0)
        bench.record(FILL, 2, 200, 20, bytes=64, destination_kind=3)
        bench.record(SYNCHRONIZATION, 3, 300, 30, detail=3)

    run = bench.run(program)
    assert rows(
        run, "select kind, bytes, src, dst, device, duration_ns from transfers order by start_ns"
    ) == [
        ("copy", 4096, "pinned", "device", 0, 10),
        ("fill", 64, None, "device", None, 20),
    ]
    assert rows(
        run, "select type, s.name, w.duration_ns from synchronizations w join spans s using (span_id)"
    ) == [("stream", "load", 30)]


def test_ends_of_launches(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        with gpuprof.span("step"):
            launch(1)
            end_launch(1)
            launch(2)
            launch(3)  # inside the other's call
            end_launch(3)
            end_launch(2)
        for correlation in (1, 2, 4):
            bench.record(KERNEL, correlation, 100, 10)
        bench.record(COPY, 3, 100, 10)

    run = bench.run(program)
    assert rows(
        run, "select correlation_id, launch_end_ns >= launch_ns from kernels order by correlation_id"
    ) == [(1, True), (2, None), (4, None)]
    assert rows(run, "select launch_end_ns >= launch_ns from transfers") == [(True,)]


def test_events_and_what_waits_for_them(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        with gpuprof.span("record"):
            launch(1)
            end_launch(1)
        with gpuprof.span("wait"):
            launch(2)
        for correlation, sync_id in ((1, 1 << 33), (9, 77)):
            times = {"start_ns": 0, "end_ns": 0}
            bench.record(EVENT, correlation, 0, 0, event_id=5, event_sync_id=sync_id, stream=7, **times)
        bench.record(SYNCHRONIZATION, 2, 300, 30, detail=2, event_id=5, event_sync_id=1 << 33, stream=13)
        bench.record(SYNCHRONIZATION, 3, 400, 30, detail=4)

    run = bench.run(program)
    assert rows(
        run,
        "select type, s.name, stream, event_id, event_sync_id, w.start_ns >= s.start_ns, w.duration_ns >= 0 "
        "from synchronizations w left join spans s using (span_id)",
    ) == [
        ("event record", None, 7, 5, 77, None, None),
        ("event record", "record", 7, 5, 1 << 33, True, True),
        ("stream waits for event", "wait", 13, 5, 1 << 33, True, True),
        ("context", None, None, None, None, None, True),
    ]
    assert rows(
        run,
        "select s.name from synchronizations w join synchronizations r using (event_sync_id) "
        "join spans s on s.span_id = r.span_id where w.type = 'stream waits for event' "
        "and r.type = 'event record'",
    ) == [("record",)]


def test_graphs_as_a_whole(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        for correlation in (1, 2):
            with gpuprof.span("replay"):
                launch(correlation)
            bench.record(GRAPH, correlation, 1000 * correlation, 500, graph_id=9, graph_node_id=0, stream=7)

    run = bench.run(program)
    assert (
        rows(
            run,
            "select k.name, s.name, graph_id, graph_node_id, k.duration_ns, launch_ns is null "
            "from kernels k join spans s using (span_id)",
        )
        == [("CUDA graph 9", "replay", 9, None, 500, False)] * 2
    )
    leaves = rows(run, "select name, calls, gpu_ns from call_tree where kind = 'kernel'")
    assert leaves == [("CUDA graph 9", 2, 1000)]
    assert run.meta["notes"] == []


def test_launches_from_records_of_calls(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        thread = threading.get_native_id()
        now = int(_native.clock_info()["monotonic_ns"])
        with gpuprof.span("step"):
            with gpuprof.span("inner"):
                inner = int(_native.clock_info()["monotonic_ns"])
            outer = int(_native.clock_info()["monotonic_ns"])
        after = int(_native.clock_info()["monotonic_ns"])
        # The runtime's call and the driver's inside it, in no order.
        calls = [(2, outer, thread), (1, inner, thread), (3, after, thread), (4, now, 999_999_999)]
        for correlation, start, thread_id in calls:
            for shift, length in ((50, 100), (0, 200)):
                times = {"start_ns": start + shift, "end_ns": start + shift + length}
                bench.record(CALL, correlation, 0, 0, thread=thread_id, **times)
            bench.record(KERNEL, correlation, 100 * correlation, 10)
        bench.record(KERNEL, 4, 900, 30, graph_id=8, graph_node_id=6)

    run = bench.run(program)
    found = rows(
        run,
        "select k.correlation_id, s.name, k.launch_end_ns - k.launch_ns between 198 and 202 from kernels k "
        "left join spans s using (span_id) order by k.start_ns",
    )
    names = {1: "inner", 2: "step", 3: None, 4: None}
    assert found == [(correlation, names[correlation], True) for correlation in (1, 2, 3, 4, 4)]
    assert note_codes(run.meta) == ["unseen_graphs"]


def test_batches_join_alike(bench: GpuBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tables, "BATCH_RECORDS", 7)
    monkeypatch.setattr(gpu_tables, "JOINED_LAUNCHES", 6)
    monkeypatch.setattr(gpu_tables, "SORTED_ROWS", 9)

    def program(bench: GpuBench) -> None:
        for correlation in range(1, 101):
            with gpuprof.span(f"step {correlation}"):
                launch(correlation)
            bench.record(KERNEL, correlation, 1000 - correlation, correlation)
            bench.record(COPY, correlation, correlation // 20, correlation)
        for correlation in (0, 101, UNKNOWN):  # of no launch
            bench.record(KERNEL, correlation, 2000, 7)

    run = bench.run(program)
    found = rows(run, "select s.name, k.duration_ns, kernel_id from kernels k join spans s using (span_id)")
    assert sorted(found) == sorted((f"step {n}", n, 100 - n) for n in range(1, 101))
    assert rows(run, "select kernel_id from kernels") == [(number,) for number in range(103)]
    copies = rows(run, "select s.name, t.start_ns from transfers t join spans s using (span_id)")
    assert sorted(name for name, _ in copies) == sorted(f"step {number}" for number in range(1, 101))
    assert rows(run, "select start_ns from transfers") == sorted((start,) for _, start in copies)
    assert len(list((run.path / "kernels" / "rank=0").iterdir())) > 5


def test_without_a_gpu_nothing_is_claimed(bench: GpuBench) -> None:
    run = bench.run(lambda bench: None)
    assert run.call_tree.gpu_ns is None
    assert rows(run, "select count(*), sum(duration_ns) from kernels") == [(0, None)]
    assert rows(run, "select distinct gpu_ns from call_tree") == [(None,)]


def two_layers(bench: GpuBench) -> None:
    gemm, relu = _native.intern("gemm"), _native.intern("relu")
    with gpuprof.span("model"):
        launch(1)
        with gpuprof.span("head"):
            launch(2)
            launch(3)
    bench.record(KERNEL, 1, 100, 1_000, name=gemm)
    bench.record(KERNEL, 2, 2_000, 5_000, name=gemm)
    bench.record(COPY, 3, 9_000, 250, source_kind=3, destination_kind=2)
    bench.record(KERNEL, 3, 9_500, 750, name=relu)


def test_summary_has_the_gpu_next_to_the_cpu(bench: GpuBench) -> None:
    summary = bench.run(two_layers).summary("span")
    assert summary.gpu_total_ns == 7_000
    found = [(row.name, row.gpu_total_ns, row.gpu_own_ns, row.gpu_share) for row in summary.rows]
    assert found == [("head", 6_000, 6_000, 6 / 7), ("model", 7_000, 1_000, 1 / 7)]
    text = str(summary)
    assert "gpu self" in text
    assert "85.7%" in text
    assert "spans cover 7.00 us of the 7.00 us on GPUs" in text


def test_summary_by_kernel(bench: GpuBench) -> None:
    summary = bench.run(two_layers).summary("kernel")
    found = [(row.name, row.kind, row.calls, row.total_ns, row.mean_ns, row.share) for row in summary.rows]
    assert found == [
        ("gemm", "kernel", 2, 6_000, 3_000, 6 / 7),
        ("relu", "kernel", 1, 750, 750, 0.75 / 7),
        ("copy device to pinned", "transfer", 1, 250, 250, 0.25 / 7),
    ]
    assert "7.00 us on GPUs" in str(summary)


def test_flame_graph_is_weighed_by_the_gpu(bench: GpuBench, tmp_path: Path) -> None:
    run = bench.run(two_layers)
    page = run.flamegraph(tmp_path / "gpu.html").read_text(encoding="utf-8")
    assert '<dt id="measure">GPU time</dt><dd id="total">7.00 us</dd>' in page
    assert '"gemm"' in page
    assert '<dt id="measure">Thread time</dt>' in run.flamegraph(
        tmp_path / "cpu.html", weight="cpu"
    ).read_text("utf-8")


def test_single_kernels_add_up_to_the_leaves_of_the_tree(bench: GpuBench) -> None:
    run = bench.run(two_layers)
    calls = load_gpu_calls(run._folder)
    assert calls is not None
    sums = np.bincount(calls.node, calls.duration_ns, minlength=len(run.call_tree))
    assert run.call_tree.gpu_ns is not None
    assert sums.tolist() == run.call_tree.gpu_ns.tolist()


def test_launches_are_a_weight_of_the_page(bench: GpuBench, tmp_path: Path) -> None:
    page = bench.run(two_layers).flamegraph(tmp_path / "a.html", weight="launches").read_text("utf-8")
    assert '<dt id="measure">Kernel launches</dt><dd id="total">3</dd>' in page


def test_gpu_weight_without_gpu_work(bench: GpuBench, tmp_path: Path) -> None:
    run = bench.run(lambda bench: None)
    with refused(gpuprof.RunError, "no_weight", "GPU"):
        run.flamegraph(tmp_path / "gpu.html", weight="gpu")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "shorter than its head"),
        (b"GPUPROFG", "shorter than its head"),
        (b"x" * 200, "its head is damaged"),
        (struct.pack("<8sIIIIQ32x", MAGIC, 2, 128, 1, 1, 1), "its head is damaged"),
        (struct.pack("<8sIIIIQ32x", MAGIC, 1, 64, 1, 1, 1), "its head is damaged"),
        (HEAD.pack(MAGIC, 1, 128, 1, 1, 1), None),
    ],
)
def test_a_file_that_is_none(bench: GpuBench, content: bytes, reason: str | None) -> None:
    def program(bench: GpuBench) -> None:
        with gpuprof.span("work"):
            (bench.path / "segments" / "1-1.gpu").write_bytes(content)

    run = bench.run(program)
    (damage,) = run.damage
    assert damage.code == ("gpu_file_without_process" if reason is None else "gpu_file")
    assert damage.values.get("error") == reason
    assert not run.meta["complete"]
    assert rows(run, "select name from spans") == [("work",)]


def test_a_file_that_was_cut_off(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        launch(1)
        bench.record(KERNEL, 1, 100, 10)
        bench.tail = b"\x01" * 100

    run = bench.run(program)
    assert rows(run, "select count(*) from kernels") == [(1,)]
    assert damage_codes(run.meta) == ["record_cut"]


def test_records_that_cannot_be_are_left_out(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        bench.record(KERNEL, 1, -bench.now, 0)  # never ended: both times are zero
        bench.record(KERNEL, 2, 100, -50)
        bench.record(KERNEL, 3, 100, 50, name=4_000_000)
        bench.record(6789, 4, 100, 50)

    run = bench.run(program)
    assert rows(run, "select correlation_id, name from kernels") == [(3, "(unknown kernel)")]


def test_what_is_kept_meanwhile_is_removed(bench: GpuBench) -> None:
    def program(bench: GpuBench) -> None:
        launch(1)
        bench.record(KERNEL, 1, 100, 10)

    run = bench.run(program)
    assert {entry.name for entry in run.path.iterdir()} == {*TABLES, "meta.json"}
    assert gpu_records.find_files(run.path) == ([], [])


def test_layers_between_events_are_counted_less_those_inside_them(bench: GpuBench) -> None:
    outer, inner, aside, cut_off = (0x80000000 + number for number in range(4))

    def program(bench: GpuBench) -> None:
        with gpuprof.span("outer"):
            launch(outer)
            with gpuprof.span("inner"):
                launch(inner)
            with gpuprof.span("aside"):
                launch(aside)
        bench.record(LAYER, inner, 100, 300, detail=outer, stream=0)
        bench.record(LAYER, aside, 100, 700, stream=1)
        bench.record(LAYER, outer, 0, 1000, stream=0)
        # The layer around it never ended, and what launched it was not recorded.
        bench.record(LAYER, cut_off, 2000, 50, detail=0x80000010, stream=0)

    run = bench.run(program)
    found = dict(rows(run, "SELECT name, gpu_ns FROM call_tree WHERE kind = 'span'"))
    assert found == {"outer": 700, "inner": 300, "aside": 700}
    assert rows(run, "SELECT gpu_ns FROM call_tree WHERE parent_id IS NULL") == [(50,)]
    assert rows(run, "SELECT count(*) FROM call_tree WHERE kind = 'kernel'") == [(0,)]
    assert rows(run, "SELECT count(*) FROM kernels") == [(0,)]
    tree = on_gpu(run.call_tree)
    assert tree.total_ns[tree.names.index("outer") == tree.name].tolist() == [1700]
