# SPDX-License-Identifier: Apache-2.0
"""Ceilings that were measured right before and right after a recording, on a machine that changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused, refused_command

import gpuprof
from gpuprof.analyze.ceilings import of_run
from gpuprof.analyze.ceilings.ceiling import Ceiling, Ceilings
from gpuprof.analyze.roofline.evidence import RooflineNoteCode
from gpuprof.analyze.roofline.utilization import load_machines
from gpuprof.cli.main import execute

# isort: split
import torch
from roofline_rows import ceilings
from torch_models import Mlp

Looks = Callable[..., None]


def at(share: float) -> Ceilings:
    """What a quick look finds of the known machine: no products of the library, and so much of its rates."""
    rows = [
        replace(row, value=row.value / share if row.unit == "ns" else row.value * share)
        for row in ceilings().rows
        if row.resource != "compute.matmul"
    ]
    return Ceilings(tuple(rows), f"at {share}", {}, quick=True)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """`looks(0.5, 0.6)` makes the next looks find so much of the cached rates."""

    def prepare(*shares: float) -> None:
        left = [at(share) for share in shares]
        monkeypatch.setattr(of_run, "load_ceilings", lambda: (ceilings(), False))
        monkeypatch.setattr(of_run, "measure_ceilings", lambda quick: left.pop(0))

    return prepare


def rows_of(before: Ceilings | None) -> tuple[dict[tuple[str, str, str | None], float], dict[str, Any]]:
    rows, facts = of_run.ceilings_for_run([], before)
    return {(row["device"], row["resource"], row["dtype"]): row["value"] for row in rows}, facts


def change_of(resource: str, facts: dict[str, Any]) -> float:
    return next(float(drift["change"]) for drift in facts["drift"] if drift["resource"] == resource)


DRAM = ("cpu", "memory.dram", None)


def test_the_best_ever_seen_is_the_ceiling_without_a_measurement_before(looks: Looks) -> None:
    looks(0.6)
    values, facts = rows_of(None)
    assert values[DRAM] == 10e9
    assert facts["around"] is False
    assert change_of("memory.dram.read", facts) == pytest.approx(-0.4)


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.6), (0.6, 0.5)])
def test_the_better_measurement_is_the_ceiling_with_one_before(
    looks: Looks, before: float, after: float
) -> None:
    looks(after)
    values, facts = rows_of(at(before))
    assert values[DRAM] == pytest.approx(6e9)
    assert values["cpu", "launch", None] == pytest.approx(1000 / 0.6)
    assert facts["around"] is True
    assert facts["measured_at"] == f"at {before}"
    assert change_of("memory.dram.read", facts) == pytest.approx(after / before - 1)


def test_what_a_quick_measurement_leaves_out_keeps_its_ceiling(looks: Looks) -> None:
    looks(0.5)
    values, _ = rows_of(at(0.5))
    # The library's product, from the cache, is above what multiply-adds reach just now.
    assert values["cpu", "compute", "fp32"] == 80e9


def test_a_recording_takes_the_ceilings_measured_around_it(looks: Looks, tmp_path: Path) -> None:
    looks(0.5, 0.4)
    model = Mlp(4)
    with gpuprof.profile(model, out=tmp_path / "r", work=True, ceilings="around") as recording:
        model(torch.ones(2, 4))
    assert recording.run.meta["ceilings"]["around"] is True
    dram = load_machines(recording.run._folder).host.find("memory.dram")
    assert isinstance(dram, Ceiling)
    assert dram.value == pytest.approx(5e9)
    assert any(note.code == RooflineNoteCode.DRIFT for note in recording.run.roofline().notes)


def test_what_cannot_be_measured_before_is_reported_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_memory(quick: bool) -> Ceilings:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(of_run, "measure_ceilings", no_memory)
    entered = False
    with (
        refused(gpuprof.UnavailableError, "cannot_measure"),
        gpuprof.profile(out=tmp_path / "r", work=True, ceilings="around"),
    ):
        entered = True
    assert not entered
    assert not (tmp_path / "r").exists()


def test_it_needs_work_and_a_known_word() -> None:
    with refused(gpuprof.RecordingError, "needs_work"):
        gpuprof.profile(ceilings="around")
    with refused(gpuprof.RecordingError, "invalid_option"):
        gpuprof.profile(work=True, ceilings="best")  # type: ignore[arg-type]
    refused_command(["run", "--ceilings", "around", "script.py"], "needs_work")


def test_a_program_that_cannot_run_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(of_run, "measure_before", lambda: pytest.fail("measured"))
    (tmp_path / "script.py").write_text("")
    (tmp_path / "there").mkdir()
    options = ["run", "--work", "--ceilings", "around"]
    assert execute([*options, str(tmp_path / "nowhere.py")]) == 2
    assert execute([*options, "--out", str(tmp_path / "there"), str(tmp_path / "script.py")]) == 2
    assert "nowhere.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--profiler", "torch", "--ceilings", "around"], "profiler_conflict"),
        (["--counters", "--no-gpu"], "needs_gpu"),
    ],
)
def test_options_that_exclude_each_other(options: list[str], code: str) -> None:
    refused_command(["run", *options, "script.py"], code)
