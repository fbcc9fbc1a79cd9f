# SPDX-License-Identifier: Apache-2.0
"""Joining counted to timed operators: permuted, missing and additional ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from roofline_rows import Spans, counted

from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.join import Join, align, join, names_to_look_for
from gpuprof.record.work.observe import reuse_distances
from gpuprof.record.work.rows import Touched

# ---- alignment -------------------------------------------------------------------------------


def longest(left: Sequence[str], right: Sequence[str]) -> int:
    """The textbook's table."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, name in enumerate(left):
        for j, other in enumerate(right):
            table[i + 1][j + 1] = table[i][j] + 1 if name == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@pytest.mark.parametrize("letters", ["ab", "abcd", "abcdefghij"])
def test_as_many_pairs_as_there_can_be(letters: str) -> None:
    chance = random.Random(0)
    for _ in range(400):
        left, right = ([chance.choice(letters) for _ in range(chance.randint(0, 14))] for _ in range(2))
        pairs = align(left, right)
        assert len(pairs) == longest(left, right)
        assert all(left[i] == right[j] for i, j in pairs)
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(pairs))


def test_what_is_too_long_is_aligned_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.analyze.roofline.join._MOST_BITS", 64)
    left = ["x", *[str(number % 7) for number in range(100)], "y"]
    right = ["z", *left[1:-1], "w"]
    pairs = align(left, right)
    assert len(pairs) >= 90
    assert all(left[i] == right[j] for i, j in pairs)


# ---- forward ---------------------------------------------------------------------------------


def rows(*names: str, layer: str = "fc", phase: str = "forward", root: str = "Net") -> list[CountedRow]:
    values: dict[str, Any] = {"root": root, "layer": layer, "phase": phase}
    return [counted(name, ordinal=at, flops=at, **values) for at, name in enumerate(names)]


def joined_with(counted_rows: list[CountedRow], *calls: dict[str, list[tuple[str, int]]]) -> Join:
    spans = Spans()
    for layers in calls:
        spans.call(layers)
    return joined(counted_rows, spans)


def joined(counted_rows: list[CountedRow], spans: Spans) -> Join:
    return join(counted_rows, spans.measured(names_to_look_for(counted_rows)))


def durations(found: Join) -> dict[str, list[int]]:
    return {each.row.operator: each.durations_ns.tolist() for each in found.rows}


def test_equal_sequences_match_in_every_call() -> None:
    calls = [{"fc": [("aten::t", 1), ("aten::addmm", 10 * call)]} for call in (1, 2, 3)]
    found = joined_with(rows("aten::t", "aten::addmm"), *calls)
    assert durations(found) == {"aten::t": [1, 1, 1], "aten::addmm": [10, 20, 30]}
    assert [each.quality for each in found.rows] == [1, 1]
    assert len(found.unmatched) == 0


def test_the_same_operator_twice_keeps_its_order() -> None:
    found = joined_with(
        rows("aten::mm", "aten::relu", "aten::mm"),
        {"fc": [("aten::mm", 1), ("aten::relu", 2), ("aten::mm", 3)]},
    )
    assert [each.durations_ns.tolist() for each in found.rows] == [[1], [2], [3]]


def test_a_missing_operator_leaves_the_others_in_place() -> None:
    found = joined_with(rows("a", "b", "c"), {"fc": [("a", 1), ("c", 3)]})
    assert durations(found) == {"a": [1], "b": [], "c": [3]}
    assert found.rows[0].quality == pytest.approx(0.8)


def test_an_additional_operator_is_not_matched_and_costs_confidence() -> None:
    # `b` is known from another layer.
    counted_rows = [*rows("a", "c"), *rows("b", layer="other")]
    found = joined_with(counted_rows, {"fc": [("a", 1), ("b", 2), ("c", 3)]})
    assert durations(found) == {"a": [1], "c": [3], "b": []}
    assert found.unmatched.tolist() == [3]
    assert found.rows[0].quality == pytest.approx(0.8)


def test_of_permuted_operators_the_longest_common_part_matches() -> None:
    found = joined_with(rows("a", "b", "c", "d"), {"fc": [("b", 1), ("a", 2), ("c", 3), ("d", 4)]})
    matched = [each.row.operator for each in found.rows if len(each.durations_ns)]
    assert len(matched) == 3
    assert {"c", "d"} <= set(matched)
    assert len(found.unmatched) == 1


def test_layers_do_not_mix() -> None:
    counted_rows = [*rows("a", layer="one"), *rows("a", layer="two")]
    found = joined_with(counted_rows, {"two": [("a", 2)], "three": [("a", 3)]})
    assert [each.durations_ns.tolist() for each in found.rows] == [[], [2]]
    assert found.unmatched.tolist() == [4]


def test_gpu_work_is_of_the_operator_that_launched_it() -> None:
    spans = Spans()
    spans.call({"fc": [("a", 1)]})
    inner = spans.add("operator", "inner", 1, inside=2)
    spans.kernel(inner, 100)
    spans.kernel(2, 50)
    found = joined(rows("a"), spans)
    assert found.rows[0].on_gpu
    assert found.rows[0].executions["cuda:0"].time_ns.tolist() == [150]
    assert found.rows[0].executions["cuda:0"].launches.tolist() == [2]


# ---- calls of one operator -------------------------------------------------------------------


def looped(flops: Sequence[int]) -> Join:
    counted_rows = [counted("a", layer="fc", ordinal=at, flops=each) for at, each in enumerate(flops)]
    return joined_with(counted_rows, {"fc": [("a", 10 + at) for at in range(len(flops))]})


def test_a_loop_of_equal_work_is_one_operator() -> None:
    found = looped([7] * 1000)
    (operator,) = found.operators
    assert len(found.rows) == 1000
    assert operator.durations_ns.tolist() == list(range(10, 1010))
    assert (operator.row.flops, operator.quality) == (7, 1)
    assert set(found.operator_of.tolist()) == {0}


def test_a_few_amounts_of_work_stay_apart_and_many_become_their_mean() -> None:
    assert [each.row.flops for each in looped([7, 9, 7]).operators] == [7, 9]
    (operator,) = looped(range(1, 102)).operators
    assert (operator.row.flops, len(operator.durations_ns)) == (51, 101)


# ---- backward --------------------------------------------------------------------------------


def with_backward(counted_rows: list[CountedRow], *events: str | list[str]) -> Join:
    """Join calls of roots by name, and lists of backward operators between them."""
    spans = Spans()
    for event in events:
        if isinstance(event, str):
            spans.call({}, event)
        else:
            spans.backward([(name, 1 + number) for number, name in enumerate(event)])
    return joined(counted_rows, spans)


def test_each_backward_pass_is_aligned_by_itself() -> None:
    counted_rows = rows("mm", "sum", "mm", phase="backward")
    found = with_backward(counted_rows, "Net", ["mm", "sum", "mm"], "Net", ["mm", "sum", "mm"])
    assert [each.durations_ns.tolist() for each in found.rows] == [[1, 1], [2, 2], [3, 3]]
    assert found.backward_passes == 2


def test_adding_in_place_or_not_is_one_operator() -> None:
    counted_rows = rows("aten::add", "aten::mm", phase="backward")
    found = with_backward(counted_rows, "Net", ["aten::add_", "aten::mm"])
    assert [each.durations_ns.tolist() for each in found.rows] == [[1], [2]]
    assert names_to_look_for(rows("aten::add_")).forward == {("Net", "aten::add")}


def test_the_loss_comes_first_on_the_way_back() -> None:
    counted_rows = [
        *rows("mm", "mul", phase="backward"),
        *rows("mul", "neg", layer="Loss", phase="backward", root="Loss"),
    ]
    found = with_backward(counted_rows, "Net", "Loss", ["mul", "neg", "mm", "mul"])
    assert [each.durations_ns.tolist() for each in found.rows] == [[3], [4], [1], [2]]


def test_calls_without_a_backward_pass_do_no_harm() -> None:
    counted_rows = rows("mm", phase="backward")
    assert with_backward(counted_rows, *["Net"] * 20, ["mm"]).rows[0].durations_ns.tolist() == [1]
    assert with_backward(counted_rows, "Net").rows[0].durations_ns.tolist() == []


def test_names_are_looked_for_where_they_were_counted() -> None:
    wanted = names_to_look_for([*rows("a"), *rows("b", phase="backward")])
    assert (wanted.forward, wanted.backward) == ({("Net", "a")}, {"b"})


# ---- reuse -----------------------------------------------------------------------------------


def test_distances_are_of_all_that_was_touched_since() -> None:
    def touch(*keys: int) -> list[Touched]:
        return [Touched(key, 100, written=False) for key in keys]

    found = reuse_distances([touch(1), touch(2), touch(1), touch(3)])
    assert [[part.distance_bytes for part in parts] for parts in found] == [[200], [300], [200], [300]]


def test_memory_touched_together_competes_for_a_cache() -> None:
    together = [Touched(1, 100, written=False), Touched(2, 50, written=True)]
    assert [part.distance_bytes for part in reuse_distances([together])[0]] == [150, 150]


def test_memory_without_an_address_is_in_no_cache() -> None:
    assert reuse_distances([[Touched(None, 5, written=False)]])[0][0].distance_bytes is None


def test_a_write_in_place_has_read_its_line_already() -> None:
    parts = reuse_distances([[Touched(1, 5, written=False), Touched(1, 5, written=True)]])[0]
    assert [part.written for part in parts] == [False, False]
