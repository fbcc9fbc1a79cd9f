# SPDX-License-Identifier: Apache-2.0
"""Summaries of random trees against a slow reading that follows every path by itself."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.summary import summarize
from gpuprof.run.format import KINDS

TABLES = {"layer": {"layer"}, "operator": {"operator", "backward"}, "span": {"span", "nvtx", "compile", "gc"}}


@st.composite
def trees(draw: st.DrawFn) -> CallTree:
    """Draw a tree in pre-order whose totals are the self times of the subtrees, as without overlap."""
    count = draw(st.integers(0, 40))
    depths, kinds = [], []
    for index in range(count):
        depth = 0 if index == 0 else draw(st.integers(0, depths[-1] + 1))
        depths.append(depth)
        kinds.append(draw(st.integers(1, len(KINDS) - 1)) if depth else 0)
    names = draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    own = draw(st.lists(st.integers(0, 1_000), min_size=count, max_size=count))
    # A layer without calls is in the backward pass.
    calls = [draw(st.integers(KINDS[kind] != "layer", 9)) for kind in kinds]
    path: list[int] = []
    parent, process, total = [], [], [0] * count
    for index, depth in enumerate(depths):
        path = [*path[:depth], index]
        parent.append(path[-2] if depth else -1)
        process.append(process[parent[-1]] if depth else 100 + sum(d == 0 for d in depths[:index]))
        for node in path:
            total[node] += own[index]
    return CallTree(
        parent=np.array(parent, dtype=np.int32),
        kind=np.array(kinds, dtype=np.uint8),
        name=np.array(["abc".index(name) for name in names], dtype=np.int32),
        calls=np.array(calls, dtype=np.int64),
        total_ns=np.array(total, dtype=np.int64),
        own_ns=np.array(own, dtype=np.int64),
        threads=np.ones(count, dtype=np.int32),
        process_id=np.array(process, dtype=np.int64),
        names=list("abc"),
    )


def path_of(tree: CallTree, node: int) -> list[int]:
    """Return the nodes from `node` up to its process."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parent[node])
    return path


def slow_summary(tree: CallTree, by: str) -> dict[tuple[str, ...], list[int]]:
    """Return key -> [calls, total, own, backward], each node looked at alone through its own path."""

    def kind(node: int) -> str:
        return KINDS[tree.kind[node]]

    def key(node: int) -> tuple[str, ...]:
        return kind(node), tree.names[tree.name[node]]

    rows: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for node in range(len(tree)):
        members = [step for step in path_of(tree, node) if kind(step) in TABLES[by]]
        if members:
            rows[key(members[0])][2] += int(tree.own_ns[node])
        if node in members:
            rows[key(node)][0] += int(tree.calls[node])
            if all(key(step) != key(node) for step in members[1:]):
                rows[key(node)][1] += int(tree.total_ns[node])
            mirrored = [step for step in members if tree.calls[step] == 0]
            if node in mirrored and all(key(step) != key(node) for step in mirrored[1:]):
                rows[key(node)][3] += int(tree.total_ns[node])
    return dict(rows)


@pytest.mark.parametrize("by", sorted(TABLES))
@settings(max_examples=200, deadline=None)
@given(tree=trees())
def test_a_summary_equals_one_made_from_paths(by: str, tree: CallTree) -> None:
    summary = summarize(tree, by, process="all")
    expected = slow_summary(tree, by)
    figures = [[row.calls, row.total_ns, row.own_ns, row.backward_ns or 0] for row in summary.rows]
    assert sorted(figures) == sorted(expected.values())
    assert {(row.kind, row.name) for row in summary.rows} == set(expected)


@pytest.mark.parametrize("by", sorted(TABLES))
@settings(max_examples=200, deadline=None)
@given(tree=trees())
def test_self_times_add_up_and_never_exceed_totals(by: str, tree: CallTree) -> None:
    summary = summarize(tree, by, process="all")
    assert sum(row.own_ns for row in summary.rows) == summary.covered_ns <= summary.total_ns
    assert summary.total_ns + summary.waiting_ns == int(tree.own_ns.sum())
    assert all(0 <= row.own_ns <= row.total_ns for row in summary.rows)
    own = [row.own_ns for row in summary.rows]
    assert own == sorted(own, reverse=True)
    if summary.covered_ns:
        assert sum(row.share or 0 for row in summary.rows) == pytest.approx(1)


@settings(max_examples=100, deadline=None)
@given(tree=trees())
def test_processes_add_up_to_all(tree: CallTree) -> None:
    every = summarize(tree, "operator", process="all")
    apart = [summarize(tree, "operator", process=pid) for pid in every.processes]
    assert sum(one.total_ns for one in apart) == every.total_ns
    assert sum(one.covered_ns for one in apart) == every.covered_ns
    first = summarize(tree, "operator")
    # Where only other processes have rows, there is one note for both.
    assert len(first.notes) == (len(every.processes) > 1) + (not every.rows)
