# SPDX-License-Identifier: Apache-2.0
"""In a run of a launcher, a rank is replayed: the launcher only waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_edits import change_meta
from simulated_ranks import compute, train_ranks, write_ranks
from simulated_training import MS

import gpuprof

WORKS = (20, 45)  # ms of a forward pass
STEPS = 12


def test_the_rank_that_the_others_wait_for_is_replayed(tmp_path: Path) -> None:
    run = gpuprof.open(write_ranks(tmp_path, train_ranks(WORKS, steps=STEPS)))
    found = run.whatif(remove="model")
    assert found.rank == found.to_dict()["rank"] == 1
    assert found.high_ns == pytest.approx(STEPS * 45 * MS, rel=0.01)
    assert str(found).splitlines()[1].endswith("rank 1")


def test_of_ranks_without_steps_the_first_one_is_replayed(tmp_path: Path) -> None:
    hosts = train_ranks(WORKS, steps=0)
    for host, work in zip(hosts, WORKS, strict=True):
        compute(host, work)
    assert gpuprof.open(write_ranks(tmp_path, hosts)).whatif(remove="model").rank == 0


def test_the_program_itself_may_be_a_rank(tmp_path: Path) -> None:
    path = write_ranks(tmp_path, train_ranks(WORKS, steps=STEPS))
    ranks = gpuprof.open(path).meta["processes"][1:]
    change_meta(path, process_id=ranks[0]["process_id"], processes=ranks)
    assert gpuprof.open(path).whatif(remove="model").rank == 0
