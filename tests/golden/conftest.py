# SPDX-License-Identifier: Apache-2.0
"""Commands on fixed inputs: recorded runs, recorded results, and process runs whose samples are known."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from commands import HERE, INPUTS, Run, run_command
from golden_files import GoldenFiles, invent_machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.texts)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the commands, empty, on a machine that does not exist."""
    monkeypatch.chdir(tmp_path)
    invent_machine(monkeypatch)
    return tmp_path


@pytest.fixture
def golden(request: pytest.FixtureRequest, workplace: Path) -> GoldenFiles:
    """`golden.check(name, text)` compares a text with its golden file."""
    return GoldenFiles(request.config.getoption("--update-golden"), workplace)


@pytest.fixture
def gpuprof(workplace: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """`gpuprof("summary", "old.gpuprof")` runs a command line."""
    return lambda *words: run_command(words, capfd)


@pytest.fixture
def runs(workplace: Path) -> Path:
    """The current folder with the recorded runs `old.gpuprof`, `new.gpuprof` and `gpu.gpuprof`."""
    for run in (INPUTS / "runs").iterdir():
        shutil.copytree(run, workplace / f"{run.name}.gpuprof")
    return workplace


@pytest.fixture
def replay(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder with `models.py`, whose process runs send samples that are known."""
    python = workplace / "python"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -I -S "{HERE / "replay_worker.py"}" "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    monkeypatch.setenv("GOLDEN_PYTHON", sys.executable)
    monkeypatch.setenv("GOLDEN_RUN", str(INPUTS / "runs" / "new"))
    monkeypatch.setattr(sys, "executable", str(python))
    shutil.copy(INPUTS / "models.py", workplace)
    return workplace
