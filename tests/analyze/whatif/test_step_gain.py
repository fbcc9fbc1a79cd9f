# SPDX-License-Identifier: Apache-2.0
"""The gain of a step: that of the simulated program without the cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.whatif.step_gain import REPLAY_ERROR, replay_interval, step_interval


def recorded(folder: Path, planted: Planted, steps: int = 12) -> gpuprof.Run:
    host = TrainingHost(settings=settings())
    with host.span("main"):
        train(host, planted, steps)
    return gpuprof.open(host.write(folder / "r.gpuprof"))


def test_the_gain_of_a_step_is_that_of_the_program_without_the_cause(tmp_path: Path) -> None:
    found = recorded(tmp_path, Planted(collect=20)).whatif(remove="gc:*")
    assert found.step is not None
    assert (found.step.steps, found.step.recorded_ns) == (12, 50 * MS)
    # Steps of equal length vary by nothing: what remains is the error of replays.
    assert found.step.low_ns == pytest.approx((1 - REPLAY_ERROR) * 20 * MS)
    assert found.step.high_ns == pytest.approx((1 + REPLAY_ERROR) * 20 * MS)
    assert found.low_ns == 12 * 20 * MS
    assert found.to_dict()["step"]["high_ns"] == found.step.high_ns


@pytest.mark.parametrize("factor", [0.001, 0.5, 0.99])
def test_what_only_takes_longer_gains_nothing(factor: float, tmp_path: Path) -> None:
    found = recorded(tmp_path, Planted(collect=20, collect_every=6)).whatif(speed_up={"gc:*": factor})
    assert found.step is not None
    assert found.step.low_ns < 0
    assert found.step.low_ns <= found.step.high_ns <= 0


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


@pytest.mark.parametrize("count", [5, 6, 12, 40, 1_000])
def test_the_variation_of_steps_is_that_of_students_interval(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    gains = np.random.default_rng(1).gamma(2.0, 5.0, count)
    error = stats.sem(gains)
    low, high = stats.t.interval(0.9, count - 1, loc=gains.mean(), scale=error)
    assert step_interval([gains], relative_error=0.0) == pytest.approx((low, high), abs=0.02 * error)


def test_nine_in_ten_intervals_contain_the_real_gain() -> None:
    """The predicted gain of each step is known with an error that is common to all steps of a program."""
    random, contained, trials = np.random.default_rng(2), 0, 2_000
    for _ in range(trials):
        real = 10.0
        # Nine in ten of normal errors are within 1.645 standard deviations.
        replayed = real * (1 + random.normal(0, REPLAY_ERROR / 1.645))
        low, high = step_interval([replayed + random.normal(0, 3.0, 12)])
        contained += low <= real <= high
    assert 0.87 <= contained / trials <= 0.94


def test_the_ends_of_a_gain() -> None:
    # A pause in one step of ten: no step is slower without it, so the mean is not.
    rare = np.array([0.0] * 9 + [50.0])
    low, high = step_interval([rare])
    assert low == 0
    assert high > 10
    # One step that takes much longer: the mean gains at least what each step does.
    low, _ = step_interval([np.array([10.0] * 9 + [1000.0])])
    assert low == pytest.approx((1 - REPLAY_ERROR) * 10)
    # Two steps: their range.
    low, high = step_interval([np.array([90.0, 110.0])])
    assert (low, high) == pytest.approx((100 - np.hypot(10, 20), 100 + np.hypot(10, 20)))
    # Ways to replay the same steps, and a loss.
    low, high = step_interval([np.full(8, 10.0), np.full(8, -10.0)])
    assert (low, high) == pytest.approx((-12.0, 12.0))
    assert replay_interval(-10.0, 20.0) == pytest.approx((-12.0, 24.0))
