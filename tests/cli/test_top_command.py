# SPDX-License-Identifier: Apache-2.0
"""`gpuprof top`: the machine, a process, a run while it is recorded, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner
from refusals import refused_command

import gpuprof
from gpuprof.cli.main import cli

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
