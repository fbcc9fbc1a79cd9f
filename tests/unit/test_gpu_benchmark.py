# SPDX-License-Identifier: Apache-2.0
"""The benchmark for a GPU, run on a CPU with tiny networks. No figure of it is looked at, only its form."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark measures PyTorch models")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks.gpu import _answers, _build, _report, _run_steps, fetch_wheels, settle  # noqa: E402
from benchmarks.gpu._compare import Comparison, Plan  # noqa: E402
from benchmarks.gpu._processes import Done, run  # noqa: E402
from benchmarks.gpu._statistics import describe, paired_ratio  # noqa: E402

SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"
LINE = {"before_s": [1.0], "during_s": [2.0], "after_s": [1.0], "start_s": 0.1, "stop_s": 0.2, "told": {}}


def run_benchmark(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpu-benchmark")
    words = ["--steps", "doctor,workloads", "--limit", "workloads=200"]
    for workload in ("small_kernels", "convnet.training.1"):
        words += ["--workload", workload]
    result = run_benchmark(folder, *words, "--profiler", "gpuprof", "--revision", "0123abc")
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads((folder / "gpu.json").read_text("utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == ["gpu.json", "log.txt"]
    return found


def test_report_says_what_it_ran_on(report: dict[str, Any]) -> None:
    assert report["revision"] == "0123abc"
    assert report["source_digest"] == _report.source_digest()
    assert report["machine"]["python"] == sys.version.split()[0]
    assert report["machine"]["packages"]["torch"]
    assert report["quick"] is True
    assert any(check["name"] for check in report["steps"]["doctor"]["doctor"]["checks"])


def test_workloads_are_measured_under_each_profiler(report: dict[str, Any]) -> None:
    section = report["steps"]["workloads"]
    assert section["state"] == "ok", section
    assert section["problems"] == []
    assert len(section["workloads"]) == 2
    for row in section["workloads"].values():
        assert row["profilers"].keys() == {"unprofiled", "gpuprof"}
        for entry in row["profilers"].values():
            assert entry["errors"] == []
            assert entry["step_s"]["median"] > 0
            assert entry["to_unprofiled"]["rounds"] == 1
        assert row["profilers"]["unprofiled"]["to_unprofiled"]["ratio"] == 1
        assert row["profilers"]["gpuprof"]["told"]["complete"] is True
        assert row["profilers"]["gpuprof"]["told"]["totals"]["spans"] > 0


def test_what_cannot_be_had_says_why(report: dict[str, Any]) -> None:
    left_out = report["steps"]["workloads"]["left_out"]
    assert left_out["proton"] == "needs a CUDA device"
    assert left_out["graph.decode"] == "needs a CUDA device"


def test_a_failed_step_is_told_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_benchmark(
        tmp_path, "--steps", "doctor,tests", "--limit", "doctor=0", "--limit", "tests=0.01"
    )
    assert result.returncode == 1
    assert "not ok: doctor, tests" in result.stderr
    steps = json.loads((tmp_path / "gpu.json").read_text("utf-8"))["steps"]
    assert steps["doctor"] == {"state": "skipped", "problem": "no time was left"}
    assert steps["tests"]["state"] == "failed"
    assert "ended at its limit" in steps["tests"]["problem"]


def test_what_was_done_is_kept_when_the_run_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import run as run_module

    def ended(settings: Any, _limit_s: float) -> dict[str, Any]:
        settings.save({"half": "done"})
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("unreachable")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run_module._run_steps, "describe", lambda _settings: None)
    monkeypatch.setattr(
        run_module, "STEPS", {"doctor": (lambda _settings, _limit_s: {}, 9), "tests": (ended, 9)}
    )
    try:
        assert run_module.main(["--out", str(tmp_path), "--steps", "doctor,tests"]) == 3
    finally:
        signal.signal(signal.SIGTERM, before)
    steps = json.loads((tmp_path / "gpu.json").read_text("utf-8"))["steps"]
    assert {name: step["state"] for name, step in steps.items()} == {
        "doctor": "ok",
        "tests": "running",
        "end": "interrupted",
    }
    assert steps["tests"]["half"] == "done"


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    result = run_benchmark(tmp_path, "--steps", "doctor,nothing")
    assert result.returncode == 2
    assert "unknown step 'nothing'" in result.stderr


# --- processes ------------------------------------------------------------------------------------


def test_a_command_ends_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    # Both would wait for ever; the child holds the pipe's end open for as long as it lives.
    program = (
        "import os, subprocess, sys, threading\n"
        "subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        "print('started', flush=True)\n"
        "threading.Event().wait()\n"
    )
    log = tmp_path / "log.txt"
    done = run([sys.executable, "-c", program], limit_s=3, log=log)
    assert done.code is None
    assert done.problem is not None
    assert "ended at its limit" in done.problem
    assert done.output == "started\n"
    assert "started" in log.read_text("utf-8")


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = run([tmp_path / "nothing"], limit_s=1, log=tmp_path / "log.txt")
    assert done.problem is not None
    assert "No such file" in done.problem


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

    __slots__ = ("calls",)

    def _child(self, profiler: str, steps: dict[str, int], deadline: float) -> list[dict[str, Any]]:
        if set(steps.values()) == {0}:
            return [{"workload": name, "step_s": 0.01} for name in steps]
        if profiler == "broken":
            return [{"workload": name, "error": "it broke"} for name in steps]
        factor = {"unprofiled": 1.0, "slow": 1.5}[profiler]
        line = {**LINE, "before_s": [1.0, 1.0, 1.2], "during_s": [factor, factor, 9.0]}
        return [{"workload": name, **line} for name in steps]


def test_comparison_of_scripted_processes(tmp_path: Path) -> None:
    saved: list[Any] = []
    plan = Plan("cpu", ["work"], ["unprofiled", "slow", "broken"], rounds=3, limit_s=1000)
    result = Scripted(plan, tmp_path, tmp_path / "log", saved.append).run()
    assert len(saved) == 9
    row = result["workloads"]["work"]
    assert row["steps_in_a_chunk"] == 5
    assert row["profilers"]["slow"]["to_unprofiled"]["ratio"] == 1.5
    assert row["profilers"]["slow"]["to_unprofiled"]["rounds"] == 3
    assert row["profilers"]["slow"]["within_process"]["ratio"] == 1.5
    assert row["profilers"]["broken"] == {"errors": ["it broke"] * 3}


def test_comparison_stops_when_the_time_is_spent(tmp_path: Path) -> None:
    plan = Plan("cpu", ["work"], ["unprofiled", "slow"], rounds=3, limit_s=0)
    result = Scripted(plan, tmp_path, tmp_path / "log", lambda _result: None).run()
    assert result["problems"] == ["the time was spent in round 1"]
    assert result["workloads"]["work"]["profilers"] == {}


# --- reports --------------------------------------------------------------------------------------


def write_report(path: Path, digest: str, **steps: Any) -> Path:
    report = _report.Report(path, {"source_digest": digest, "machine": {"gpu": {"name": "G", "driver": "1"}}})
    for name, section in steps.items():
        report.put(name, section)
    return path


def test_reports_of_one_machine_are_joined(tmp_path: Path) -> None:
    first = write_report(tmp_path / "a.json", "d", build={"state": "ok"}, tests={"state": "failed"})
    second = write_report(tmp_path / "b.json", "d", tests={"state": "ok"}, build={"state": "failed"})
    assert main_of_run("--merge", str(first), str(second), "--out", str(tmp_path / "all.json")) == 0
    joined = json.loads((tmp_path / "all.json").read_text("utf-8"))
    assert {name: section["state"] for name, section in joined["steps"].items()} == {
        "build": "ok",
        "tests": "ok",
    }


def test_reports_of_other_sources_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_report(tmp_path / "a.json", "d")
    first_and_more = write_report(tmp_path / "b.json", "e", tests={"state": "ok"})
    write_report(first, "d", build={"state": "ok"})
    assert main_of_run("--merge", str(first), str(first_and_more), "--out", str(tmp_path / "all.json")) == 2
    assert "is of another source_digest" in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()


def main_of_run(*arguments: str) -> int:
    from benchmarks.gpu import run as run_module

    return run_module.main(arguments)


def test_junit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="a" name="good" time="1.5"/>'
        '<testcase classname="a" name="bad" time="0"><failure message="1 == 2">long</failure></testcase>'
        '<testcase classname="a" name="not" time="0"><skipped message="no GPU"/></testcase>'
        '<testcase classname="a" name="broken" time="0"><error message="fixture"/></testcase>'
        "</testsuite></testsuites>"
    )
    found = [(test["test"], test["state"], test["message"]) for test in _run_steps.read_junit(path)]
    assert found == [
        ("a.good", "passed", None),
        ("a.bad", "failed", "1 == 2"),
        ("a.not", "skipped", "no GPU"),
        ("a.broken", "failed", "fixture"),
    ]


# --- wheels ---------------------------------------------------------------------------------------


def test_what_has_no_wheel_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "WHEELS", tmp_path)
    monkeypatch.setattr(_build, "NEEDED", {"no-such-package": "no_such_package"})
    monkeypatch.setattr(_build, "WANTED", {})
    section = _build.build(10, tmp_path / "log.txt")
    assert section["missing"] == ["no-such-package"]
    assert "fetch_wheels.py" in section["problem"]


def test_of_several_wheels_the_last_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "WHEELS", tmp_path)
    names = ("duckdb-2.0-py3-none-any.whl", "duckdb-1.0-py3-none-any.whl", "rich-13-py3-none-any.whl")
    for age, name in enumerate(names):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    assert [wheel.name for wheel in _build.newest_wheels()] == [names[1], names[2]]


def test_only_what_is_missing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, site, ran = tmp_path / "wheels", tmp_path / "site", []
    wheels.mkdir()
    monkeypatch.setattr(_build, "WHEELS", wheels)
    monkeypatch.setattr(_build, "SITE", site)
    monkeypatch.setattr(_build, "NEEDED", {"no-such-package": "no_such_package", "numpy": "numpy"})
    monkeypatch.setattr(_build, "WANTED", {})
    for name in ("no_such_package-1.0-py3-none-any.whl", "numpy-1.0-py3-none-any.whl"):
        (wheels / name).touch()

    def install(words: list[Any], **_options: Any) -> None:
        ran.append([Path(word).name for word in words if str(word).endswith(".whl")])
        (site / "no_such_package").mkdir(parents=True)
        (site / "no_such_package-1.0.dist-info").mkdir()

    monkeypatch.setattr(_build, "run", install)
    name = "no_such_package-1.0-py3-none-any.whl"
    assert _build.install_missing(10, tmp_path / "log") == ([name], [])
    assert _build.install_missing(10, tmp_path / "log") == ([], [])
    assert ran == [[name]]


def test_wheels_are_asked_for_by_version_and_machine() -> None:
    words = fetch_wheels.command(["duckdb"], "3.12", "aarch64", Path("wheels"))
    assert words[-1] == "duckdb"
    assert words[words.index("--python-version") + 1] == "3.12"
    assert "manylinux_2_28_aarch64" in words
    assert {"--no-deps", "--only-binary=:all:"} <= set(words)


# --- open questions -------------------------------------------------------------------------------

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
    "clock_error": {"ahead_at_least_ns": [-5000, -4000], "ahead_at_most_ns": [3000, 2500]},
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
        "answer": {"reason": "another tool uses CUPTI"},
        "torch_kernels": 300,
        "torch_expected": 300,
    },
    "copies": {"tied": 18, "count": 18, "in_their_span": 18, "spans": 6},
}


def test_each_question_has_an_answer() -> None:
    def ask(case: str) -> tuple[dict[str, Any] | None, str | None]:
        return FIGURES.get(case), None if case in FIGURES else "it crashed"

    answers = {each["name"]: each for each in settle.settle(list(settle.QUESTIONS), ask)}
    assert answers.keys() == settle.QUESTIONS.keys() == _answers.JUDGES.keys()
    assert not [each["answer"] for each in answers.values() if each["answer"].startswith("not settled")]
    said = {name: each["answer"] for name, each in answers.items()}
    assert said["correlation_cost"].startswith(
        "callbacks at the launch: over kernel records alone, a callback adds 100"
    )
    assert "between -4,000 and 2,500 ns" in said["clock_error"]
    assert said["dropped_records"].startswith("it is exact")
    assert "follows the registered clock, records do" in said["timestamp_clock"]
    assert "the real-time clock" in said["timestamp_clock"]
    assert "gpuprof 200 of 200" in said["torch_profiler"]
    assert "gpuprof_inside: it crashed" in answers["torch_profiler"]["problems"]
    # Long lists of figures are told as quartiles.
    assert answers["correlation_cost"]["figures"]["nothing_ns"]["repeats"] == 20


def test_the_other_answers() -> None:
    drifting = {"ahead_at_least_ns": [-5000, 4000], "ahead_at_most_ns": [3000, 9000]}
    assert "it drifts" in _answers.JUDGES["clock_error"](drifting)
    wrong = {**FIGURES["dropped_records"], "dropped": 19_399}
    assert _answers.JUDGES["dropped_records"](wrong).startswith("it is not exact")
    dearer = {**FIGURES["correlation_cost"], "launch_callback_ns": [3000.0] * 20}
    assert _answers.JUDGES["correlation_cost"](dearer).startswith("external ids")


def test_a_question_that_crashes_is_not_settled() -> None:
    (answer,) = settle.settle(["residual_cost"], lambda _case: (None, "exit code -11: no message"))
    assert answer["answer"] == "not settled: residual_cost: exit code -11: no message"
    (answer,) = settle.settle(["residual_cost"], lambda _case: ({"before_ns": [1.0]}, None))
    assert answer["answer"].startswith("not settled: the figures are not what was expected")


def test_done_tells_its_problem() -> None:
    assert Done(0, "", "", 1.0).problem is None
    assert Done(1, "", "a\nthe reason\n", 1.0).problem == "exit code 1: the reason"


# --- networks -------------------------------------------------------------------------------------


def test_resnet_50_has_its_parameters() -> None:
    import torch

    from benchmarks.gpu._networks import ResNet

    with torch.device("meta"):
        model = ResNet()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032


def test_decoding_continues_what_prefill_began() -> None:
    import torch

    from benchmarks.gpu._networks import Decoder

    torch.manual_seed(0)
    model = Decoder(layers=2, width=16, heads=2, vocabulary=32, batch=1, length=6).eval()
    tokens = torch.randint(32, (1, 6))
    with torch.no_grad():
        whole = model(tokens, 0)
        model(tokens[:, :4], 0)
        model(tokens[:, 4:5], 4)
        torch.testing.assert_close(model(tokens[:, 5:], 5), whole)
