# SPDX-License-Identifier: Apache-2.0
"""`gpuprof demo`, and what `gpuprof` prints without a command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from refusals import refused_command

import gpuprof
from gpuprof.cli.main import execute
from gpuprof.cli.run import example
from gpuprof.record.stack_sampler import why_not
from gpuprof.run.facts import statuses_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_installed_example_is_that_of_the_repository() -> None:
    assert example().read_text("utf-8") == (EXAMPLES / "transformer.py").read_text("utf-8")


@pytest.mark.slow
def test_a_run_and_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.gpuprof").mkdir()
    assert execute(["demo"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "demo-2.gpuprof",
        "demo-2.html",
        "demo.gpuprof",
    ]
    run = gpuprof.open(tmp_path / "demo-2.gpuprof")
    assert run.meta["complete"]
    # Python is sampled as by `gpuprof run`: start-up is not one untracked block.
    status = statuses_of(run.meta)
    assert status["gc"].is_on
    assert status["python"].is_on or why_not() is not None
    assert {row.name for row in run.summary().rows} >= {"layers.0.mlp.up_proj", "LanguageModel"}
    printed = capfd.readouterr().out
    assert "layers.*.mlp.up_proj x4" in printed
    assert printed.splitlines()[-1].endswith("demo-2.html")


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    refused_command(["demo", "-o", str(tmp_path / "missing")], "no_such_folder", tmp_path / "missing")


def test_pytorch_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused_command(["demo", "-o", str(tmp_path)], "not_installed")
    assert list(tmp_path.iterdir()) == []


def test_without_a_command_the_first_steps_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["gpuprof", "run"],
        ["gpuprof", "summary"],
        ["gpuprof", "flamegraph"],
    ]
