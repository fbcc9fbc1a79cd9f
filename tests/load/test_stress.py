# SPDX-License-Identifier: Apache-2.0
"""Stress tests: a planted leak, and the four kinds of a variable load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench import sustained_load_test, variable_load_test
from gpuprof.errors import BenchmarkError
from gpuprof.load import stress
from gpuprof.load.leaks import Meter, SoakVerdict


@pytest.mark.slow
def test_a_sustained_load_finds_a_planted_leak() -> None:
    kept: list[bytearray] = []
    found = sustained_load_test(lambda: kept.append(bytearray(4_096)), duration_minutes=0.5 / 60)
    grown = {each.meter: each.verdict for each in found.report.leaks.meters}
    assert grown[Meter.PYTHON_BLOCKS] is SoakVerdict.YES
    assert (found.verdict, found.cycles, found.failed) == (SoakVerdict.YES, 96, 0)
    assert found.requests == len(kept) - 1  # one call is the warm-up


def test_the_minutes_and_the_arrivals_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(stress, "run_soak", lambda _target, settings, *_: asked.append(settings))
    sustained_load_test(lambda: None)
    sustained_load_test(lambda: None, 2, rate=5.0, concurrency=3)
    assert [(each.duration_s, each.rate, each.concurrency) for each in asked] == [(600, None, 1), (120, 5, 3)]


def test_a_variable_load_has_four_kinds() -> None:
    sizes: list[int] = []
    found = variable_load_test(lambda x: sizes.append(len(x)), np.zeros, rate=400, duration_s=0.2)
    assert [*found.phases] == ["bursts", "ramp", "mixed_batches", "concurrent"]
    assert set(sizes) == {1, 8}
    bursts, mixed = found.phases["bursts"], found.phases["mixed_batches"]
    assert bursts.settings.pattern == "burst:5x,0.02s,every=0.2s"
    assert set(mixed.rows["units"].tolist()) == {1, 8}
    # As many samples per second as requests of one sample.
    assert mixed.settings.rate == pytest.approx(400 / 4.5)
    assert found.phases["concurrent"].settings.concurrency == 4
    assert found.phases["concurrent"].run.closed
    assert not found.interrupted
    assert "mixed batches: " in str(found)
    assert found.to_dict()["phases"].keys() == found.phases.keys()


def test_a_callable_without_inputs_has_no_batch_sizes() -> None:
    found = variable_load_test(lambda: None, duration_s=0.02)
    assert [*found.phases] == ["bursts", "ramp", "concurrent"]
    assert found.rate > 0


def test_a_module_gets_inputs_of_its_shape() -> None:
    torch = pytest.importorskip("torch")
    found = variable_load_test(torch.nn.Linear(4, 2), rate=500, duration_s=0.05, batch_sizes=(1, 2))
    assert len(found.phases) == 4
    assert all(each.statuses.keys() == {1} for each in found.phases.values())


def test_what_cannot_work_is_refused() -> None:
    def fails() -> None:
        raise ValueError("planted")

    with refused(BenchmarkError, "invalid_load"):
        variable_load_test(lambda: None, concurrency=0)
    with pytest.raises(ValueError, match="planted"):
        variable_load_test(fails)
    with refused(BenchmarkError, "invalid_schedule"):
        sustained_load_test(lambda: None, duration_minutes=0)


def test_a_model_without_a_known_input_needs_inputs() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    for test in (variable_load_test, sustained_load_test):
        with refused(BenchmarkError, "unknown_input_shape", "Sequential"):
            test(model)
    found = variable_load_test(model, lambda size: torch.ones(size, 3, 8, 8), rate=100, duration_s=0.05)
    assert set(found.phases) == {"bursts", "ramp", "mixed_batches", "concurrent"}
