# SPDX-License-Identifier: Apache-2.0
"""From the journals of GPU benchmark calls to figures: statistics, rounds, reports, conclusions."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark measures PyTorch models")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks.gpu import _conclusions, _questions, _report, _rounds, run  # noqa: E402
from benchmarks.gpu._compare import Comparison, Plan  # noqa: E402
from benchmarks.gpu._compare_all import _sees  # noqa: E402
from benchmarks.gpu._journal import Entry, Journal  # noqa: E402
from benchmarks.gpu._statistics import describe, paired_ratio  # noqa: E402

MODULE_FOLDERS = (ROOT, ROOT / "tests" / "support", ROOT / "tests" / "gpu")
LINE = {"before_s": [1.0], "during_s": [2.0], "after_s": [1.0], "start_s": 0.1, "stop_s": 0.2, "recorded": {}}


# --- statistics -----------------------------------------------------------------------------------


def test_ratio_has_an_interval_over_rounds() -> None:
    found = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found["ratio"], found["low"], found["high"], found["rounds"]) == (2, 2, 2, 3)
    wide = paired_ratio([1.0, 1.1, 1.2, 1.3], [1.0, 1.0, 1.0, 1.0])
    assert 1 <= wide["low"] < wide["ratio"] < wide["high"] <= 1.3
    assert paired_ratio([3.0], [2.0])["low"] is None
    with pytest.raises(ValueError, match="as many values"):
        paired_ratio([1.0], [])


def test_quartiles() -> None:
    assert describe([1, 2, 3, 4, 5]) == {"median": 3, "first_quartile": 2, "third_quartile": 4, "repeats": 5}


class Scripted(Comparison):
    """A comparison whose children are made up."""

    __slots__ = ()

    def _child(
        self, item: str, profiler: str, steps: dict[str, int], deadline: float, **facts: Any
    ) -> list[dict[str, Any]]:
        lines = [{"workload": name, **self._figures(profiler, count)} for name, count in steps.items()]
        self.add(
            Entry(
                "workloads",
                item,
                "ok",
                1.0,
                None,
                {**facts, "profiler": profiler, "steps": steps, "lines": lines},
            )
        )
        return lines

    def _figures(self, profiler: str, count: int) -> dict[str, Any]:
        if count == 0:
            return {"error": "no device"} if self.plan.device == "broken" else {"step_s": 0.01}
        if profiler == "broken":
            return {"error": "it broke"}
        factor = {"unprofiled": 1.0, "slow": 1.5}[profiler]
        return {**LINE, "before_s": [1.0, 1.0, 1.2], "during_s": [factor, factor, 9.0]}


def scripted(tmp_path: Path, plan: Plan, **more: Any) -> tuple[int, list[Entry]]:
    entries: list[Entry] = []
    return Scripted(plan, tmp_path, tmp_path / "log", entries.append, **more).run(), entries


def facts_of(entries: list[Entry], call: int = 0) -> list[tuple[int, Any]]:
    return [(call, entry.facts) for entry in entries]


def test_comparison_of_scripted_processes(tmp_path: Path) -> None:
    plan = Plan("cpu", ["work"], ["unprofiled", "slow", "broken"], rounds=3, limit_s=1000)
    rounds, entries = scripted(tmp_path, plan)
    assert rounds == 3
    assert len(entries) == 1 + 9
    row = _rounds.rows(facts_of(entries))["work"]
    assert row["steps_in_a_chunk"] == 5
    assert row["profilers"]["slow"]["to_unprofiled"]["ratio"] == 1.5
    assert row["profilers"]["slow"]["to_unprofiled"]["rounds"] == 3
    assert row["profilers"]["slow"]["within_process"]["ratio"] == 1.5
    assert row["profilers"]["broken"] == {"errors": ["it broke"] * 3}


def test_rounds_of_several_calls_are_joined(tmp_path: Path) -> None:
    plan = Plan("cpu", ["work"], ["unprofiled", "slow"], rounds=2, limit_s=1000)
    first, second = (scripted(tmp_path, plan)[1] for _ in range(2))
    row = _rounds.rows([*facts_of(first, 0), *facts_of(second, 1)])["work"]
    assert row["profilers"]["slow"]["to_unprofiled"]["rounds"] == 4
    assert row["profilers"]["slow"]["to_unprofiled"]["low"] == 1.5


def test_comparison_stops_when_the_time_is_spent(tmp_path: Path) -> None:
    plan = Plan("cpu", ["work"], ["unprofiled", "slow"], rounds=3, limit_s=0)
    rounds, entries = scripted(tmp_path, plan)
    assert rounds == 0
    assert [entry.item for entry in entries] == ["calibration"]


def test_no_round_begins_where_the_calibration_measured_nothing(tmp_path: Path) -> None:
    plan = Plan("broken", ["work"], ["unprofiled", "slow"], rounds=3, limit_s=1000)
    rounds, entries = scripted(tmp_path, plan)
    assert rounds == 0
    assert [entry.item for entry in entries] == ["calibration"]
    assert _rounds.rows(facts_of(entries)) == {}


def test_a_profiler_is_left_out_where_it_sees_nothing(tmp_path: Path) -> None:
    assert not _sees("proton", "graph.decode")
    assert _sees("proton", "small_kernels")
    assert _sees("gpuprof", "graph.decode")
    assert _sees("gpuprof, whole graphs", "graph.decode")
    assert not _sees("gpuprof, whole graphs", "small_kernels")
    plan = Plan("cpu", ["work", "graph"], ["unprofiled", "slow"], rounds=1, limit_s=1000)
    sees = lambda profiler, workload: (profiler, workload) != ("slow", "graph")  # noqa: E731
    rows = _rounds.rows(facts_of(scripted(tmp_path, plan, sees=sees)[1]))
    assert rows["work"]["profilers"].keys() == {"unprofiled", "slow"}
    assert rows["graph"]["profilers"].keys() == {"unprofiled"}


# --- reports --------------------------------------------------------------------------------------

GPU = {"gpu": {"name": "G", "driver": "1"}}


def write_journal(path: Path, digest: str, *entries: Entry, machine: Any = None) -> Path:
    path.unlink(missing_ok=True)
    journal = Journal(path)
    journal.add(Entry("call", "begin", "ok", facts={"source_digest": digest}))
    if machine is not None:
        journal.add(Entry("build", "machine", "ok", facts=machine))
    for entry in entries:
        journal.add(entry)
    return path


def test_partial_calls_are_joined(tmp_path: Path) -> None:
    """Of one the machine is not known, since it was killed before; one was not run again."""
    first = write_journal(
        tmp_path / "a.jsonl", "d", Entry("tests", "a", "failed"), Entry("tests", "b", "ok"), machine=GPU
    )
    second = write_journal(
        tmp_path / "b.jsonl", "d", Entry("tests", "a", "ok"), Entry("tests", "b", "skipped")
    )
    assert run.main(["--merge", str(second), str(first), "--out", str(tmp_path / "c.json")]) == 0
    assert run.main(["--merge", str(first), str(second), "--out", str(tmp_path / "all.json")]) == 0
    joined = json.loads((tmp_path / "all.json").read_text("utf-8"))
    items = joined["steps"]["tests"]["items"]
    assert {name: item["state"] for name, item in items.items()} == {"a": "ok", "b": "ok"}
    assert joined["steps"]["tests"]["states"] == {"ok": 2}
    assert joined["machine"] == GPU
    assert [each["end"] for each in joined["calls"]] == ["killed", "killed"]


def test_a_report_without_a_machine(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "a.jsonl", "d", Entry("build", "machine", "timed out"))
    assert _report.merge([path])["machine"] is None


@pytest.mark.parametrize(
    ("second", "texts"),
    [
        ({"digest": "e"}, "other sources than"),
        ({"digest": "d", "machine": {"gpu": {"name": "H", "driver": "1"}}}, "calls of several machines"),
    ],
)
def test_reports_of_other_sources_and_machines_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: dict[str, Any], texts: str
) -> None:
    paths = [
        write_journal(tmp_path / "a.jsonl", "d", machine=GPU),
        write_journal(tmp_path / "b.jsonl", **second),
    ]
    assert run.main(["--merge", *map(str, paths), "--out", str(tmp_path / "all.json")]) == 2
    assert texts in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()


def test_what_is_no_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n[]\nnothing\n")
    assert run.main(["--merge", str(path), "--out", str(tmp_path / "all.json")]) == 2
    assert "no journal of a call" in capsys.readouterr().err


# --- questions about CUPTI --------------------------------------------------------------------------

FIGURES: dict[str, Any] = {
    "correlation_cost": {
        "nothing_ns": [2000.0] * 20,
        "kernel_records_ns": [2500.0] * 20,
        "launch_callback_ns": [2600.0] * 20,
        "external_ids_ns": [2900.0] * 20,
    },
    "residual_cost": {
        **{f"{phase}_ns": [2000.0] for phase in ("without_cupti", "before", "stopped", "finalized")},
        "recording_ns": [3000.0],
        "finalize_took_ns": 2e6,
    },
    "clock_error": {
        "ahead_at_least_ns": [-5000, -4000],
        "ahead_at_most_ns": [3000, 2500],
        "clock_difference_ns": [100, 180],
    },
    "timestamp_clock": {
        "shift_ns": 1e15,
        "realtime_ahead_ns": 1.7e18,
        "ahead_before_ns": 1.7e18,
        "ahead_after_ns": 1e15 + 200,
        "record_ahead_ns": 1e15 - 3000,
    },
    "empty_buffers": {
        "idle_flushes_requested": 2,
        "idle_flushes_returned": 1,
        "idle_flushes_returned_empty": 0,
        "forced_requested": 2,
        "forced_returned": 2,
    },
    "dropped_records": {"launched": 20_000, "recorded": 600, "dropped": 19_400},
    "flush_while_running": {
        "plain_flush_took_ns": 1e6,
        "plain_flush_kernels": 1,
        "forced_flush_took_ns": 2e6,
        "forced_flush_kernels": 0,
        "afterwards_kernels": 1,
    },
    "graph_clones": {
        **{f"{phase}_created": 4.0 for phase in ("capture", "instantiate", "clone", "launch")},
        **{f"{phase}_cloned": 4.0 for phase in ("capture", "instantiate", "clone", "launch")},
        "kernels": 12.0,
        "kernels_of_created_nodes": 0.0,
        "kernels_of_cloned_nodes": 12.0,
    },
    "profiler_inside": {
        "gpuprof_kernels": 200,
        "gpuprof_expected": 200,
        "torch_kernels": 100,
        "torch_expected": 100,
    },
    "native_start_during_profiler": {
        "started": {"reason": "another tool uses CUPTI"},
        "torch_kernels": 300,
        "torch_expected": 300,
    },
    "copies": {"with_launch": 18, "count": 18, "in_their_span": 18, "spans": 6},
}


def test_each_question_has_a_conclusion() -> None:
    problems = {"gpuprof_inside": "it crashed"}
    conclusions = {name: _questions.conclude(name, FIGURES, problems) for name in _questions.QUESTIONS}
    assert conclusions.keys() == _conclusions.JUDGES.keys()
    assert all(each["conclusive"] for each in conclusions.values())
    texts = {name: each["conclusion"] for name, each in conclusions.items()}
    assert texts["correlation_cost"].startswith(
        "callbacks at the launch: over kernel records alone, a callback adds 100"
    )
    assert "between -4,000 and 2,500 ns" in texts["clock_error"]
    assert "CUPTI's clock moved by 80 ns" in texts["clock_error"]
    assert texts["dropped_records"].startswith("it is exact")
    assert "follows the registered clock, records do" in texts["timestamp_clock"]
    assert "the real-time clock" in texts["timestamp_clock"]
    assert "gpuprof 200 of 200" in texts["torch_profiler"]
    assert conclusions["torch_profiler"]["problems"] == problems
    # Long lists of figures are reported as quartiles.
    assert conclusions["correlation_cost"]["figures"]["nothing_ns"]["repeats"] == 20


def test_conclusions_from_other_figures() -> None:
    drifting = {
        "ahead_at_least_ns": [-5000, 4000],
        "ahead_at_most_ns": [3000, 9000],
        "clock_difference_ns": [0, 0],
    }
    assert "it drifts" in _conclusions.JUDGES["clock_error"](drifting)
    wrong = {**FIGURES["dropped_records"], "dropped": 19_399}
    assert _conclusions.JUDGES["dropped_records"](wrong).startswith("it is not exact")
    dearer = {**FIGURES["correlation_cost"], "launch_callback_ns": [3000.0] * 20}
    assert _conclusions.JUDGES["correlation_cost"](dearer).startswith("external ids")


def test_a_question_that_crashes_is_inconclusive() -> None:
    found = _questions.conclude("residual_cost", {}, {"residual_cost": "exit code -11: no message"})
    assert (found["conclusive"], found["conclusion"]) == (False, "no figures")
    assert found["problems"] == {"residual_cost": "exit code -11: no message"}
    found = _questions.conclude("residual_cost", {"residual_cost": {"before_ns": [1.0]}}, {})
    assert found["conclusive"] is False
    assert "the figures lack" in found["conclusion"]


def test_conclusions_are_in_the_report(tmp_path: Path) -> None:
    entry = Entry("questions", "dropped_records", "ok", 1.0, None, FIGURES["dropped_records"])
    report = _report.merge([write_journal(tmp_path / "a.jsonl", "d", entry)])
    conclusions = {each["name"]: each for each in report["conclusions"]}
    assert conclusions["dropped_records"]["conclusion"].startswith("it is exact")
    assert conclusions["graph_clones"]["conclusive"] is False


# --- sources --------------------------------------------------------------------------------------


def imported_files(path: Path) -> set[Path]:
    """Return the files of this repository's tests and benchmarks that a file imports by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            paths = (folder / f"{name.replace('.', '/')}.py" for folder in MODULE_FOLDERS)
            found |= {each for each in paths if each.is_file()}
    return found


def test_the_digest_is_of_everything_that_a_call_runs() -> None:
    roots = [ROOT / each for each in _report.SOURCES]
    seen: set[Path] = set()
    files = {ROOT / "tests/conftest.py", *ROOT.glob("tests/gpu/*.py"), *ROOT.glob("benchmarks/gpu/*.py")}
    while left := files - seen:
        seen |= left
        files |= {found for each in left for found in imported_files(each)}
    assert ROOT / "tests/support/unclosed_run.py" in seen
    assert [each for each in sorted(seen) if not any(each.is_relative_to(root) for root in roots)] == []
    for program in ("tests/native/test_cupti_abi.cpp", "tests/golden/capture.cpp"):
        assert any((ROOT / program).is_relative_to(root) for root in roots)
