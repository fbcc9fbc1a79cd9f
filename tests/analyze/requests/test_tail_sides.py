# SPDX-License-Identifier: Apache-2.0
"""Both sides of the tail's flame graph, against times that the run was made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from simulated_load import MS, Part, SimulatedLoad, layer, operator, wait, with_rare

from gpuprof.analyze.difference import FASTER, NEW, SAME, SLOWER, compare
from gpuprof.analyze.requests.sides import TailSides, tail_sides
from gpuprof.analyze.requests.slowest import ProfiledRequests
from gpuprof.errors import RunError
from gpuprof.run.folder import RunFolder


def sides_of(load: SimulatedLoad, path: Path) -> TailSides:
    return tail_sides(ProfiledRequests(RunFolder(load.write(path / "profile.gpuprof"))))


def row_of(sides: TailSides, name: str) -> int:
    tree = sides.tree
    (row,) = np.flatnonzero(tree.name == tree.names.index(name))
    return int(row)


@pytest.mark.parametrize(
    ("rare", "name", "states"),
    [
        (layer("net.rare", 2, operator("aten::conv2d", 18)), "aten::conv2d", {NEW}),
        (wait(20, "rare (app.py:9)", "time.sleep (built-in)"), "time.sleep (built-in)", {SLOWER}),
        (Part("gc", "generation 2", 20), "generation 2", {NEW}),
    ],
)
def test_the_tail_has_the_planted_cause_and_the_median_has_not(
    tmp_path: Path, rare: Part, name: str, states: set[int]
) -> None:
    # Ten of 1,000 requests, which are the tail.
    sides = sides_of(with_rare([rare], requests=1000, every=100), tmp_path)
    assert (len(sides.tail), len(sides.median)) == (10, 200)
    found = compare(sides.tail, sides.median)
    row = row_of(sides, name)
    assert found.own.old_ns[row] == 0
    assert found.own.new_ns[row] >= 18 * MS
    assert {int(found.own.state[row])} == states
    # The others are equal but for microseconds, and the same work for both.
    usual = row_of(sides, "aten::addmm")
    assert found.own.state[usual] == SAME
    assert found.calls_new[usual] == found.calls_old[usual] == 1


def test_times_are_those_of_one_request(tmp_path: Path) -> None:
    load = SimulatedLoad()
    for index in range(100):
        load.serve(operator("aten::mm", 10 if index % 20 == 0 else 2), operator("aten::mm", 1))
    sides = sides_of(load, tmp_path)
    found = compare(sides.tail, sides.median)
    row = row_of(sides, "request")
    assert (found.total.new_ns[row], found.total.old_ns[row]) == (11 * MS, 3 * MS)
    operators = row_of(sides, "aten::mm")
    assert (found.calls_new[operators], found.calls_old[operators]) == (2, 2)
    assert found.own.new_ns.sum() == 11 * MS
    assert FASTER not in found.own.state


def test_equal_requests_do_not_differ(tmp_path: Path) -> None:
    load = with_rare([], requests=200)
    sides = sides_of(load, tmp_path)
    found = compare(sides.tail, sides.median)
    assert set(found.total.state.tolist()) <= {SAME}


def test_too_few_requests_are_refused(tmp_path: Path) -> None:
    with refused(RunError, "too_few_requests", "19"):
        sides_of(with_rare([], requests=19), tmp_path)
