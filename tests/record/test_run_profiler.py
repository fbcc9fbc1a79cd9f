# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run --profiler`: another profiler's result as a run, and the program left as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from run_codes import note_codes

import gpuprof
from gpuprof.errors import RecordingError
from gpuprof.record import other_profilers
from gpuprof.run import profiled

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
print("output", *sys.argv[1:])
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


@pytest.mark.slow
def test_torch(run: Run, tmp_path: Path) -> None:
    ended = run(PROGRAM, "--profiler", "torch")
    assert (ended.returncode, ended.stdout) == (0, "output --x\n"), ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    rows = {row.name: row for row in recorded.summary("operator").rows}
    assert rows["aten::relu"].calls == 3
    assert {name: status.method for name, status in recorded.sources.items()} == {"torch": "other_profiler"}
    assert ended.stderr.count("\n") == 1  # ours alone, none of Kineto's
    assert recorded.meta["command"][1:] == ["program.py", "--x"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "r.gpuprof"]


@pytest.mark.slow
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
    note = gpuprof.open(tmp_path / "r.gpuprof").notes[-1]
    assert (note.code, note.values) == ("program_used_profiler", {"profiler": "torch.profiler"})


@pytest.mark.slow
def test_a_forked_child_leaves_the_trace_to_its_parent(run: Run, tmp_path: Path) -> None:
    forks = (
        "import os, torch\ntorch.ones(3).exp()\nchild = os.fork()\nif child == 0:\n"
        "    with torch.profiler.profile() as own:\n        torch.ones(3).cos()\n"
        "    os._exit(0 if any(event.key == 'aten::cos' for event in own.key_averages()) else 5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\ntorch.ones(3).sin()\n"
    )
    ended = run(forks, "--profiler", "torch")
    assert ended.returncode == 0, ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    names = {row.name for row in recorded.summary("operator").rows}
    assert {"aten::exp", "aten::sin"} <= names
    assert "program_used_profiler" not in note_codes(recorded.meta)


def test_a_trace_that_cannot_be_written_is_not_the_programs_trouble(tmp_path: Path) -> None:
    class Full:
        stopped = False

        def stop(self) -> None:
            self.stopped = True

        def export_chrome_trace(self, path: str) -> None:
            raise RuntimeError(f"no room for {path}")

    profile = other_profilers._TorchProfile(tmp_path)
    mine = profile._profile = Full()
    assert profile._suspend() is False
    assert mine.stopped
    assert len(profile.end()) == 2


def test_pyinstrument(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyinstrument")
    ended = run(PROGRAM, "--profiler", "pyinstrument")
    assert (ended.returncode, ended.stdout) == (0, "output --x\n"), ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    assert recorded.meta["totals"]["spans"] == 0
    assert recorded.meta["stacks"]["samples"] > 0
    assert "inner (program.py:5)" in {row.name for row in recorded.summary("python").rows}
    assert recorded.summary().by == "python"


@pytest.mark.slow
def test_cprofile(run: Run, tmp_path: Path) -> None:
    ended = run(PROGRAM, "--profiler", "cprofile")
    assert (ended.returncode, ended.stdout) == (0, "output --x\n"), ended.stderr
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
    assert recorded.summary().by == "python"
    assert note_codes(recorded.meta) == ["cprofile_has_no_spans"]
    recorded.flamegraph(tmp_path / "flame.html")


OWN_CPROFILE = """
import cProfile, pstats
def before(): return abs(1)
def inside(): return abs(2)
def after(): return abs(3)
before()
own = cProfile.Profile()
own.enable()
inside()
own.disable()
after()
assert {key[2] for key in pstats.Stats(own).stats} >= {"inside"}
with cProfile.Profile() as second:
    inside()
assert "inside" in {key[2] for key in pstats.Stats(second).stats}
assert "enable" not in vars(cProfile.Profile)
"""


def test_cprofile_gives_way_to_the_programs_own(run: Run, tmp_path: Path) -> None:
    ended = run(OWN_CPROFILE, "--profiler", "cprofile")
    assert ended.returncode == 0, ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    names = {row.name.partition(" ")[0] for row in recorded.summary("python").rows}
    assert "before" in names
    assert not names & {"inside", "after"}
    used = [note.values for note in recorded.notes if note.code == "program_used_profiler"]
    assert used == [{"profiler": "cProfile"}]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from 3.12 on each has a place of its own")
def test_cprofile_reports_that_another_profiler_took_its_place(run: Run, tmp_path: Path) -> None:
    ended = run(
        "import sys\nseen = []\nsys.setprofile(lambda *event: seen.append(event))\nabs(1)\n"
        "sys.setprofile(None)\nassert seen\n",
        "--profiler",
        "cprofile",
    )
    assert ended.returncode == 0, ended.stderr
    assert note_codes(gpuprof.open(tmp_path / "r.gpuprof").meta).count("program_used_profiler") == 1


def test_a_profiler_that_cannot_begin_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken(_: object) -> None:
        raise ValueError("Another profiling tool is already active")

    monkeypatch.setattr(other_profilers._FunctionProfile, "start", taken)
    other_profilers.begin_profiler("cprofile", tmp_path)
    line = "gpuprof: cprofile could not begin: Another profiling tool is already active; "
    assert capsys.readouterr().err == line + "the program runs without it\n"


# ---- the folder ---------------------------------------------------------------------------------


def run_with_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profiler: str, write: Callable[[Path, Path], None]
) -> str:
    """Run a program that leaves what `write(results, run folder)` writes; returns why there is no run."""
    path = tmp_path / "r.gpuprof"
    (tmp_path / "program.py").write_text("")

    def run_command(_: list[str], environment: dict[str, str]) -> int:
        assert path.is_dir()  # no other run gets the name
        write(Path(json.loads(environment["GPUPROF_RUN"])["results"]), path)
        return 0

    monkeypatch.setattr(profiled, "run_command", run_command)
    _, failure = profiled.run_profiled(
        str(tmp_path / "program.py"), [], is_module=False, out=path, profiler=profiler
    )
    return str(failure)


def kept_in(tmp_path: Path, failure: str) -> Path:
    found = re.search(r"(?<= )(\S+/(?:trace|functions)\.json)", failure)
    assert found is not None, failure
    assert Path(found[1]).is_relative_to(tmp_path)
    return Path(found[1])


@pytest.mark.parametrize(("profiler", "name"), [("torch", "trace.json"), ("cprofile", "functions.json")])
def test_a_result_that_makes_no_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profiler: str, name: str
) -> None:
    def damaged(results: Path, _: Path) -> None:
        (results / name).write_text("neither")

    failure = run_with_result(tmp_path, monkeypatch, profiler, damaged)
    assert kept_in(tmp_path, failure).read_text() == "neither"
    assert "\n" not in failure
    assert not (tmp_path / "r.gpuprof").exists()


def test_a_name_that_was_taken_all_the_same_is_left_to_its_taker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(results: Path, path: Path) -> None:
        (results / "functions.json").write_text("[]")
        (path / "meta.json").write_text("another's")

    failure = run_with_result(tmp_path, monkeypatch, "cprofile", taken)
    assert kept_in(tmp_path, failure).read_text() == "[]"
    assert (tmp_path / "r.gpuprof" / "meta.json").read_text() == "another's"


def test_a_folder_without_room_next_to_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with refused(RecordingError, "cannot_write", "No space left"):
        run_with_result(tmp_path, monkeypatch, "cprofile", lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize("profiler", ["torch", "pyinstrument", "cprofile"])
@pytest.mark.slow
def test_failures_stay_the_programs(run: Run, profiler: str) -> None:
    # A profiler of each call watches an import of PyTorch for seconds.
    imports = "import torch\n" if profiler == "torch" else ""
    ended = run(f"{imports}raise SystemExit(7)\n", "--profiler", profiler)
    assert ended.returncode == 7
    ended = run(f"{imports}1 / 0\n", "--profiler", profiler, "--out", "second.gpuprof")
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "gpuprof/" not in ended.stderr


@pytest.mark.parametrize("profiler", ["torch", "cprofile"])
def test_a_program_that_is_killed_leaves_no_run(run: Run, tmp_path: Path, profiler: str) -> None:
    ended = run("import os\nos.kill(os.getpid(), 9)\n", "--profiler", profiler)
    assert ended.returncode == 137
    assert "no run was written" in ended.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profiler", "torch", "--work"], "--work"),
        (["--profiler", "cprofile", "--python"], "--python"),
        (["--profiler", "pyinstrument", "--no-layers"], "--no-layers"),
        (["--profiler", "perf"], "'perf' is not one of"),
    ],
)
def test_options_that_make_no_sense(run: Run, options: list[str], message: str) -> None:
    ended = run("print('never')\n", *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_folder_that_exists_is_refused_before_the_program_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.gpuprof").mkdir()
    ended = run("print('never')\n", "--profiler", "torch")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "exists" in ended.stderr
