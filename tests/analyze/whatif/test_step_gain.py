# SPDX-License-Identifier: Apache-2.0
"""The gain of a step: that of the simulated program without the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof


def recorded(folder: Path, planted: Planted, steps: int = 12) -> gpuprof.Run:
    host = TrainingHost(settings=settings())
    with host.span("main"):
        train(host, planted, steps)
    return gpuprof.open(host.write(folder / "r.gpuprof"))


def test_the_gain_of_a_step_is_that_of_the_program_without_the_cause(tmp_path: Path) -> None:
    found = recorded(tmp_path, Planted(collect=20)).whatif(remove="gc:*")
    assert found.step is not None
    assert (found.step.steps, found.step.recorded_ns) == (12, 50 * MS)
    assert found.step.low_ns == found.step.high_ns == 20 * MS
    assert found.low_ns == 12 * 20 * MS
    assert found.to_dict()["step"]["high_ns"] == 20 * MS


def test_what_is_before_the_steps_gains_nothing_in_a_step(tmp_path: Path) -> None:
    found = recorded(tmp_path, Planted(startup=300)).whatif(remove="python:read_vocabulary*")
    assert found.low_ns is not None
    assert found.low_ns > 290 * MS
    assert found.step is not None
    assert found.step.high_ns == pytest.approx(0, abs=MS)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_few_steps_and_none(steps: int, tmp_path: Path) -> None:
    run = recorded(tmp_path, Planted(startup=30), steps)
    found = run.whatif(remove="python:read_vocabulary*")
    assert (found.step is None) == (not steps)
    if found.step is not None:
        assert found.step.steps == steps
