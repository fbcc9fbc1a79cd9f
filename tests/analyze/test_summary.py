# SPDX-License-Identifier: Apache-2.0
"""Summaries of hand-made trees, against values computed by hand."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest
from refusals import refused

from gpuprof.analyze.call_tree import CallTree, processes_of, with_unique_layers
from gpuprof.analyze.summary import Summary, SummaryRow, summarize
from gpuprof.errors import RunError
from gpuprof.run.format import KINDS
from gpuprof.text.sanitize import cell_width

# A node by hand: depth, kind, name, calls, total_ns, own_ns[, threads].
Node = tuple[int, str, str, int, int, int] | tuple[int, str, str, int, int, int, int]


def make_tree(*nodes: Node) -> CallTree:
    """Build a tree from nodes in pre-order; a process' name carries its id, as in "python (10)"."""
    names = list(dict.fromkeys(node[2] for node in nodes))
    parent, path, process, processes = [], [], 0, []
    for index, node in enumerate(nodes):
        path = [*path[: node[0]], index]
        parent.append(path[-2] if node[0] else -1)
        process = process if node[0] else int(node[2].split("(")[1].rstrip(")"))
        processes.append(process)
    return CallTree(
        parent=np.array(parent, dtype=np.int32),
        kind=np.array([KINDS.index(node[1]) for node in nodes], dtype=np.uint8),
        name=np.array([names.index(node[2]) for node in nodes], dtype=np.int32),
        calls=np.array([node[3] for node in nodes], dtype=np.int64),
        total_ns=np.array([node[4] for node in nodes], dtype=np.int64),
        own_ns=np.array([node[5] for node in nodes], dtype=np.int64),
        threads=np.array([node[6] if len(node) > 6 else 1 for node in nodes], dtype=np.int32),
        process_id=np.array(processes, dtype=np.int64),
        names=names,
    )


def by_name(summary: Summary) -> dict[str, SummaryRow]:
    rows = {row.name: row for row in summary.rows}
    assert len(rows) == len(summary.rows)
    return rows


TRAINING = make_tree(
    (0, "process", "python (10)", 1, 1000, 50),
    (1, "span", "step", 4, 700, 60),
    (2, "layer", "Net", 4, 640, 20),
    (3, "layer", "fc1", 4, 320, 30),
    (4, "operator", "aten::linear", 4, 290, 90),
    (5, "operator", "aten::addmm", 4, 200, 200),
    (3, "layer", "fc2", 4, 300, 100),
    (4, "operator", "aten::addmm", 8, 200, 200),
    (1, "backward", "autograd::engine::evaluate_function: AddmmBackward0", 4, 250, 50, 2),
    (2, "operator", "AddmmBackward0", 4, 200, 80, 2),
    (3, "operator", "aten::mm", 8, 120, 120, 2),
)


def test_a_layer_owns_its_operators_but_not_its_child_layers() -> None:
    summary = summarize(TRAINING, "layer")
    rows = by_name(summary)
    assert [row.name for row in summary.rows] == ["fc1", "fc2", "Net"]
    assert (rows["fc1"].own_ns, rows["fc1"].total_ns) == (30 + 90 + 200, 320)
    assert (rows["fc2"].own_ns, rows["fc2"].total_ns) == (300, 300)
    assert (rows["Net"].own_ns, rows["Net"].total_ns) == (20, 640)
    assert (summary.covered_ns, summary.total_ns) == (640, 1000)
    assert rows["fc1"].share == pytest.approx(320 / 640)
    assert rows["fc1"].mean_ns == pytest.approx(80)
    assert summary.notes == ()
    assert summary.processes == (10,)


# As decoded: in the backward pass, layers without calls represent those that were called forward.
DIFFERENTIATED = make_tree(
    (0, "process", "python (10)", 1, 1000, 100),
    (1, "layer", "Net", 2, 400, 40),
    (2, "layer", "fc", 4, 360, 60),
    (3, "operator", "aten::addmm", 4, 300, 300),
    (2, "layer", "act", 2, 0, 0),
    (1, "backward", "backward", 0, 500, 0),
    (2, "backward", "evaluate: SumBackward0", 2, 20, 20, 2),
    (2, "layer", "Net", 0, 480, 0, 2),
    (3, "layer", "fc", 0, 450, 0, 2),
    (4, "backward", "evaluate: AddmmBackward0", 4, 450, 50, 2),
    (5, "operator", "aten::mm", 4, 300, 300, 2),
    (5, "backward", "backward", 0, 100, 0, 2),
    (6, "layer", "fc", 0, 100, 0, 2),
    (7, "backward", "evaluate: MulBackward0", 1, 100, 100, 2),
    (3, "backward", "evaluate: AddBackward0", 2, 30, 30, 2),
)


def test_a_layer_owns_its_backward_pass() -> None:
    summary = summarize(DIFFERENTIATED, "layer")
    rows = by_name(summary)
    assert (rows["fc"].total_ns, rows["fc"].backward_ns, rows["fc"].own_ns) == (810, 450, 810)
    assert (rows["Net"].total_ns, rows["Net"].backward_ns, rows["Net"].own_ns) == (880, 480, 70)
    assert (rows["act"].total_ns, rows["act"].backward_ns) == (0, 0)
    assert [(rows[name].calls, rows[name].mean_ns) for name in ("fc", "Net")] == [(4, 90.0), (2, 200.0)]
    assert rows["fc"].threads == 2
    assert summary.covered_ns == 880
    assert summary.rest_ns == {"untracked": 100, "backward": 20}
    head, fc, *_ = str(summary).splitlines()
    columns = ["layer", "calls", "total", "backward", "self", "self %", "forward mean", "threads"]
    assert head.split() == " ".join(columns).split()
    assert fc.split()[:6] == ["fc", "4", "810", "ns", "450", "ns"]


def test_only_layers_are_rows_without_calls() -> None:
    assert all(row.calls > 0 for row in summarize(DIFFERENTIATED, "operator").rows)
    assert all(row.backward_ns is None for row in summarize(DIFFERENTIATED, "operator").rows)


def test_where_nothing_was_differentiated_that_time_is_not_known() -> None:
    summary = summarize(TRAINING, "layer")
    assert {row.backward_ns for row in summary.rows} == {None}
    assert "backward_ns" in summary.to_dict()["rows"][0]


def test_gpu_time_of_the_backward_pass_is_the_layers() -> None:
    gpu_ns = np.zeros(len(DIFFERENTIATED), dtype=np.int64)
    gpu_ns[3], gpu_ns[10], gpu_ns[14] = 7, 30, 5
    summary = summarize(dataclasses.replace(DIFFERENTIATED, gpu_ns=gpu_ns), "layer")
    rows = by_name(summary)
    assert (rows["fc"].gpu_total_ns, rows["fc"].gpu_own_ns) == (37, 37)
    assert (rows["Net"].gpu_total_ns, rows["Net"].gpu_own_ns) == (42, 5)


def test_operators_leave_out_the_operators_inside_and_include_backward() -> None:
    summary = summarize(TRAINING, "operator")
    rows = by_name(summary)
    assert rows["aten::linear"].own_ns == 90
    assert (rows["aten::addmm"].calls, rows["aten::addmm"].total_ns, rows["aten::addmm"].own_ns) == (
        12,
        400,
        400,
    )
    engine = rows["autograd::engine::evaluate_function: AddmmBackward0"]
    assert (engine.kind, engine.own_ns, engine.total_ns, engine.threads) == ("backward", 50, 250, 2)
    assert (rows["AddmmBackward0"].kind, rows["AddmmBackward0"].own_ns) == ("operator", 80)
    assert summary.covered_ns == 290 + 200 + 250


def test_spans_own_everything_inside_them() -> None:
    summary = summarize(TRAINING, "span")
    assert summary.rows == (
        SummaryRow("step", "span", 4, 700, 700, mean_ns=175.0, share=1.0, threads=1, processes=1),
    )


def test_nvtx_ranges_and_compilations_have_rows_like_spans() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 100, 0),
        (1, "nvtx", "step", 1, 60, 10),
        (2, "span", "step", 1, 50, 50),
        (1, "compile", "torch.compile", 1, 40, 40),
    )
    rows = summarize(tree, "span").rows
    assert [(row.name, row.kind, row.total_ns, row.own_ns) for row in rows] == [
        ("step", "span", 50, 50),
        ("torch.compile", "compile", 40, 40),
        ("step", "nvtx", 60, 10),
    ]


def test_recursion_is_not_counted_twice() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 100, 0),
        (1, "span", "f", 1, 60, 10),
        (2, "span", "g", 1, 50, 5),
        (3, "span", "f", 2, 45, 15),
        (4, "span", "f", 1, 30, 30),
        (1, "span", "f", 1, 40, 40),
    )
    summary = summarize(tree, "span")
    rows = by_name(summary)
    assert (rows["f"].calls, rows["f"].total_ns, rows["f"].own_ns) == (5, 60 + 40, 10 + 15 + 30 + 40)
    assert rows["f"].mean_ns == pytest.approx((60 + 45 + 30 + 40) / 5)
    assert (rows["g"].total_ns, rows["g"].own_ns) == (50, 5)
    assert summary.covered_ns == 100


def test_layers_of_earlier_runs_have_the_model_before_paths_of_several() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 100, 0),
        (1, "layer", "Student", 1, 60, 10),
        (2, "span", "wrapped", 1, 50, 0),
        (3, "layer", "fc", 1, 50, 50),
        (1, "layer", "Teacher", 1, 30, 10),
        (2, "layer", "fc", 2, 15, 15),
        (2, "layer", "head", 1, 5, 5),
    )
    types = {"Student": {"Student": "Student", "fc": "Linear"}, "Teacher": {"fc": "Linear", "head": "Linear"}}
    rows = summarize(with_unique_layers(tree, types), "layer").rows
    assert [(row.name, row.own_ns) for row in rows] == [
        ("Student/fc", 50),
        ("Teacher/fc", 15),
        ("Student", 10),
        ("Teacher", 10),
        ("head", 5),
    ]


def test_a_loss_next_to_the_model_does_not_change_the_models_names() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 100, 0),
        (1, "layer", "Net", 1, 60, 10),
        (2, "layer", "fc", 1, 50, 50),
        (1, "layer", "CrossEntropyLoss", 1, 40, 40),
    )
    assert [row.name for row in summarize(tree, "layer").rows] == ["fc", "CrossEntropyLoss", "Net"]


def test_a_layer_is_one_row_wherever_it_is_called() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 100, 0),
        (1, "layer", "Net", 1, 60, 10),
        (2, "layer", "encoder", 1, 50, 50),
        (1, "layer", "encoder", 1, 40, 40),
    )
    assert [(row.name, row.own_ns) for row in summarize(tree, "layer").rows] == [("encoder", 90), ("Net", 10)]


PROCESSES = make_tree(
    (0, "process", "python (10)", 1, 100, 0),
    (1, "operator", "aten::add", 1, 100, 100),
    (0, "process", "worker (11)", 1, 30, 0),
    (1, "operator", "aten::add", 2, 20, 20),
    (1, "span", "load", 1, 10, 10),
    (0, "process", "worker (12)", 1, 5, 5),
)


def test_the_main_process_is_the_default_and_the_others_are_named() -> None:
    summary = summarize(PROCESSES, "operator")
    assert by_name(summary)["aten::add"].own_ns == 100
    assert summary.total_ns == 100
    assert len(summary.notes) == 1
    assert "2 other processes were recorded (11, 12)" in summary.notes[0]
    assert "--process" in summary.notes[0]


def test_one_process_or_all_can_be_asked_for() -> None:
    worker = summarize(PROCESSES, "operator", process=11)
    assert (by_name(worker)["aten::add"].calls, worker.total_ns, worker.covered_ns) == (2, 30, 20)
    assert (worker.notes, worker.processes) == ((), (11,))
    every = summarize(PROCESSES, "operator", process="all")
    row = by_name(every)["aten::add"]
    assert (row.calls, row.own_ns, row.processes) == (3, 120, 2)
    assert (every.total_ns, every.notes, every.processes) == (135, (), (10, 11, 12))


def test_an_unknown_process_or_table_is_refused_with_the_choices() -> None:
    with refused(RunError, "unknown_process", "99", "10", "11", "12"):
        summarize(PROCESSES, "operator", process=99)
    with refused(RunError, "unknown_grouping", "layer", "operator", "span", "kernel"):
        summarize(PROCESSES, "thread")


def test_kernels_are_a_note_not_a_zero() -> None:
    summary = summarize(TRAINING, "kernel")
    assert (summary.rows, summary.covered_ns) == ((), 0)
    assert "no GPU work was recorded" in summary.notes[0]
    assert summary.gpu_total_ns is None


def test_an_empty_table_has_a_reason() -> None:
    summary = summarize(PROCESSES, "layer")
    assert summary.rows == ()
    assert "no layer was recorded" in summary.notes[0]
    assert str(summary).startswith("note: no layer was recorded")


IN_CHILDREN = make_tree(
    (0, "process", "python (10)", 1, 100, 100),
    (0, "process", "worker (11)", 1, 50, 0),
    (1, "layer", "Net", 1, 50, 50),
    (0, "process", "worker (12)", 1, 5, 0),
    (1, "span", "load", 1, 5, 5),
    (0, "process", "worker (11)", 1, 20, 0),
    (1, "layer", "Net", 1, 20, 20),
)


def test_an_empty_table_names_the_processes_that_have_rows() -> None:
    mend = "summary(process=...) or --process takes an id or all"
    for why_empty in (None, "torch was never imported"):
        summary = summarize(IN_CHILDREN, "layer", why_empty=why_empty)
        assert summary.rows == ()
        assert summary.notes == (f"no layer was recorded in process 10, but in another (11): {mend}",)
    (note,) = summarize(IN_CHILDREN, "span", process=11).notes
    assert note == f"no span was recorded in process 11, but in another (12): {mend}"
    both = summarize(PROCESSES, "span").notes[0]
    assert both == f"no span was recorded in process 10, but in another (11): {mend}"
    assert summarize(IN_CHILDREN, "layer", process="all").notes == ()
    assert "doctor" in summarize(IN_CHILDREN, "operator", process="all").notes[0]


def test_an_empty_tree_has_an_empty_summary() -> None:
    summary = summarize(make_tree(), "operator")
    assert (summary.rows, summary.total_ns, summary.processes) == ((), 0, ())
    assert str(summary)


def test_zero_time_has_no_share() -> None:
    tree = make_tree((0, "process", "python (1)", 1, 0, 0), (1, "span", "s", 3, 0, 0))
    row = summarize(tree, "span").rows[0]
    assert (row.share, row.mean_ns) == (None, 0.0)
    assert "-" in str(summarize(tree, "span"))


def test_names_that_repeat_in_the_string_table_are_one_row() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 3, 0),
        (1, "span", "a", 1, 1, 1),
        (1, "span", "b", 1, 2, 2),
    )
    tree.names[2] = "a"
    assert [(row.name, row.calls) for row in summarize(tree, "span").rows] == [("a", 2)]


def test_a_node_that_only_groups_is_no_row() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 30, 0),
        (1, "backward", "backward", 0, 30, 0),
        (2, "backward", "autograd::engine::evaluate_function: MulBackward0", 2, 30, 30),
    )
    (row,) = summarize(tree, "operator").rows
    assert (row.name, row.calls) == ("autograd::engine::evaluate_function: MulBackward0", 2)


def test_sorted_by_self_time_then_name() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 9, 0),
        (1, "span", "c", 1, 2, 2),
        (1, "span", "b", 1, 2, 2),
        (1, "span", "a", 1, 5, 5),
    )
    assert [row.name for row in summarize(tree, "span").rows] == ["a", "b", "c"]


def test_a_depth_of_twenty_thousand_is_fine() -> None:
    nodes: list[Node] = [(0, "process", "python (1)", 1, 20_000, 0)]
    tree = make_tree(*nodes, (1, "layer", "L", 1, 1, 1))
    depth = 20_000
    deep = CallTree(
        parent=np.arange(-1, depth, dtype=np.int32),
        kind=np.array([0] + [2, 3] * (depth // 2), dtype=np.uint8),
        name=np.array([0] + [1] * depth, dtype=np.int32),
        calls=np.ones(depth + 1, dtype=np.int64),
        total_ns=np.arange(depth, -1, -1, dtype=np.int64),
        own_ns=np.array([0] + [1] * depth, dtype=np.int64),
        threads=np.ones(depth + 1, dtype=np.int32),
        process_id=np.ones(depth + 1, dtype=np.int64),
        names=tree.names,
    )
    (layer,) = summarize(deep, "layer").rows
    assert (layer.calls, layer.total_ns, layer.own_ns) == (10_000, 19_999, 20_000)
    (operator,) = summarize(deep, "operator").rows
    assert (operator.total_ns, operator.own_ns) == (19_998, 19_999)


def test_half_a_million_nodes_scale_linearly() -> None:
    """Not a timed test: the ceiling is ten times what it takes, and catches a quadratic walk."""
    count = 500_000
    draw = np.random.default_rng(7)
    parent = np.concatenate(([-1], np.arange(count - 1) // 8 * 8)).astype(np.int32)
    kind = draw.integers(1, 7, count).astype(np.uint8)
    kind[0] = 0
    own = draw.integers(0, 1_000, count)
    tree = CallTree(
        parent=parent,
        kind=kind,
        name=draw.integers(0, 3_000, count).astype(np.int32),
        calls=np.ones(count, dtype=np.int64),
        total_ns=own,
        own_ns=own,
        threads=np.ones(count, dtype=np.int32),
        process_id=np.ones(count, dtype=np.int64),
        names=[f"n{index}" for index in range(3_000)],
    )
    begin = time.process_time()
    for by in ("layer", "operator", "span"):
        summary = summarize(tree, by)
        assert summary.covered_ns == sum(row.own_ns for row in summary.rows)
    assert time.process_time() - begin < 15


def test_the_text_is_a_table_of_at_most_a_hundred_columns() -> None:
    tree = make_tree(
        (0, "process", "python (1)", 1, 10**12, 0),
        *(
            (1, "span", f"very.long.{index}\n\x1b[31m" + "层" * 80, 10**7, 10**10 - index, 10**10 - index, 9)
            for index in range(40)
        ),
    )
    text = str(summarize(tree, "span"))
    lines = text.splitlines()
    assert max(map(cell_width, lines)) == 100
    assert lines[0].split() == ["span", "calls", "total", "self", "self", "%", "mean", "threads"]
    assert "\x1b" not in text
    assert "... and 10 more with 25.0% of the self time" in lines
    assert sum("very.long." in line for line in lines) == 30


def test_empty_columns_are_left_out() -> None:
    head, *_, below, _rest = str(summarize(TRAINING, "layer")).splitlines()
    assert head.split() == ["layer", "calls", "total", "self", "self", "%", "mean"]
    assert below == "layers cover 640 ns (64.0%) of 1.00 us (sum over all threads and tasks)"
    head = str(summarize(TRAINING, "operator")).splitlines()[0]
    assert head.split() == ["operator", "kind", "calls", "total", "self", "self", "%", "mean", "threads"]


GELU, TANH = (
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}(at::TensorIteratorBase&)::"
    "{lambda(float)#1}, std::array<char*, 2ul> >(int, T2, T3)"
    for name in ("GeluCUDAKernelImpl", "tanh_kernel_cuda")
)
KERNELS = dataclasses.replace(
    make_tree(
        (0, "process", "python (10)", 1, 100, 100),
        (1, "kernel", GELU, 2, 0, 0),
        (1, "kernel", TANH, 3, 0, 0),
        (1, "transfer", "copy pageable to device", 1, 0, 0),
    ),
    gpu_ns=np.array([0, 30, 20, 10], dtype=np.int64),
)


def test_kernels_are_shown_by_their_labels_and_keep_their_full_names() -> None:
    summary = summarize(KERNELS, "kernel")
    assert [(row.name, row.label) for row in summary.rows] == [
        (GELU, "vectorized_elementwise_kernel<GeluCUDAKernelImpl>"),
        (TANH, "vectorized_elementwise_kernel<tanh_kernel_cuda>"),
        ("copy pageable to device", None),
    ]
    text = summary.to_text()
    assert "vectorized_elementwise_kernel<GeluCUDAKernelImpl>" in text
    assert max(map(len, text.splitlines()[:4])) <= 100
    rows = summary.to_dict()["rows"]
    assert (rows[0]["name"], rows[0]["label"]) == (GELU, "vectorized_elementwise_kernel<GeluCUDAKernelImpl>")


def test_full_names_can_be_asked_for() -> None:
    text = summarize(KERNELS, "kernel").to_text(full_names=True)
    assert GELU in text
    assert TANH in text


def test_each_process_of_a_tree_has_its_part() -> None:
    tree = dataclasses.replace(PROCESSES, gpu_ns=np.arange(len(PROCESSES), dtype=np.int64))
    shares = processes_of(tree)
    assert [share.process_id for share in shares] == list(dict.fromkeys(PROCESSES.process_id.tolist()))
    assert sum(share.gpu_ns or 0 for share in shares) == int(tree.gpu_ns.sum())
    assert sum(share.total_ns for share in shares) == int(PROCESSES.own_ns.sum())
    assert {share.gpu_ns for share in processes_of(PROCESSES)} == {None}


def test_the_dictionary_is_plain_json_with_units() -> None:
    values = summarize(PROCESSES, "operator").to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["rows"] == [
        {
            "name": "aten::add",
            "kind": "operator",
            "calls": 1,
            "total_ns": 100,
            "own_ns": 100,
            "mean_ns": 100.0,
            "share": 1.0,
            "threads": 1,
            "processes": 1,
            "gpu_total_ns": None,
            "gpu_own_ns": None,
            "gpu_share": None,
            "backward_ns": None,
            "backward_own_ns": None,
            "flops": None,
            "bytes": None,
            "label": None,
            "group": None,
            "intensity": None,
            "flops_per_s": None,
            "bytes_per_s": None,
        }
    ]
    assert (values["by"], values["total_ns"], values["covered_ns"]) == ("operator", 100, 100)
    assert summarize(TRAINING, "operator").to_dict(top=2)["row_count"] == 5
    assert len(summarize(TRAINING, "operator").to_dict(top=2)["rows"]) == 2
