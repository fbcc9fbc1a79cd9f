# SPDX-License-Identifier: Apache-2.0
"""LoadGen in a process of its own: its verdicts are ours on the same queries, and its traps are handled."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import FailedRunError, TimeLimitError
from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.load import loadgen, loadgen_process
from gpuprof.load.loadgen import LoadgenResult, LoadgenSettings, read_trace, require_loadgen, run_loadgen
from gpuprof.load.mlperf import RULES, MlperfScenario, ScenarioVerdict, judge

MODELS = {
    "sleeps": "import time\ndef build():\n    return lambda: time.sleep(0.001)\n",
    "fails": "calls = []\ndef build():\n    def call():\n        calls.append(1)\n"
    "        assert len(calls) < 5, 'planted'\n    return call\n",
    "hangs": "import time\ncalls = []\ndef build():\n    def call():\n        calls.append(1)\n"
    "        time.sleep(1000 if len(calls) > 5 else 0)\n    return call\n",
    "crashes": "import os\ncalls = []\ndef build():\n    def call():\n        calls.append(1)\n"
    "        len(calls) > 5 and os.abort()\n    return call\n",
}
Run = Callable[..., LoadgenResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(model: str, scenario: MlperfScenario, rate: float, **settings: Any) -> LoadgenResult:
        file = tmp_path / f"{model}.py"
        file.write_text(MODELS[model])
        spec = SystemSpec(f"{file}:build", framework="python")
        wanted = LoadgenSettings(scenario, rate, **{"duration_s": 0.5, "trace": True, **settings})
        return run_loadgen(spec, wanted, tmp_path / "logs")

    return run


CASES = {
    "single-stream": (MlperfScenario.SINGLE_STREAM, 800.0, {}),
    "single-stream, too few queries": (MlperfScenario.SINGLE_STREAM, 3_000.0, {"duration_s": 0.02}),
    "multi-stream": (MlperfScenario.MULTI_STREAM, 800.0, {"duration_s": 1.0}),
    "server": (MlperfScenario.SERVER, 300.0, {"duration_s": 2.0, "latency_bound_s": 5.0}),
    "server, too slow": (MlperfScenario.SERVER, 300.0, {"duration_s": 2.0, "latency_bound_s": 0.0005}),
    "server, too few queries": (MlperfScenario.SERVER, 100.0, {"latency_bound_s": 5.0}),
    "offline": (MlperfScenario.OFFLINE, 3_000.0, {"duration_s": 0.1, "batch_size": 8}),
}
EXPECTED = {
    "single-stream, too few queries": ScenarioVerdict.INSUFFICIENT,
    "server": ScenarioVerdict.VALID,
    "server, too slow": ScenarioVerdict.INVALID,
    "server, too few queries": ScenarioVerdict.INSUFFICIENT,
}


@pytest.mark.needs("mlperf_loadgen")
@pytest.mark.parametrize("case", CASES)
def test_our_verdict_is_that_of_loadgen_on_times_that_it_took(run: Run, case: str) -> None:
    scenario, rate, settings = CASES[case]
    found = run("sleeps", scenario, rate, **settings)
    rules = replace(RULES[scenario], least_duration_s=found.settings.duration_s, least_samples=1)
    ours = judge(found.traced_queries(), replace(rules, latency_bound_s=found.settings.latency_bound_s))
    assert (ours.verdict is ScenarioVerdict.VALID) == found.is_valid
    assert ours.verdict is EXPECTED.get(case, ours.verdict)
    assert found.errors == ()
    # The percentile is an element, so it is equal to the nanosecond.
    assert ours.latency_s == found.percentile_s
    if ours.early_stopping_s is not None:
        assert f" {round(ours.early_stopping_s * 1e9)}" in found.summary
    keys = ("result_completed_samples_per_sec", "result_samples_per_second")
    for rate in (found.figures[key] for key in keys if key in found.figures):
        assert ours.samples_per_s == pytest.approx(rate, rel=1e-4)


@pytest.mark.needs("mlperf_loadgen")
def test_a_model_that_fails_is_an_error_with_its_reason(run: Run) -> None:
    with refused(FailedRunError, "failed", "planted"):
        run("fails", MlperfScenario.SINGLE_STREAM, 100)


@pytest.mark.needs("mlperf_loadgen")
def test_a_missing_response_is_a_time_limit(run: Run) -> None:
    with refused(TimeLimitError, "time limit"):
        run("hangs", MlperfScenario.SERVER, 100, latency_bound_s=1.0, time_limit_s=4.0)


@pytest.mark.needs("mlperf_loadgen")
def test_a_process_that_crashes_is_an_error(run: Run) -> None:
    with refused(FailedRunError, "failed", "-6"):
        run("crashes", MlperfScenario.SINGLE_STREAM, 100)


@pytest.mark.needs("mlperf_loadgen")
def test_an_audit_file_of_the_working_folder_is_not_read(run: Run, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit.config").write_text("*.SingleStream.min_query_count = 100000\n")
    found = run("sleeps", MlperfScenario.SINGLE_STREAM, 500, duration_s=0.1, trace=False)
    assert found.queries < 1_000
    with refused(BenchmarkError, "no_trace"):
        found.traced_queries()


@pytest.mark.needs("mlperf_loadgen")
def test_logs_are_not_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mlperf_log_summary.txt").write_text("of an earlier run")
    with refused(BenchmarkError, "folder_not_empty"):
        run("sleeps", MlperfScenario.SINGLE_STREAM, 500)


def test_settings_that_loadgen_would_hang_on_or_change_are_refused() -> None:
    stream, server = MlperfScenario.SINGLE_STREAM, MlperfScenario.SERVER
    for rate in (0.0, -5.0, math.nan, math.inf):
        with refused(BenchmarkError, "invalid_loadgen_setting", "rate"):
            LoadgenSettings(stream, rate)
    for changes in (
        {"duration_s": 0.0},
        {"seed": 2**32},
        {"seed": -1},
        {"least_queries": 0},
        {"batch_size": 0},
    ):
        with refused(BenchmarkError, "invalid_loadgen_setting"):
            LoadgenSettings(stream, 1.0, **changes)
    with refused(BenchmarkError, "no_latency_bound"):
        LoadgenSettings(server, 1.0)


def test_without_loadgen_there_is_a_hint(monkeypatch: Any) -> None:
    monkeypatch.setattr(loadgen.importlib.util, "find_spec", lambda _name: None)
    with refused(UnavailableError, "not_installed", "gpuprof-native[load]"):
        require_loadgen()
    assert "mlperf_loadgen" not in sys.modules


def test_a_trace_is_read_by_query_or_by_sample(tmp_path: Path) -> None:
    times = '"sample_seq":{1},"query_seq":{2},"issue_start_ns":5,"complete_ns":{3}'
    row = f'{{{{"name":"Sample","ph":"b","ts":{{0}},"args":{{{{{times}}}}}}}}},'
    lines = [row.format("1.5", 0, 0, 100), row.format("1.5", 1, 0, 300), row.format("9.0", 2, 1, 7)]
    broken = '{"name":"LogDetail","args":{"key":""quoted twice""}},'
    (tmp_path / "mlperf_log_trace.json").write_text("\n".join([broken, *lines, lines[0][:60]]))
    found = read_trace(tmp_path)
    assert (found.planned_ns.tolist(), found.end_ns.tolist()) == ([1_500, 9_000], [1_800, 9_007])
    assert len(read_trace(tmp_path, per_sample=True).planned_ns) == 3


def test_the_expected_rate_is_that_of_a_call_that_was_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, calls = [0.0], [0]

    def call() -> None:
        calls[0] += 1
        now_s[0] += 0.018 if calls[0] <= 20 else 0.0003  # another program has the processor at first

    monkeypatch.setattr(loadgen_process.time, "monotonic", lambda: now_s[0])
    rate = loadgen_process._measured_rate(call, samples=1)
    assert rate == pytest.approx(1.2 / 0.0003)
    assert now_s[0] < 2.5
