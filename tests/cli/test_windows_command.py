# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run --every`: a program is unharmed, and leaves a folder of windows."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from gpuprof.cli.main import execute
from gpuprof.cli.run import run as run_command
from gpuprof.errors import GpuprofError
from gpuprof.record.window_options import WindowOptions
from gpuprof.run.windows import create_windows

# It ends once it has seen its second window, so no duration of the machine matters.
PROGRAM = """
import os, sys, time
folder = sys.argv[1]
def windows():
    return len([each for each in os.listdir(folder) if each.endswith(".gpuprof")])
while windows() < 2:
    sum(range(1000))
print("out", sys.argv)
print("err", file=sys.stderr)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
sys.exit(7)
"""


def run(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "serve.py").write_text(PROGRAM)
    options = ["--every", "200ms", "--for", "100ms", "--out", "w.windows"]
    words = [sys.executable, "-m", "gpuprof", "run", *options, "serve.py", "w.windows", end]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)


def test_output_and_exit_code_are_the_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(tmp_path, "exit")
    assert done.returncode == 7
    assert done.stdout == "out ['serve.py', 'w.windows', 'exit']\n"
    ours = [line for line in done.stderr.splitlines() if line.startswith("gpuprof: ")]
    assert len(ours) == 1
    assert [line for line in done.stderr.splitlines() if line not in ours] == ["err"]
    folder = tmp_path / "w.windows"
    assert execute(["summary", str(folder), "--json"]) == 0
    index = json.loads(capsys.readouterr().out)
    assert len(index["windows"]) == 2
    assert execute(["summary", str(folder)]) == 0
    listed = capsys.readouterr().out
    for each in index["windows"]:
        assert each["run"] in listed
        assert execute(["summary", str(folder / each["run"])]) == 0


def test_a_program_without_a_window_is_reported_and_its_folder_has_the_name_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.py").write_text("")
    (tmp_path / "short.gpuprof").mkdir()  # of a whole recording
    monkeypatch.chdir(tmp_path)
    assert execute(["run", "--every", "60s", "--for", "2s", "short.py"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("gpuprof: no window in short.windows: ")
    assert "; hint: " in line
    assert json.loads((tmp_path / "short.windows" / "windows.json").read_text())["windows"] == []


@pytest.mark.parametrize(
    ("facts", "shown", "not_shown"),
    [
        ({"ran_s": 3.0}, "ended before its first window", "left out"),
        ({"ran_s": 9.0}, "due after 4 s", "ended before its first"),
        ({"ran_s": None}, "due after 4 s", "ended before its first"),
        ({"ran_s": 9.0, "skipped": {"recording_active": 2}}, "2 while the program recorded itself", "before"),
        ({"ran_s": 9.0, "skipped": {"disk_full": 1}}, "hint: free disk space", "before its first"),
        ({"failed": 1, "last_failure": "table spans is damaged"}, "table spans is damaged", "disk space"),
    ],
)
def test_the_cause_of_a_folder_without_windows_is_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    facts: dict[str, Any], shown: str, not_shown: str,
) -> None:  # fmt: skip
    (tmp_path / "p.py").write_text("")
    index = {"windows": [], "removed": 0, "failed": 0, "skipped": {}, "ran_s": None, **facts}
    monkeypatch.setattr("gpuprof.always_on.run_windows", lambda *_, **__: (0, Path("p.windows"), index))
    assert execute(["run", "--every", "4s", "--for", "1s", str(tmp_path / "p.py")]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("gpuprof: no window in p.windows: ")
    assert shown in line
    assert not_shown not in line


def test_the_list_of_windows_has_why_some_were_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "p.windows"
    create_windows(folder, WindowOptions(), ["p.py"])
    index = json.loads((folder / "windows.json").read_text())
    index["skipped"] = {"unclosed": 8, "disk_full": 0}
    (folder / "windows.json").write_text(json.dumps(index))
    assert execute(["summary", str(folder)]) == 0
    assert "0 failed; left out: 8 while two others were not closed\n" in capsys.readouterr().out


def test_a_disk_that_had_no_room_for_the_facts_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").write_text("")
    index = {"windows": [], "removed": 0, "failed": 0, "skipped": {}, "ran_s": None}
    monkeypatch.setattr("gpuprof.always_on.run_windows", lambda *_, **__: (0, tmp_path, index))
    monkeypatch.setattr("gpuprof.record.window_sampler.LEAST_FREE_BYTES", 1 << 62)
    assert execute(["run", "--every", "4s", "--for", "1s", str(tmp_path / "p.py")]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "too little disk space is free; hint: free disk space" in line


@pytest.mark.parametrize("failing", ["Path.mkdir", "write_json"])
def test_a_program_on_a_full_disk_runs_without_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failing: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "p.py").write_text("import sys; print('ran'); sys.exit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"gpuprof.run.windows.{failing}", full)
    assert execute(["run", "--every", "60s", "--for", "2s", "p.py"]) == 3
    shown = capfd.readouterr()
    assert shown.out == "ran\n"
    assert shown.err == (
        "gpuprof: the program runs without windows: cannot make p.windows: No space left on device; "
        "hint: free disk space\n"
    )
    assert not (tmp_path / "p.windows").exists()


@pytest.mark.parametrize("fits", [0, 1])
def test_a_program_on_a_full_disk_runs_unrecorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fits: int
) -> None:
    make, made = Path.mkdir, []

    def full(path: Path, *arguments: bool, **options: bool) -> None:
        if path.is_relative_to("p.gpuprof"):
            made.append(path)
            if len(made) > fits:
                raise OSError(errno.ENOSPC, "No space left on device")
        make(path, *arguments, **options)

    (tmp_path / "p.py").write_text("import sys; print('ran'); sys.exit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pathlib.Path.mkdir", full)
    assert execute(["run", "p.py"]) == 3
    shown = capfd.readouterr()
    assert shown.out == "ran\n"
    assert shown.err == (
        "gpuprof: the program runs without being recorded: cannot make p.gpuprof: No space left on device; "
        "hint: free disk space\n"
    )
    assert not (tmp_path / "p.gpuprof").exists()


@pytest.mark.slow
def test_a_killed_program_keeps_its_windows(tmp_path: Path) -> None:
    done = run(tmp_path, "kill")
    assert done.returncode == 128 + signal.SIGKILL
    index = json.loads((tmp_path / "w.windows" / "windows.json").read_text())
    assert len(index["windows"]) == 2
    assert not list((tmp_path / "w.windows").glob("*.lock"))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--every", "soon"], "invalid_duration"),
        (["--every", "3s", "--for", "2s"], "invalid_windows"),
        (["--for", "2s"], "needs_every"),
        (["--every", "60s", "--when", "loss > 3"], "invalid_trigger"),
        (["--every", "60s", "--disk", "2"], "invalid_size"),
        (["--every", "60s", "--work"], "windows_conflict"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, words: list[str], code: str) -> None:
    (tmp_path / "serve.py").write_text("raise SystemExit('ran')")
    with pytest.raises((GpuprofError, click.UsageError)) as refusal:
        run_command.main([*words, str(tmp_path / "serve.py")], standalone_mode=False)
    assert refusal.value.code == code
    assert "\n" not in str(refusal.value)
