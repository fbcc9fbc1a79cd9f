# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run --profiler`: another profiler's result as a run, and the program left as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuprof

PROGRAM = """
import sys
import torch

def inner(x):
    for number in range(20000):
        abs(number)
    return torch.relu(x @ x)

def outer():
    for _ in range(3):
        inner(torch.ones(64, 64))

outer()
print("said", *sys.argv[1:])
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, run_python: Callable[..., Any]) -> Run:
    """`run(source, *options)` runs a program under `gpuprof run` in its own folder."""

    def start(source: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(source)
        command = ("-m", "gpuprof", "run", "--out", "r.gpuprof", *options, "program.py", "--x")
        ended: subprocess.CompletedProcess[str] = run_python(*command)
        return ended

    return start


def test_torch(run: Run, tmp_path: Path) -> None:
    ended = run(PROGRAM, "--profiler", "torch")
    assert (ended.returncode, ended.stdout) == (0, "said --x\n"), ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    rows = {row.name: row for row in recorded.summary("operator").rows}
    assert rows["aten::relu"].calls == 3
    assert recorded.meta["sources"] == {"torch": "on"}
    assert ended.stderr.count("\n") == 1  # ours alone, none of Kineto's
    assert recorded.meta["command"][1:] == ["program.py", "--x"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "r.gpuprof"]


def test_torch_gives_way_to_the_programs_own(run: Run, tmp_path: Path) -> None:
    own = (
        "import torch\ntorch.ones(3).exp()\nwith torch.profiler.profile() as own:\n    torch.ones(3).cos()\n"
        "assert any(event.key == 'aten::cos' for event in own.key_averages())\n"
    )
    ended = run(own, "--profiler", "torch")
    assert ended.returncode == 0, ended.stderr
    names = {row.name for row in gpuprof.open(tmp_path / "r.gpuprof").summary("operator").rows}
    assert "aten::exp" in names
    assert "aten::cos" not in names


def test_pyinstrument(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyinstrument")
    ended = run(PROGRAM, "--profiler", "pyinstrument")
    assert (ended.returncode, ended.stdout) == (0, "said --x\n"), ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    assert recorded.meta["totals"]["spans"] == 0
    assert recorded.meta["stacks"]["samples"] > 0
    assert "inner (program.py:5)" in {row.name for row in recorded.summary("python").rows}


def test_cprofile(run: Run, tmp_path: Path) -> None:
    ended = run(PROGRAM, "--profiler", "cprofile")
    assert (ended.returncode, ended.stdout) == (0, "said --x\n"), ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    rows = {row.name: row for row in recorded.summary("python").rows}
    inner, outer = rows["inner (program.py:5)"], rows["outer (program.py:10)"]
    assert (inner.calls, outer.calls) == (3, 1)
    assert outer.total_ns >= inner.total_ns >= inner.own_ns > 0
    called = recorded.sql(
        "SELECT calls FROM function_calls WHERE caller LIKE 'outer %' AND function LIKE 'inner %'"
    )
    assert called.fetchall() == [(3,)]
    assert not any("gpuprof/" in name for name in rows)
    assert any("no instants" in note for note in recorded.meta["notes"])
    recorded.flamegraph(tmp_path / "flame.html")


@pytest.mark.parametrize("profiler", ["torch", "pyinstrument", "cprofile"])
def test_failures_stay_the_programs(run: Run, profiler: str) -> None:
    ended = run("import torch\nraise SystemExit(7)\n", "--profiler", profiler)
    assert ended.returncode == 7
    ended = run("import torch\n1 / 0\n", "--profiler", profiler, "--out", "second.gpuprof")
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "gpuprof/" not in ended.stderr


@pytest.mark.parametrize("profiler", ["torch", "cprofile"])
def test_a_program_that_is_killed_leaves_no_run(run: Run, tmp_path: Path, profiler: str) -> None:
    ended = run("import os, torch\nos.kill(os.getpid(), 9)\n", "--profiler", profiler)
    assert ended.returncode == 137
    assert "there is no run of it" in ended.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profiler", "torch", "--work"], "--profiler torch runs that profiler alone: leave --work out."),
        (["--profiler", "cprofile", "--python"], "leave --python out."),
        (["--profiler", "pyinstrument", "--no-layers"], "leave --no-layers out."),
        (["--profiler", "perf"], "'perf' is not one of"),
    ],
)
def test_options_that_make_no_sense(run: Run, options: list[str], said: str) -> None:
    ended = run("print('never')\n", *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_folder_that_exists_is_refused_before_the_program_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.gpuprof").mkdir()
    ended = run("print('never')\n", "--profiler", "torch")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "exists" in ended.stderr
