# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run --profiler line`: times of lines as a run, by line_profiler or by a stub of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from run_codes import note_codes

import gpuprof
from gpuprof.errors import RunError
from gpuprof.record.line_program import rows_of

PROGRAM = """
import sys

def twice(n):
    total = 0
    for number in range(n):
        total += number
    return total

if __name__ == "__main__":
    print(twice(7), *sys.argv[1:])
    sys.exit(3)
"""
# What gpuprof calls of line_profiler, as its documentation describes it; times are in microseconds.
STUB = """
class LineStats:
    unit = 1e-6
    timings = {}

class LineProfiler:
    def get_stats(self):
        return LineStats()
"""
STUB_AUTOPROFILE = """
import line_profiler

def run(script_file, ns, prof_mod, profile_imports=False, as_module=False):
    line_profiler.LineStats.timings = {(script_file, 4, "twice"): [(5, 1, 2), (7, 7, 30), (6, 8, 8)]}
    exec(compile(open(script_file).read(), script_file, "exec"), dict(ns))
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, run_python: Any) -> Run:
    """`run(*options)` runs the program under line_profiler in its own folder."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(*options: str) -> subprocess.CompletedProcess[str]:
        words = ("-m", "gpuprof", "run", "--profiler", "line", "--out", "r.gpuprof", *options)
        ended: subprocess.CompletedProcess[str] = run_python(*words)
        return ended

    return start


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = tmp_path / "line_profiler"
    (package / "autoprofile").mkdir(parents=True)
    (package / "__init__.py").write_text(STUB)
    (package / "autoprofile" / "__init__.py").write_text("")
    (package / "autoprofile" / "autoprofile.py").write_text(STUB_AUTOPROFILE)


def test_lines_of_a_script(run: Run, stub: None, tmp_path: Path) -> None:
    ended = run("program.py", "--x")
    assert (ended.returncode, ended.stdout) == (3, "21 --x\n"), ended.stderr
    recorded = gpuprof.open(tmp_path / "r.gpuprof")
    found = recorded.lines()
    shown = [(row.function, row.line, row.hits, row.total_ns, row.source) for row in found.rows]
    assert shown == [
        ("twice", 7, 7, 30_000, "total += number"),
        ("twice", 6, 8, 8_000, "for number in range(n):"),
        ("twice", 5, 1, 2_000, "total = 0"),
    ]
    assert [row.share for row in found.rows] == [0.75, 0.2, 0.05]
    assert found.rows[1].mean_ns == 1000
    assert note_codes(recorded.meta) == ["lines_have_no_spans"]
    assert found.to_dict(1)["rows"][0]["line"] == 7


@pytest.mark.skipif(
    importlib.util.find_spec("line_profiler") is None, reason="line_profiler is not installed"
)
@pytest.mark.parametrize("target", [("program.py",), ("-m", "program")])
def test_the_runs_of_each_line_are_counted(run: Run, tmp_path: Path, target: tuple[str, ...]) -> None:
    ended = run(*target, "--x")
    assert (ended.returncode, ended.stdout) == (3, "21 --x\n"), ended.stderr
    hits = {row.line: row.hits for row in gpuprof.open(tmp_path / "r.gpuprof").lines().rows}
    assert {line: hits[line] for line in (5, 6, 7, 8)} == {5: 1, 6: 8, 7: 7, 8: 1}


def test_the_summary_of_lines(run: Run, stub: None, run_python: Any) -> None:
    run("program.py")
    for words in ((), ("--by", "line")):
        ended = run_python("-m", "gpuprof", "summary", "r.gpuprof", *words)
        assert ended.returncode == 0, ended.stderr
        assert "program.py:7" in ended.stdout
    as_json = run_python("-m", "gpuprof", "summary", "r.gpuprof", "--json", "--top", "1")
    assert [row["line"] for row in json.loads(as_json.stdout)["summary"]["rows"]] == [7]


def test_a_run_without_lines(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof", operators=False), gpuprof.span("work"):
        pass
    with refused(RunError, "no_lines"):
        gpuprof.open(tmp_path / "r.gpuprof").lines()


def test_without_line_profiler_it_is_named(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['line_profiler'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = run("program.py")
    assert ended.returncode == 2
    assert "line_profiler" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "r.gpuprof").exists()


def test_units_become_nanoseconds() -> None:
    class Stats:
        unit = 1e-6
        timings = {("missing.py", 1, "f"): [(2, 3, 5)]}  # noqa: RUF012

    assert rows_of(Stats()) == [
        {"file": "missing.py", "function": "f", "line": 2, "hits": 3, "total_ns": 5000, "source": ""}
    ]
