# SPDX-License-Identifier: Apache-2.0
"""What the widths of a flame graph can show: wall-clock time, counted work, launches."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_work import busy
from refusals import refused_command
from roofline_rows import know_ceilings
from run_edits import forget_parts, parquet_of
from simulated_training import MAIN, Planted, TrainingHost, train

import gpuprof
from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.calls import Calls, load_calls
from gpuprof.analyze.metrics import by_launches, on_main_threads, on_wall, weights_of
from gpuprof.analyze.tree_work import NOT_CLASSIFIED, bounds, layer_types
from gpuprof.run.format import KINDS


def make_tree(rows: list[tuple[int, str, str, int]]) -> CallTree:
    zeros = np.zeros(len(rows), dtype=np.int64)
    return CallTree(
        parent=np.array([row[0] for row in rows], dtype=np.int32),
        kind=np.array([KINDS.index(row[1]) for row in rows], dtype=np.uint8),
        name=np.arange(len(rows), dtype=np.int32),
        calls=np.array([row[3] for row in rows], dtype=np.int64),
        total_ns=zeros,
        own_ns=zeros,
        threads=zeros.astype(np.int32),
        process_id=np.ones(len(rows), dtype=np.int64),
        names=[row[2] for row in rows],
    )


def calls_of(*intervals: tuple[int, int, int]) -> Calls:
    node, start, end = np.array(intervals, dtype=np.int64).T
    return Calls(node, start, end - start, np.zeros(len(node)), np.ones(len(node), dtype=np.bool_))


META = {"processes": [{"process_id": 1, "start_ns": 0, "end_ns": 100}]}


def test_wall_time_counts_threads_once() -> None:
    tree = make_tree([(-1, "process", "p", 0), (0, "span", "work", 3)])
    wall = on_wall(tree, calls_of((1, 10, 30), (1, 20, 40), (1, 60, 70)), META)
    assert wall.total_ns.tolist() == [100, 40]
    assert wall.own_ns.tolist() == [60, 40]


def test_own_wall_time_is_outside_of_all_children_on_any_thread() -> None:
    rows = [(-1, "process", "p", 0), (0, "span", "step", 1), (1, "span", "a", 1), (1, "span", "b", 1)]
    wall = on_wall(make_tree(rows), calls_of((1, 0, 50), (2, 10, 30), (3, 20, 60)), META)
    assert wall.total_ns.tolist() == [100, 50, 20, 40]
    assert wall.own_ns.tolist() == [50, 10, 20, 40]  # b continues when the step has ended


def test_a_group_without_calls_is_open_while_its_children_are() -> None:
    rows = [
        (-1, "process", "p", 0),
        (0, "backward", "backward", 0),
        (1, "layer", "fc", 0),
        (2, "backward", "x", 2),
    ]
    wall = on_wall(make_tree(rows), calls_of((3, 10, 20), (3, 50, 60)), META)
    assert wall.total_ns.tolist() == [100, 20, 20, 20]
    assert wall.own_ns.tolist() == [80, 0, 0, 20]


def test_the_main_process_has_the_time_of_its_main_thread(record: Any) -> None:
    def body() -> None:
        def work(name: str) -> None:
            with gpuprof.span("shared"), gpuprof.span(name):
                busy(0.02)

        thread = threading.Thread(target=work, args=("in thread",))
        thread.start()
        thread.join()
        work("in main")

    run = record(body).run
    tree = run.call_tree
    calls = load_calls(run._folder, tree)
    assert calls is not None
    main = on_main_threads(run._folder, tree, calls)
    assert main is not None
    times = dict(zip((tree.names[name] for name in tree.name.tolist()), main.total_ns.tolist(), strict=True))
    (process,) = run.meta["processes"]
    assert main.own_ns.sum() == pytest.approx(process["end_ns"] - process["start_ns"], abs=100)
    assert times["in thread"] == 0
    assert times["in main"] == tree.total_ns[tree.name == tree.names.index("in main")].sum()
    assert times["shared"] < tree.total_ns[tree.name == tree.names.index("shared")].sum()


def test_functions_of_other_threads_have_no_wall_time_of_the_main_process(tmp_path: Path) -> None:
    begin_of_thread = "Thread._bootstrap (threading.py:1)"
    host = train(TrainingHost(), Planted(sleep=9))
    of_thread = [{**each, "thread_id": 2, "frames": [begin_of_thread]} for each in host.samples[:9]]
    # A stack that changed while it was read.
    torn = {**host.samples[3], "frames": [begin_of_thread, *MAIN]}
    host.samples += [*of_thread, torn]
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    rows = [
        (-1, "process", "p", 0),
        (0, "python", MAIN[0], -1),
        (1, "waiting", "time.sleep (built-in)", -1),
        (0, "python", begin_of_thread, -1),
        (3, "waiting", "lock.acquire (built-in)", -1),
        (0, "waiting", "idle threads", -1),
    ]
    times = np.array([1, 2, 4, 8, 16, 32])
    tree = dataclasses.replace(make_tree(rows), own_ns=times, process_id=np.full(6, run.meta["process_id"]))
    none = np.zeros(0, dtype=np.int64)
    calls = Calls(none, none, none, none.astype(float), none.astype(np.bool_))
    main = on_main_threads(run._folder, tree, calls)
    assert main is not None
    assert main.own_ns.tolist() == [1, 2, 4, 0, 0, 0]
    assert main.total_ns.tolist() == [7, 6, 4, 0, 0, 0]


def test_launches_are_kernels_and_not_copies() -> None:
    rows = [(-1, "process", "p", 0), (0, "span", "s", 2), (1, "kernel", "k", 7), (1, "transfer", "copy", 3)]
    assert by_launches(make_tree(rows)).total_ns.tolist() == [7, 7, 7, 0]


def test_calls_add_up_to_the_tree(record: Any) -> None:
    def body() -> None:
        def work() -> None:
            for _ in range(3):
                with gpuprof.span("outer"), gpuprof.span("inner"):
                    pass

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        work()

    run = record(body).run
    tree = run.call_tree
    calls = load_calls(run._folder, tree)
    assert calls is not None
    sums = np.bincount(calls.node, calls.duration_ns, minlength=len(tree))
    own = np.bincount(calls.node, calls.own_ns, minlength=len(tree))
    assert np.bincount(calls.node, minlength=len(tree))[1:].tolist() == [9, 9]
    assert sums[1:].tolist() == tree.total_ns[1:].tolist()
    assert own[1:] == pytest.approx(tree.own_ns[1:], abs=9)
    wall = on_wall(tree, calls, run.meta)
    assert (wall.total_ns[1:] <= tree.total_ns[1:]).all()
    assert wall.total_ns[0] >= wall.total_ns[1]


def test_a_run_without_paths_has_neither_wall_time_nor_intervals(record: Any) -> None:
    run = record(lambda: None).run
    names = ", ".join(name for name in run.sql("FROM spans").columns if name not in ("path_id", "rank"))
    target = parquet_of(run.path, "spans")
    rows = run.sql(f"SELECT {names} FROM spans").fetchall()
    assert rows == []
    run.sql(f"SELECT {names} FROM spans").write_parquet(str(target.with_name("old.parquet")))
    target.unlink()
    forget_parts(run.path)
    old = gpuprof.open(run.path)
    assert load_calls(old._folder, old.call_tree) is None
    assert [weight.name for weight in weights_of(old._folder, old.call_tree)] == ["cpu"]


# ---- counted work --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    x = torch.randn(16, 32)
    model(x).sum().backward()
    out = tmp_path_factory.mktemp("counted") / "run.gpuprof"
    with pytest.MonkeyPatch.context() as monkeypatch:
        know_ceilings(monkeypatch)
        with gpuprof.profile(model, out=out, work=True) as recording:
            for _ in range(4):
                model(x).sum().backward()
    return recording.run


def test_flops_are_at_the_operators_that_do_them(counted: gpuprof.Run) -> None:
    tree = counted.call_tree
    weights = {weight.name: weight for weight in weights_of(counted._folder, tree)}
    flops = weights["flops"].tree
    if any("left out" in note for note in weights["flops"].notes):
        pytest.skip("a busy machine made the calls too different to be one work")
    forward = {
        tree.names[int(tree.name[tree.parent[tree.parent[node]]])]: int(flops.own_ns[node])
        for node in range(len(tree))
        if tree.names[int(tree.name[node])] == "aten::addmm"
    }
    # Two FLOPs a multiply-add, four calls.
    assert forward == {"0": 4 * 2 * 16 * 32 * 64, "2": 4 * 2 * 16 * 64 * 8}
    ((of_one_call,),) = counted.sql("SELECT sum(flops) FROM work").fetchall()
    assert flops.total_ns[0] == 4 * of_one_call
    assert weights["bytes"].tree.total_ns[0] > 0
    assert (weights["flops"].unit, weights["bytes"].unit) == ("FLOP", "B")


def test_layers_know_their_class(counted: gpuprof.Run) -> None:
    tree = counted.call_tree
    types = layer_types(tree, counted.meta)
    assert types is not None
    layers = {
        tree.names[int(tree.name[node])]: types[node]
        for node in range(len(tree))
        if KINDS[tree.kind[node]] == "layer"
    }
    assert layers == {"Sequential": "Sequential", "0": "Linear", "1": "ReLU", "2": "Linear"}
    inside = [types[node] for node in range(len(tree)) if tree.names[int(tree.name[node])] == "aten::addmm"]
    assert inside == ["Linear", "Linear"]
    assert layer_types(tree, {**counted.meta, "layer_types": None}) is None


def test_bounds_are_those_of_the_roofline(counted: gpuprof.Run) -> None:
    tree, roofline = counted.call_tree, counted.roofline()
    found = bounds(tree, roofline)
    rows = {(row.layer, row.operator): row.bound for row in roofline.operators if row.phase == "forward"}
    addmm = [node for node in range(len(tree)) if tree.names[int(tree.name[node])] == "aten::addmm"]
    assert [found[node] for node in addmm] == [rows["0", "aten::addmm"], rows["2", "aten::addmm"]]
    assert found[0] == NOT_CLASSIFIED


def page_head(page: str) -> dict[str, Any]:
    text = re.search(r'id="head">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    head: dict[str, Any] = json.loads(text[1])
    return head


def test_the_page_has_all_weights_and_colors_of_the_run(counted: gpuprof.Run, tmp_path: Path) -> None:
    page = counted.flamegraph(tmp_path / "a.html", weight="wall").read_text(encoding="utf-8")
    head = page_head(page)
    keys = [view["key"] for view in head["views"]]
    assert keys[:3] == ["main", "cpu", "wall"]
    assert keys[head["first"]] == "wall"
    assert '<dt id="measure">Wall-clock time</dt>' in page
    assert [each["key"] for each in head["colorings"]][:1] == ["type"]
    packed = re.search(r'id="columns">(.*?)</script>', page, re.DOTALL)
    assert packed is not None
    raw = base64.b64decode(packed[1])
    raw = gzip.decompress(raw) if head["gzip"] else raw
    sizes = {"float64": 8, "float32": 4, "int32": 4, "uint8": 1}
    used = head["count"] * sum(sizes[kind] for _, kind in head["columns"])
    assert len(raw) == -(-used // 8) * 8  # padded to whole numbers of 8 bytes


@pytest.mark.parametrize("weight", ["flops", "bytes", "gpu", "launches"])
def test_a_weight_that_the_run_lacks_is_one_line(weight: str, record: Any, tmp_path: Path) -> None:
    run = record(lambda: None).run
    command = ["flamegraph", run.path, "--weight", weight, "-o", tmp_path / "a.html"]
    refused_command(command, "no_weight", run.path)


def test_work_of_unlike_calls_is_left_out_and_reported(counted: gpuprof.Run) -> None:
    from gpuprof.analyze import tree_work

    tree = dataclasses.replace(counted.call_tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_work, "why_unlike", lambda *_: "were given different inputs")
        weighed, notes = tree_work.with_counted(tree, counted._folder, "flops")
    assert not weighed.own_ns.any()
    assert notes == ["Sequential is left out: its calls were not all given the like, and do other work"]
