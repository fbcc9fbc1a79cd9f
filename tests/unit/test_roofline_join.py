# SPDX-License-Identifier: Apache-2.0
"""Joining counted to timed operators: permuted, missing and additional ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from roofline_rows import counted, piece, span

from gpuprof.analyze.roofline.alignment import align
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.join import Join, join, names_to_look_for
from gpuprof.analyze.roofline.timed import Span, Timed
from gpuprof.record.work.reuse import reuse_distances
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
    monkeypatch.setattr("gpuprof.analyze.roofline.alignment._MOST_BITS", 64)
    left = ["x", *[str(number % 7) for number in range(100)], "y"]
    right = ["z", *left[1:-1], "w"]
    pairs = align(left, right)
    assert len(pairs) >= 90
    assert all(left[i] == right[j] for i, j in pairs)


# ---- forward ---------------------------------------------------------------------------------


def rows(*names: str, layer: str = "fc", phase: str = "forward", root: str = "Net") -> list[CountedRow]:
    return [counted(name, root=root, layer=layer, ordinal=at, phase=phase) for at, name in enumerate(names)]


def timed(*calls: dict[str, list[Span]], root: str = "Net") -> Timed:
    result = Timed(total_ns=1_000_000)
    for number, layers in enumerate(calls):
        result.root_calls[number] = root, layers
        result.events.append((number, number))
    return result


def durations(joined: Join) -> dict[str, list[int]]:
    return {each.row.operator: each.durations_ns for each in joined.rows}


def test_equal_sequences_match_in_every_call() -> None:
    calls = [{"fc": [span("aten::t", 1), span("aten::addmm", 10 * call)]} for call in (1, 2, 3)]
    joined = join(rows("aten::t", "aten::addmm"), timed(*calls))
    assert durations(joined) == {"aten::t": [1, 1, 1], "aten::addmm": [10, 20, 30]}
    assert [each.quality for each in joined.rows] == [1, 1]
    assert joined.unmatched == []


def test_the_same_operator_twice_keeps_its_order() -> None:
    joined = join(
        rows("aten::mm", "aten::relu", "aten::mm"),
        timed({"fc": [span("aten::mm", 1), span("aten::relu", 2), span("aten::mm", 3)]}),
    )
    assert [each.durations_ns for each in joined.rows] == [[1], [2], [3]]


def test_a_missing_operator_leaves_the_others_in_place() -> None:
    joined = join(rows("a", "b", "c"), timed({"fc": [span("a", 1), span("c", 3)]}))
    assert durations(joined) == {"a": [1], "b": [], "c": [3]}
    assert joined.rows[0].quality == pytest.approx(0.8)


def test_an_additional_operator_is_not_matched_and_costs_confidence() -> None:
    joined = join(rows("a", "c"), timed({"fc": [span("a", 1), span("b", 2), span("c", 3)]}))
    assert durations(joined) == {"a": [1], "c": [3]}
    assert [each.name for each in joined.unmatched] == ["b"]
    assert joined.rows[0].quality == pytest.approx(0.8)


def test_of_permuted_operators_the_longest_common_part_matches() -> None:
    joined = join(
        rows("a", "b", "c", "d"), timed({"fc": [span("b", 1), span("a", 2), span("c", 3), span("d", 4)]})
    )
    matched = [each.row.operator for each in joined.rows if each.durations_ns]
    assert len(matched) == 3
    assert {"c", "d"} <= set(matched)
    assert len(joined.unmatched) == 1


def test_layers_do_not_mix() -> None:
    counted_rows = [*rows("a", layer="one"), *rows("a", layer="two")]
    joined = join(counted_rows, timed({"two": [span("a", 2)], "three": [span("a", 3)]}))
    assert [each.durations_ns for each in joined.rows] == [[], [2]]
    assert [each.duration_ns for each in joined.unmatched] == [3]


def test_what_ran_on_a_gpu_is_told() -> None:
    joined = join(rows("a"), timed({"fc": [span("a", pieces=[piece(100), piece(50)])]}))
    assert joined.rows[0].on_gpu
    assert [each.time_ns for each in joined.rows[0].executions["cuda:0"]] == [150]


# ---- backward --------------------------------------------------------------------------------


def with_backward(*events: str | list[str]) -> Timed:
    """Calls of roots by name, and lists of backward operators between them."""
    result = Timed(total_ns=1)
    for at, event in enumerate(events):
        if isinstance(event, str):
            result.root_calls[at] = event, {}
            result.events.append((10 * at, at))
        else:
            found = [span(name, 1 + number, in_backward=True) for number, name in enumerate(event)]
            result.events += [(10 * at + number, each) for number, each in enumerate(found)]
    return result


def test_each_backward_pass_is_aligned_by_itself() -> None:
    counted_rows = rows("mm", "sum", "mm", phase="backward")
    joined = join(counted_rows, with_backward("Net", ["mm", "sum", "mm"], "Net", ["mm", "sum", "mm"]))
    assert [each.durations_ns for each in joined.rows] == [[1, 1], [2, 2], [3, 3]]
    assert joined.backward_passes == 2


def test_adding_in_place_or_not_is_one_operator() -> None:
    counted_rows = rows("aten::add", "aten::mm", phase="backward")
    joined = join(counted_rows, with_backward("Net", ["aten::add_", "aten::mm"]))
    assert [each.durations_ns for each in joined.rows] == [[1], [2]]
    assert names_to_look_for(rows("aten::add_"))[0] == {("Net", "aten::add")}


def test_the_loss_comes_first_on_the_way_back() -> None:
    counted_rows = [
        *rows("mm", "mul", phase="backward"),
        *rows("mul", "neg", layer="Loss", phase="backward", root="Loss"),
    ]
    joined = join(counted_rows, with_backward("Net", "Loss", ["mul", "neg", "mm", "mul"]))
    assert [each.durations_ns for each in joined.rows] == [[3], [4], [1], [2]]


def test_calls_without_a_backward_pass_do_no_harm() -> None:
    joined = join(rows("mm", phase="backward"), with_backward(*["Net"] * 20, ["mm"]))
    assert joined.rows[0].durations_ns == [1]
    assert join(rows("mm", phase="backward"), with_backward("Net")).rows[0].durations_ns == []


def test_names_are_looked_for_where_they_were_counted() -> None:
    forward, backward = names_to_look_for([*rows("a"), *rows("b", phase="backward")])
    assert (forward, backward) == ({("Net", "a")}, {"b"})


# ---- reuse -----------------------------------------------------------------------------------


def test_distances_are_of_all_that_was_touched_since() -> None:
    def touch(*keys: int) -> list[Touched]:
        return [Touched(key, 100, written=False) for key in keys]

    found = reuse_distances([touch(1), touch(2), touch(1), touch(3)])
    assert [[part.distance_bytes for part in parts] for parts in found] == [[200], [300], [200], [300]]


def test_what_is_touched_together_shares_a_cache() -> None:
    together = [Touched(1, 100, written=False), Touched(2, 50, written=True)]
    assert [part.distance_bytes for part in reuse_distances([together])[0]] == [150, 150]


def test_memory_without_an_address_is_in_no_cache() -> None:
    assert reuse_distances([[Touched(None, 5, written=False)]])[0][0].distance_bytes is None


def test_a_write_in_place_has_read_its_line_already() -> None:
    parts = reuse_distances([[Touched(1, 5, written=False), Touched(1, 5, written=True)]])[0]
    assert [part.written for part in parts] == [False, False]
