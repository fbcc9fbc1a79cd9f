# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the roofline's known cases: what failed on a disturbed machine is no failure."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from simulated_gpu import ceilings_of

pytest.importorskip("torch", reason="the cases are PyTorch models")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks._roofline_tries import _disturbances, _drifts, until_undisturbed
from benchmarks.roofline_cases import exit_code
from gpuprof.bench.measure.host import MachineUse

BUSY = ["other programs took 0.9 processors"]


@pytest.mark.parametrize(
    ("attempts", "verdict", "tried"),
    [
        pytest.param([(True, [])], True, 1, id="passes"),
        pytest.param([(True, BUSY)], True, 1, id="passes-all-the-same"),
        pytest.param([(False, [])], False, 1, id="fails-on-a-calm-machine"),
        pytest.param([(False, BUSY), (True, [])], True, 2, id="passes-later"),
        pytest.param([(False, BUSY), (False, [])], False, 2, id="fails-once-it-is-calm"),
        pytest.param([(False, BUSY)] * 3, None, 3, id="never-calm"),
    ],
)
def test_a_case_is_made_again_only_while_it_is_disturbed(
    attempts: list[tuple[bool, list[str]]], verdict: bool | None, tried: int
) -> None:
    left = list(attempts)
    passed, disturbed = until_undisturbed(lambda: left.pop(0), tries=3)
    assert passed is verdict
    assert len(attempts) - len(left) == tried
    assert bool(disturbed) == (verdict is None)


def use(**values: float | None) -> MachineUse:
    usual = {"others_cpus": 0.0, "stolen_share": 0.0} | values
    return MachineUse(1.0, 2, 0, usual["others_cpus"], usual["stolen_share"], None, None)


def test_disturbances_are_detected() -> None:
    assert [*_disturbances(use())] == []
    assert [*_disturbances(use(others_cpus=None, stolen_share=None))] == []
    assert [*_disturbances(use(others_cpus=0.91))] == BUSY
    assert [*_disturbances(use(stolen_share=0.05))] == ["5% of the processors' time was steal time"]


def test_changed_ceilings_are_named_by_the_largest_change() -> None:
    changes = {
        "memory.dram.read": -0.25,
        "memory.dram.copy": -0.05,
        "memory.l2.read": 0.3,
        "compute.avx2": 0.1,
    }
    drift = [
        {"device": "cpu", "resource": name, "dtype": None, "change": value} for name, value in changes.items()
    ]
    assert [*_drifts({"ceilings": {"drift": drift}})] == [
        "memory.dram.read changed by -25% meanwhile",
        "memory.l2.read changed by +30% meanwhile",
    ]


@pytest.mark.parametrize(
    ("verdicts", "code"), [([True, True], 0), ([True, None], 3), ([None, False, True], 1), ([], 0)]
)
def test_the_exit_code_is_that_of_the_contract(verdicts: list[bool | None], code: int) -> None:
    assert exit_code(verdicts) == code


def test_on_a_gpu_the_processors_ceilings_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a minute of the GPU's time, and their drift would have each case made again."""
    import torch

    from benchmarks._roofline_tries import record
    from gpuprof.analyze.ceilings import of_run as ceilings_of_run

    of_gpu = [asdict(row) for row in ceilings_of()], {"gpus": [], "drift": [], "notes": []}
    monkeypatch.setattr(ceilings_of_run, "_gpu_ceilings", lambda _gpu: of_gpu)
    for name in ("load_ceilings", "measure_ceilings"):
        monkeypatch.setattr(ceilings_of_run, name, lambda *_, **__: pytest.fail("measured"))
    roofline, _ = record(torch.nn.Linear(4, 4), (torch.ones(1, 4),), 2, backward=False, device="cuda")
    assert "aten::addmm" in [row.operator for row in roofline.operators]
