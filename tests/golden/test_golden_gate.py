# SPDX-License-Identifier: Apache-2.0
"""`gpuprof gate`: against a file and against a history, on recorded result files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import INPUTS, Run
from golden_files import GoldenFiles


@pytest.fixture(autouse=True)
def results(workplace: Path) -> Path:
    """The current folder with the recorded results."""
    shutil.copytree(INPUTS / "results", workplace, dirs_exist_ok=True)
    return workplace


@pytest.mark.parametrize("candidate", ["same", "slower", "noisy", "other_machine"])
def test_against_a_file(golden: GoldenFiles, gpuprof: Run, candidate: str) -> None:
    words = ("gate", "--baseline", "base.json", "--candidate", f"{candidate}.json", "--margin", "2%")
    golden.check(f"gate/{candidate}.txt", str(gpuprof(*words)))
    if candidate == "other_machine":
        golden.check("gate/any_machine.txt", str(gpuprof(*words, "--any-machine")))
    else:
        golden.check_json(f"gate/{candidate}.json", json.loads(gpuprof(*words, "--json").out))


@pytest.mark.parametrize("candidate", ["history_same", "history_slower"])
def test_against_a_history(golden: GoldenFiles, gpuprof: Run, candidate: str) -> None:
    words = ("gate", "--history", "history", "--candidate", f"{candidate}.json", "--margin", "2%")
    golden.check(f"gate/{candidate}.txt", str(gpuprof(*words)))
    golden.check_json(f"gate/{candidate}.json", json.loads(gpuprof(*words, "--json").out))


def test_the_layers_that_are_slower(golden: GoldenFiles, gpuprof: Run, runs: Path) -> None:
    for results, run in (("base", "old"), ("slower", "new")):
        document = json.loads(Path(f"{results}.json").read_text(encoding="utf-8"))
        Path(f"{results}.json").write_text(
            json.dumps({**document, "profile": f"{run}.gpuprof"}), encoding="utf-8"
        )
    words = ("gate", "--baseline", "base.json", "--candidate", "slower.json", "--flamegraph", "cause.html")
    golden.check("gate/cause.txt", str(gpuprof(*words)))
    assert Path("cause.html").stat().st_size
