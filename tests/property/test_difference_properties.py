# SPDX-License-Identifier: Apache-2.0
"""What holds for every comparison and every wall-clock tree, whatever the runs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from gpuprof._native import wall_times
from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.compared_runs import union_of
from gpuprof.run.format import KINDS
from gpuprof.stats.distributions import student_p_value, student_quantile
from gpuprof.stats.significance import discoveries, plain_means, welch

INTERVAL = st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20))


PARENTS = [-1, 0, 0, 1]


@given(st.lists(INTERVAL, max_size=30))
def test_wall_times_are_those_of_the_instants_inside(intervals: list[tuple[int, int, int]]) -> None:
    columns = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    node, start = columns[:, 0], columns[:, 1]
    order = np.argsort(start, kind="stable")
    total, own = wall_times(np.array(PARENTS, dtype=np.int32), node, start, start + columns[:, 2], order)
    inside = [{t for n, s, d in intervals if n == each for t in range(s, s + d)} for each in range(4)]
    for each in range(4):
        children = set().union(*(inside[child] for child in range(4) if PARENTS[child] == each))
        assert total[each] == len(inside[each])
        assert own[each] == len(inside[each] - children)


@st.composite
def trees(draw: st.DrawFn) -> CallTree:
    """A tree in pre-order whose siblings differ in name, as a call tree's do."""
    parent = [-1]
    for node in range(1, draw(st.integers(1, 12))):
        # Any node on the way from the last one up keeps the order.
        chain, up = [], node - 1
        while up >= 0:
            chain.append(up)
            up = parent[up]
        parent.append(draw(st.sampled_from(chain)))
    names: list[str] = []
    for node, up in enumerate(parent):
        taken = {names[other] for other in range(node) if parent[other] == up}
        free = [name for name in "abcdefghijklmnop" if name not in taken]
        names.append(draw(st.sampled_from(free)))
    return tree_of(parent, ["span"] * len(parent), names)


def tree_of(parent: list[int], kinds: list[str], names: list[str]) -> CallTree:
    """Return a tree without times; roots are processes."""
    count = len(parent)
    zeros = np.zeros(count, dtype=np.int64)
    is_root = np.array(parent) < 0
    return CallTree(
        parent=np.array(parent, dtype=np.int32),
        kind=np.where(is_root, KINDS.index("process"), list(map(KINDS.index, kinds))).astype(np.uint8),
        name=np.arange(count, dtype=np.int32),
        calls=zeros,
        total_ns=zeros,
        own_ns=zeros,
        threads=zeros.astype(np.int32),
        process_id=zeros,
        names=names,
    )


def paths(tree: CallTree) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for node, parent in enumerate(tree.parent.tolist()):
        step = (tree.names[int(tree.name[node])],) if parent >= 0 else ("process",)
        found.append((found[parent] if parent >= 0 else ()) + step)
    return found


@given(st.lists(trees(), min_size=1, max_size=3))
def test_a_union_has_every_path_once_and_keeps_pre_order(given_trees: list[CallTree]) -> None:
    union, places = union_of(given_trees)
    whole = paths(union)
    assert len(set(whole)) == len(whole)
    assert set(whole) == {path for tree in given_trees for path in paths(tree)}
    for tree, place in zip(given_trees, places, strict=True):
        assert [whole[node] for node in place.tolist()] == paths(tree)
    # Pre-order: a node follows its parent, or something inside of its parent.
    for node in range(1, len(union)):
        up = int(union.parent[node])
        before = node - 1
        while before > up:
            before = int(union.parent[before])
        assert before == up


def python_tree(*names: str) -> CallTree:
    """A process in which each function calls the next one."""
    count = len(names) + 1
    return tree_of([*range(-1, count - 1)], ["python"] * count, ["process", *names])


def test_a_function_whose_definition_has_moved_is_the_same() -> None:
    new = python_tree("main (train.py:3)", "step (train.py:9)")
    old = python_tree("main (train.py:2)", "step (train.py:8)", "item (built-in)")
    union, (of_new, of_old) = union_of([new, old])
    assert union.names == ["process", "main (train.py:3)", "step (train.py:9)", "item (built-in)"]
    assert (of_new.tolist(), of_old.tolist()) == ([0, 1, 2], [0, 1, 2, 3])
    assert len(union_of([new, python_tree("main (other.py:3)")])[0].parent) == 4


def test_a_changed_copy_of_a_script_has_the_same_functions() -> None:
    new = python_tree("<module> (copy.py)", "step (copy.py:9)", "loss (lib/copy.py:1)")
    old = python_tree("<module> (train.py)", "step (train.py:8)", "loss (lib/copy.py:2)")
    union, places = union_of([new, old], ["copy.py", "train.py"])
    assert [place.tolist() for place in places] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert union.names[2] == "step (copy.py:9)"
    # The other file is no part of this program's script.
    assert len(union_of([new, old], ["copy.py", "other.py"])[0].parent) == 7


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_discoveries_are_those_of_the_definition(p_values: list[float]) -> None:
    column = np.array(p_values)
    stands, level = discoveries(column, 0.05)
    ordered = sorted(p_values)
    count = len(ordered)
    within = [k for k in range(1, count + 1) if ordered[k - 1] <= 0.05 * k / count]
    largest = max(within, default=0)
    assert stands.sum() == sum(p <= 0.05 * largest / len(ordered) for p in p_values if largest)
    assert level == pytest.approx(0.05 * max(1, largest) / len(ordered))


@given(st.floats(1e-6, 0.9), st.floats(1, 500))
def test_quantile_and_p_value_undo_each_other(level: float, freedom: float) -> None:
    column = np.array([round(freedom, 3)])
    back = student_p_value(student_quantile(level, column), column)
    assert back[0] == pytest.approx(level, rel=1e-6)


SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3)


@given(SAMPLES, SAMPLES)
def test_exchanging_the_sides_turns_the_sign_alone(one: list[float], other: list[float]) -> None:
    left, right = plain_means(np.array([one])), plain_means(np.array([other]))
    there, back = welch(left, right), welch(right, left)
    assert there.difference[0] == -back.difference[0]
    assert there.p_value[0] == back.p_value[0]
