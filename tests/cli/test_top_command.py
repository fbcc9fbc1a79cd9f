# SPDX-License-Identifier: Apache-2.0
"""`gpuprof top`: the machine, a process, a run while it is recorded, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from refusals import refused_command

import gpuprof
from gpuprof.cli.main import cli
from gpuprof.load.published import publishing
from gpuprof.load.requests import REQUEST

SHORT = ["--once", "--interval", "0.1"]


def test_the_machine_as_json() -> None:
    done = CliRunner().invoke(cli, ["top", "--json", *SHORT])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["machine"]["processors"] == os.cpu_count()
    assert found["run"] is None
    assert found["steps"] == {"unavailable": "no_run"}


def test_this_process_without_a_run() -> None:
    done = CliRunner().invoke(cli, ["top", str(os.getpid()), "--json", *SHORT])
    assert done.exit_code == 0, done.output
    (process,) = json.loads(done.stdout)["processes"]
    assert process["process_id"] == os.getpid()
    assert process["rss_bytes"] > 1 << 20


def test_a_run_while_it_is_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run.gpuprof"
    with gpuprof.profile(out=run, python=False):
        for _ in range(3):
            with gpuprof.span("work <b>"):
                pass
        while_recorded = CliRunner().invoke(cli, ["top", str(run), "--json", *SHORT])
    assert while_recorded.exit_code == 0, while_recorded.output
    found = json.loads(while_recorded.stdout)
    assert found["state"] == "recording"
    assert {(each["name"], each["calls"]) for each in found["calls"]} >= {("work <b>", 3)}
    refused_command(["top", str(run)], "not_recording")


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    refused_command(["top", str(tmp_path / "none.gpuprof")], "no_such_run")
    refused_command(["top", str(tmp_path)], "not_a_run")
    refused_command(["top", str(1 << 30)], "no_such_process")


def test_a_load_test_by_its_folder(tmp_path: Path) -> None:
    rows = np.zeros(9, REQUEST)
    rows["planned_ns"], rows["sent_ns"], rows["end_ns"], rows["status"] = 1, 2, 1_000_001, 1
    with publishing(tmp_path, "model.py:build", "server", has_plan=True) as publisher:
        publisher.update(rows)
        by_folder = CliRunner().invoke(cli, ["top", str(tmp_path), "--json", *SHORT])
        by_process = CliRunner().invoke(cli, ["top", str(os.getpid()), "--json", *SHORT])
        as_text = CliRunner().invoke(cli, ["top", str(tmp_path), *SHORT])
    for done in (by_folder, by_process):
        found = json.loads(done.stdout)["requests"]
        assert (found["process_id"], found["planned"], found["ended"]) == (os.getpid(), 9, 9)
        assert found["latency_sum_ns"] == 9_000_000
    assert "9 of 9 requests ended" in as_text.stdout


def test_a_command_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("work.py").write_text(
        "import gpuprof, pathlib, sys, time\n"
        "print('output of', sys.argv[1:])\n"
        "while not pathlib.Path('stop').exists():\n"
        "    with gpuprof.span('work'): time.sleep(0.001)\n"
        "sys.exit(5)\n"
    )
    words = [
        sys.executable,
        "-m",
        "gpuprof",
        "top",
        "--json",
        "--interval",
        "0.1",
        "--",
        "python3",
        "work.py",
    ]
    with subprocess.Popen([*words, "--once"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        Path("stop").touch()
        *_, last = map(json.loads, process.stdout)
    assert (process.returncode, first["state"], last["state"]) == (5, "recording", "ended")
    assert Path("work.gpuprof.log").read_text().startswith("output of ['--once']\n")
    assert gpuprof.open("work.gpuprof").meta["complete"]


def test_a_command_that_cannot_run_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["top", *SHORT, "--", "missing.py"])
    assert done.exit_code == 2
    (reason,) = done.stderr.splitlines()
    assert "missing.py" in reason


def test_options_of_commands_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.gpuprof").mkdir()
    refused_command(["top", "--out", "x"], "needs_command")
    refused_command(["top", "7", "--", "a.py"], "target_and_command")
    refused_command(["top", "--"], "no_program")
    refused_command(["top", "--", "python"], "no_program")
    refused_command(["top", "--", "python3.11", "-c", "pass"], "interpreter_option")
    refused_command(["top", "--out", "there.gpuprof", "--", "a.py"], "exists")
    refused_command(["top", "--output", "none/file", "--", "a.py"], "cannot_write")
