# SPDX-License-Identifier: Apache-2.0
"""Models that misbehave when their call is made once more, after the program's own calls were fine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_codes import source_code

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import torch
from roofline_rows import know_ceilings
from torch import nn


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    know_ceilings(monkeypatch)


class Once(nn.Module):
    """Is well the first time, and raises when it is called again."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.error = error
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 1:
            raise self.error
        return self.linear(x)


class NoBusinessOfOurs(BaseException):
    pass


def profile_once(error: BaseException, out: Path) -> None:
    model = Once(error)
    with gpuprof.profile(model, out=out, work=True):
        model(torch.ones(2, 4))


@pytest.mark.parametrize("make", [lambda: SystemExit(9), NoBusinessOfOurs, GeneratorExit])
def test_what_a_model_raises_when_called_again_is_a_note(
    make: Callable[[], BaseException], tmp_path: Path
) -> None:
    profile_once(make(), tmp_path / "r")
    meta = gpuprof.open(tmp_path / "r").meta
    assert meta["complete"]
    assert any(type(make()).__name__ in note["values"]["error"] for note in meta["notes"])


def test_an_interrupt_while_counting_reaches_the_program_after_the_run_was_closed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        profile_once(KeyboardInterrupt(), tmp_path / "r")
    run = gpuprof.open(tmp_path / "r")
    assert run.meta["complete"]
    assert run.meta["work"] is None
    assert source_code(run.meta, "work") == "off: interrupted"
    assert run.sql("SELECT count(*) FROM spans WHERE kind = 'layer'").fetchall() == [(2,)]


def test_the_block_s_own_error_is_not_replaced(tmp_path: Path) -> None:
    def program() -> None:
        model = Once(KeyboardInterrupt())
        with gpuprof.profile(model, out=tmp_path / "r", work=True):
            model(torch.ones(2, 4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


PROGRAM = """
import sys
import torch

class Once(torch.nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 1:
            raise KeyboardInterrupt
        return x + 1

Once()(torch.ones(4))
sys.exit(3)
"""


@pytest.mark.slow
def test_gpuprof_run_keeps_the_program_s_end(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_python("-m", "gpuprof", "run", "--work", "--out", "r", "program.py")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert source_code(gpuprof.open(tmp_path / "r").meta, "work") == "off: interrupted"


def test_a_run_records_whether_work_was_wanted(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "without"):
        pass
    with gpuprof.profile(out=tmp_path / "with", work=True):
        torch.ones(2)
    assert "work" not in gpuprof.open(tmp_path / "without").meta["sources"]
    assert source_code(gpuprof.open(tmp_path / "with").meta, "work") == "counted"
