# SPDX-License-Identifier: Apache-2.0
"""The nodes of spans in a tree with Python's frames, by the native core and by a plain model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof._native import SpanNodes

FAMILIES = np.array([-1, 0, 0, 3])
Span = tuple[int, int, int, int, int, int]  # id, parent, thread, start, end, row


class Numbers:
    """Gives each key the next number, and remembers them."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int, int]] = []

    def __call__(self, first: int, second: int, third: int) -> int:
        assert (first, second, third) not in self.keys
        self.keys.append((first, second, third))
        return len(self.keys) + 9


def columns(spans: list[Span]) -> dict[str, npt.NDArray[Any]]:
    ids, parents, threads, starts, ends, rows = np.array(spans, dtype=np.int64).reshape(-1, 6).T
    duration = ends - starts
    return {
        "span_id": ids,
        "parent_id": parents,
        "thread": threads,
        "start_ns": starts,
        "duration_ns": duration,
        "own_ns": duration // 2,
        "row": rows,
    }


@st.composite
def programs(draw: st.DrawFn) -> list[Span]:
    """Return spans of two threads, by thread and begin; a parent is any that is open."""
    spans: list[Span] = []
    for thread in range(2):
        start, first = 0, len(spans)
        for _ in range(draw(st.integers(0, 12))):
            start += draw(st.integers(0, 5))
            open_ones = [each[0] for each in spans[first:] if each[4] >= start]
            parent = draw(st.sampled_from([-1, *open_ones]))
            identity = (spans[-1][0] if spans else -1) + draw(st.integers(1, 3))
            row = draw(st.integers(0, len(FAMILIES) - 1))
            spans.append((identity, parent, thread, start, start + draw(st.integers(0, 15)), row))
    return spans


@given(programs(), st.lists(st.integers(0, 60), max_size=5), st.sets(st.integers(0, 20)), st.integers(1, 9))
def test_nodes_are_those_of_a_plain_model(
    spans: list[Span], moments: list[int], met: set[int], at_once: int
) -> None:
    moments.sort()
    node, group = Numbers(), Numbers()
    native = SpanNodes(FAMILIES, node, group)
    native.add_thread(7, np.array(moments), np.arange(len(moments)))
    native.add_thread(8)
    native.add_met(np.array(sorted(met), dtype=np.int64), np.array(sorted(met), dtype=np.int64) + 100)
    parts = [spans[begin : begin + at_once] for begin in range(0, len(spans), at_once)]
    found = [each for part in parts for each in native.make(columns(part)).tolist()]

    nodes: dict[int, int] = {}
    until = -1
    for (identity, parent, thread, start, end, row), made in zip(spans, found, strict=True):
        above = 0
        if thread == 0 and identity in met:
            above = identity + 100
        elif thread == 0:
            after = sum(moment < start for moment in moments)
            is_between = end > until and 0 < after < len(moments)
            around = (after - 1, after) if is_between else (-1, -1)
            above = group.keys.index((FAMILIES[row], *around)) + 10
        until = max(until, end) if thread == 0 else until
        base = nodes.get(parent, 7 + thread)
        nodes[identity] = made
        assert node.keys[made - 10] == (base, above, row)
    sums = native.sums()
    for number in set(found):
        own = [each for each, made in zip(spans, found, strict=True) if made == number]
        assert sums["calls"][number] == len(own)
        assert sums["total_ns"][number] == sum(each[4] - each[3] for each in own)
        assert sums["own_ns"][number] == sum((each[4] - each[3]) // 2 for each in own)
    assert sorted(native.threads()) == sorted({(nodes[each[0]], each[2]) for each in spans})


def test_parents_among_thousands_of_open_spans() -> None:
    """Tasks that are all open, one of them until the end; each third has ended when the next one begins."""
    native = SpanNodes(FAMILIES, node := Numbers(), Numbers())
    native.add_thread(7)
    count = 5_000
    spans: list[Span] = [(0, -1, 0, 0, 10**9, 1)]
    spans += [(each, -1, 0, each, each + 1 if each % 3 else 10**9, 2) for each in range(1, count)]
    spans += [(count + each, 3 * each, 0, count + each, 10**9, 3) for each in range(1_000)]
    found = native.make(columns(spans)).tolist()
    outermost, task = node.keys.index((7, 0, 1)) + 10, node.keys.index((7, 0, 2)) + 10
    assert [node.keys[made - 10][0] for made in found[count:]] == [outermost, *[task] * 999]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"thread": np.array([1])}, "no such thread"),
        ({"row": np.array([4])}, "no such row"),
        ({"row": np.array([-1])}, "no such row"),
        ({"own_ns": np.array([1, 2])}, "differ in length"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    native = SpanNodes(FAMILIES, Numbers(), Numbers())
    native.add_thread(7)
    with pytest.raises(ValueError, match=message):
        native.make({**columns([(0, -1, 0, 0, 1, 1)]), **changed})


def test_an_error_of_a_callback_is_raised() -> None:
    def fail(*_: int) -> int:
        raise ZeroDivisionError

    native = SpanNodes(FAMILIES, fail, Numbers())
    native.add_thread(7)
    with pytest.raises(ZeroDivisionError):
        native.make(columns([(0, -1, 0, 0, 1, 1)]))
    native = SpanNodes(FAMILIES, lambda *_: -1, Numbers())
    native.add_thread(7)
    with pytest.raises(ValueError, match="negative"):
        native.make(columns([(0, -1, 0, 0, 1, 1)]))
