# SPDX-License-Identifier: Apache-2.0
"""`gpuprof load --mlperf`: LoadGen's verdict next to ours, its logs, and what it has not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from refusals import refused_command

from gpuprof.cli.main import cli
from gpuprof.load import loadgen
from gpuprof.load.loadgen import LoadgenResult, LoadgenSettings
from gpuprof.load.loadgen_run import LoadgenComparison
from gpuprof.load.mlperf import RULES, MlperfScenario, Queries, judge

MODEL = "import time\ndef build():\n    return lambda: time.sleep(0.001)\n"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "model.py").write_text(MODEL)
    model = f"{tmp_path / 'model.py'}:build"
    return ["load", "--mlperf", model, "--framework", "python", "--out", str(tmp_path / "out")]


@pytest.mark.needs("mlperf_loadgen")
def test_the_command_shows_both_verdicts(words: list[str], tmp_path: Path) -> None:
    for number in ("", "-2"):
        (tmp_path / "out" / "mlperf.json").unlink(missing_ok=True)
        done = CliRunner().invoke(cli, [*words, "--scenario", "single-stream", "--duration", "300ms"])
        assert done.exit_code == 0, done.output
        lines = done.stdout.splitlines()
        assert "MLPerf-style" in lines[0]
        assert [line.split()[-1] for line in lines[4:7]] == ["valid", "valid", "inconclusive"]
        summary = (tmp_path / "out" / f"loadgen{number}" / "mlperf_log_summary.txt").read_text()
        assert "Result is : VALID" in summary
    found = json.loads((tmp_path / "out" / "mlperf.json").read_text())
    assert [each["code"] for each in found["rules_of_mlperf"]["reasons"]] == ["too_short"]
    assert found["loadgen"]["percentile_s"] == found["same_settings"]["latency_s"]


@pytest.mark.needs("mlperf_loadgen")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["server", "--rate", "300", "--slo", "p99<5s", "--duration", "2s"], 0),
        (["server", "--rate", "300", "--slo", "p99<500us", "--duration", "2s"], 1),
        (["server", "--rate", "100", "--slo", "p99<5s", "--duration", "500ms"], 3),
        (["multi-stream", "--duration", "1s"], None),  # how many queries fit depends on the machine
        (["offline", "--max-batch", "8", "--duration", "100ms"], 0),
    ],
)
def test_the_exit_code_is_the_verdict_of_loadgen(
    words: list[str], options: list[str], code: int | None
) -> None:
    done = CliRunner().invoke(cli, [*words, "--json", "--scenario", *options])
    assert done.exit_code == code or code is None, done.output
    found = json.loads(done.stdout)
    is_valid = found["same_settings"]["verdict"] == "valid"
    assert found["loadgen"]["is_valid"] == is_valid == (done.exit_code == 0)


def test_what_loadgen_has_not_is_refused(words: list[str]) -> None:
    refused_command([*words, "--scenario", "burst"], "unknown_scenario", "burst")
    refused_command([*words, "--slo", "p99<1s"], "invalid_loadgen_setting", "rate")
    refused_command([*words, "--rate", "5"], "no_latency_bound")
    refused_command([*words, "--rate", "nan", "--slo", "p99<1s"], "not_finite")
    refused_command([*words, "--rate", "5", "--slo", "p90<1s"], "invalid_load")
    refused_command([*words, "--scenario", "offline", "--mix", "batch=1:1"], "invalid_load", "mix")
    refused_command([*words, "--report", "csv"], "options_of_one_run")
    for target in ("http://127.0.0.1:1/", "python:os:getpid"):
        refused_command(["load", "--mlperf", target, "--scenario", "offline"], "invalid_load")


def test_without_loadgen_there_is_a_hint(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen.importlib.util, "find_spec", lambda _name: None)
    refused_command([*words, "--scenario", "offline"], "not_installed", "gpuprof-native[load]")


def compared(
    scenario: MlperfScenario, *, least_s: float = 10.0, bound_s: float = 1.0, is_valid: bool = False
) -> LoadgenComparison:
    """Return a run of 1,001 queries of 4 ms in 5 s, which is too short if `least_s` is more."""
    sent = np.arange(1_001, dtype=np.int64) * 5_000_000
    rules = RULES[scenario].with_duration(least_s).with_bound(bound_s)
    ours = judge(Queries(sent, sent, sent + 4_000_000, np.ones_like(sent)), rules)
    settings = LoadgenSettings(scenario, 200.0, least_s, latency_bound_s=bound_s)
    warnings = ("Please update the relevant expected latency or target qps in the TestSettings.",)
    found = LoadgenResult(
        settings, is_valid, True, least_s <= 5, True, True, 1_001, {}, (), warnings, Path("logs")
    )
    return LoadgenComparison("model.py:build", found, ours, ours)


def test_a_run_that_stopped_early_has_advice_with_the_rate_that_was_measured() -> None:
    found = compared(MlperfScenario.SINGLE_STREAM)
    assert found.advice is not None
    assert found.advice.code == "repeat_faster"
    assert found.advice.values["rate"] == pytest.approx(1_001 / 5.004)  # to the last end
    streams = compared(MlperfScenario.MULTI_STREAM).advice
    assert streams is not None
    assert streams.values["rate"] == pytest.approx(1_001 / 5.004)  # not samples, of which a query has 8
    assert str(found).splitlines()[-1] == f"hint: {found.advice}"
    assert found.to_dict()["advice"]["code"] == "repeat_faster"
    # The rate of server is the target: a higher one is another test.
    server = compared(MlperfScenario.SERVER).advice
    assert server is not None
    assert server.code == "repeat_longer"


def test_runs_that_are_valid_or_missed_their_bound_have_no_advice() -> None:
    assert compared(MlperfScenario.SINGLE_STREAM, least_s=5, is_valid=True).advice is None
    missed = compared(MlperfScenario.SERVER, bound_s=0.001)
    assert missed.advice is None
    assert missed.to_dict()["advice"] is None
