# SPDX-License-Identifier: Apache-2.0
"""The process of a re-run: what it writes, and what happens if it does not end well."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprof.analyze.findings.finding import RerunProblem
from gpuprof.analyze.rerun import process
from gpuprof.analyze.rerun.experiment import Experiment, ExperimentKind, Pairs
from gpuprof.analyze.rerun.process import measure

EXPERIMENT = Experiment(ExperimentKind.THREADS, 2, {"operators": [], "fewer": 1})


def run(code: str, deadline_s: float = 60.0) -> Pairs:
    return measure(EXPERIMENT, command=(sys.executable, "-c", code), deadline_s=deadline_s)


def test_pairs_and_facts_are_read() -> None:
    code = """if True:
        import json, sys
        request = json.load(sys.stdin)
        print("a library's line")
        print(json.dumps({"operators": [request["kind"]]}))
        print(json.dumps({"ordinary_ns": request["threads"]}))
        for pair in range(3):
            print(json.dumps({"pair": [5, pair]}))
    """
    assert run(code) == Pairs(((5, 0), (5, 1), (5, 2)), None, ("threads",), 2)


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ("sys.exit(3)", RerunProblem.CRASHED),
        ("os._exit(139)", RerunProblem.CRASHED),
        ("""print('{"problem": "memory"}')""", RerunProblem.MEMORY),
        ("""print('{"problem": "refused", "error": "<script>"}')""", RerunProblem.REFUSED),
    ],
)
def test_pairs_before_a_problem_are_kept(end: str, problem: RerunProblem) -> None:
    code = f"""import os, sys; sys.stdin.read(); print('{{"pair": [2, 1]}}', flush=True); {end}"""
    assert run(code) == Pairs(((2, 1),), problem)


def test_a_process_that_does_not_read_is_no_error() -> None:
    assert run("import sys; sys.exit(1)") == Pairs((), RerunProblem.CRASHED)


def test_what_a_process_wrote_before_it_was_asked_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = process._exchange

    def late(worker: Any, request: str, lines: list[dict[str, Any]]) -> None:
        worker.wait()
        exchange(worker, request, lines)

    monkeypatch.setattr(process, "_exchange", late)
    assert run("""print('{"pair": [2, 1]}')""") == Pairs(((2, 1),))


def test_the_deadline_ends_it() -> None:
    code = """import sys, time; sys.stdin.read(); print('{"pair": [2, 1]}', flush=True); time.sleep(600)"""
    found = run(code, deadline_s=3.0)
    assert found.problem is RerunProblem.DEADLINE


def test_an_interruption_ends_it_and_keeps_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = process._exchange

    def interrupted(worker: Any, request: str, lines: list[dict[str, Any]]) -> None:
        exchange(worker, request, lines)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_exchange", interrupted)
    found = run("""import sys; sys.stdin.read(); print('{"pair": [2, 1]}')""")
    assert found == Pairs(((2, 1),), RerunProblem.INTERRUPTED)


def test_a_module_in_the_current_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run("import json; print(json.dumps({'pair': [2, 1]}))") == Pairs(((2, 1),))
