# SPDX-License-Identifier: Apache-2.0
"""GPU: the same work as torch.profiler sees it, and both in one process."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import expectations
import pytest
from expectations import is_whole
from known_layers import OPERATORS

import gpuprof

ROUNDS = 5


@pytest.fixture(scope="module")
def both(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what each of the two recorded, round by round: names and nanoseconds of the kernels."""
    from start_program import start_program

    ran = start_program("in_turn_with_torch_profiler", tmp_path_factory.mktemp("in-turn"))
    ours = []
    for number in range(ROUNDS):
        run = gpuprof.open(ran.folder / f"run-{number}")
        is_whole(run)
        query = "SELECT name, duration_ns FROM kernels ORDER BY start_ns, correlation_id"
        ours.append([(plain(name), duration) for name, duration in run.sql(query).fetchall()])
    theirs = [[(plain(name), duration) for name, duration in kernels] for kernels in ran.facts["theirs"]]
    return theirs, ours


def plain(name: str) -> str:
    """Return a demangled name without blanks, which demanglers set differently."""
    return name.replace(" ", "")


def test_counts_and_names(both: Any) -> None:
    theirs, ours = both
    for number in range(ROUNDS):
        assert len(ours[number]) > 50
        assert Counter(name for name, _ in ours[number]) == Counter(name for name, _ in theirs[number])


def test_order(both: Any) -> None:
    theirs, ours = both
    for number in range(ROUNDS):
        assert [name for name, _ in ours[number]] == [name for name, _ in theirs[number]]


def test_durations_agree_within_two_percent(both: Any) -> None:
    sums = [statistics.median(sum(duration for _, duration in each) for each in half) for half in both]
    assert sums[1] == pytest.approx(sums[0], rel=0.02)


def test_profiler_inside_a_recording(program: Any) -> None:
    ran = program("inside_gpuprof")
    assert ran.facts["theirs"] == 20
    ((count,),) = ran.run.sql("SELECT count(*) FROM kernels").fetchall()
    assert count == 40
    assert "gpu_stepped_back" in [note.code for note in ran.run.notes]


def test_recording_inside_a_profiler(program: Any) -> None:
    ran = program("inside_torch_profiler")
    assert ran.facts["theirs"] == 60
    assert ran.run.sources["kernels"].reason == "profiler_active"


def test_after_torch_profiler_has_ended(program: Any) -> None:
    """Its subscription to CUPTI may remain: the recording is still complete."""
    ran = program("after_torch_profiler")
    assert ran.facts["theirs"] == len(OPERATORS)
    expectations.operators(ran.run, passes=3)
