# SPDX-License-Identifier: Apache-2.0
"""`gpuprof load --mlperf`: LoadGen's verdict next to ours, its logs, and what it has not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from refusals import refused_command

from gpuprof.cli.main import cli
from gpuprof.load import loadgen

MODEL = "import time\ndef build():\n    return lambda: time.sleep(0.001)\n"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "model.py").write_text(MODEL)
    model = f"{tmp_path / 'model.py'}:build"
    return ["load", "--mlperf", model, "--framework", "python", "--out", str(tmp_path / "out")]


@pytest.mark.needs("mlperf_loadgen")
def test_the_command_shows_both_verdicts(words: list[str], tmp_path: Path) -> None:
    for number in ("", "-2"):
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
    refused_command([*words, "--rate", "nan", "--slo", "p99<1s"], "invalid_loadgen_setting")
    refused_command([*words, "--rate", "5", "--slo", "p90<1s"], "invalid_load")
    refused_command([*words, "--scenario", "offline", "--mix", "batch=1:1"], "invalid_load", "mix")
    refused_command([*words, "--report", "csv"], "options_of_one_run")
    for target in ("http://127.0.0.1:1/", "python:os:getpid"):
        refused_command(["load", "--mlperf", target, "--scenario", "offline"], "invalid_load")


def test_without_loadgen_there_is_a_hint(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen.importlib.util, "find_spec", lambda _name: None)
    refused_command([*words, "--scenario", "offline"], "not_installed", "gpuprof-native[load]")
