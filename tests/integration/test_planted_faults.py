# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in recorded programs raise their alerts, in Prometheus and in `gpuprof alert`.

The rules of `deploy/` apply with all of their times divided by SCALE, so an hour takes 36 s.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_server import RULES, Prometheus

pytestmark = pytest.mark.needs("prometheus")
SCALE = 100
STEP_S = 0.04
# By the name of the run: what fires in Prometheus, and in `gpuprof alert`.
FAULTS = {
    "slow": ("GpuprofSlowSteps", "slow-step"),
    "slower": ("GpuprofStepRegression", "slower"),
    "leak": ("GpuprofMemoryLeak", "leak"),
    "stall": ("GpuprofStalled", "stalled"),
}
# Makes steps until its standard input ends. After half of the hour, its fault begins.
PROGRAM = f"""
import select, sys, time
import gpuprof
fault, held, number = sys.argv[1], [], 0
begin_s = time.monotonic()
while not select.select([sys.stdin], [], [], 0)[0]:
    number += 1
    planted = fault if time.monotonic() - begin_s > {3600 / SCALE / 2} else "none"
    if planted == "stall":
        sys.stdin.read()
        break
    # One of 55 steps takes nine times as long: more than 1%, and the mean less than 20% longer.
    factor = 2 if planted == "slower" else 9 if planted == "slow" and number % 55 == 0 else 1
    with gpuprof.span("step"):
        time.sleep({STEP_S} * factor)
        if planted == "leak":
            held.append(b"x" * 200_000)
"""
TOML = """
rule = [
  {name = "slow-step", kind = "slow_step", factor = 6},
  {name = "slower", kind = "regression", steps = 100, for = "3s"},
  {name = "leak", kind = "leak", window = "15s", for = "3s"},
  {name = "stalled", kind = "stall", for = "6s"},
]
"""


def scaled(rules: str) -> str:
    """Divide the times of rules: `[10m]`, `offset 1h`, `for: 5m`."""
    milliseconds = {"m": 60_000, "h": 3_600_000}
    return re.sub(r"\b(\d+)([mh])\b", lambda at: f"{int(at[1]) * milliseconds[at[2]] // SCALE}ms", rules)


def gpuprof(*words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "gpuprof", *words], text=True, **more)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs that are being recorded: one for each fault, and a quiet one."""
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = tmp_path / "runs"
    folder.mkdir()
    programs = [
        gpuprof("run", "--out", str(folder / f"{name}.gpuprof"), str(tmp_path / "program.py"), name,
                stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for name in (*FAULTS, "quiet")
    ]  # fmt: skip
    yield folder
    for each in programs:
        assert each.stdin is not None
        each.stdin.close()
    assert [each.wait(timeout=120) for each in programs] == [0] * len(programs)


@pytest.fixture
def prometheus(runs: Path, tmp_path: Path) -> Iterator[Prometheus]:
    (tmp_path / "token").write_text("secret-of-the-test\n")
    options = ["--port", "0", "--interval", "0.5", "--token-file", str(tmp_path / "token")]
    exporter = gpuprof("metrics", str(runs), *options, stderr=subprocess.PIPE)
    assert exporter.stderr is not None
    match = re.match(r"metrics: http://(127\.0\.0\.1:\d+)/metrics", exporter.stderr.readline())
    assert match is not None
    server = Prometheus(tmp_path, match[1], scaled(RULES.read_text()))
    yield server
    server.close()
    exporter.terminate()
    assert exporter.wait(timeout=120) == 0
    exporter.stderr.close()


@pytest.fixture
def alerts(runs: Path, tmp_path: Path) -> Iterator[Path]:
    """The output of `gpuprof alert`, which grows."""
    (tmp_path / "rules.toml").write_text(TOML)
    path = tmp_path / "alerts"
    with path.open("w") as file:
        words = ("alert", str(runs), "--interval", "0.5", "--json", "--rules", str(tmp_path / "rules.toml"))
        process = gpuprof(*words, stdout=file)
        yield path
        process.terminate()
        assert process.wait(timeout=120) == 1  # an alert has fired


def fired_in(prometheus: Prometheus) -> set[tuple[str, str]]:
    """Return all alerts that have fired since the start, with their runs."""
    found = prometheus.get("query", query='max_over_time(ALERTS{alertstate="firing"}[10m])')["result"]
    return {(each["metric"]["run"], each["metric"]["alertname"]) for each in found}


def fired_for(alerts: Path) -> set[tuple[str, str]]:
    lines = [json.loads(line) for line in alerts.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {
        (each["run"].removesuffix(".gpuprof"), each["rule"]) for each in lines if each["state"] == "firing"
    }


def test_each_planted_fault_raises_its_alert_and_a_quiet_run_none(
    prometheus: Prometheus, alerts: Path
) -> None:
    expected = {(run, name) for run, (name, _) in FAULTS.items()}
    prometheus.wait_until(lambda: expected <= fired_in(prometheus))
    prometheus.wait_until(lambda: {(run, name) for run, (_, name) in FAULTS.items()} <= fired_for(alerts))
    assert set(prometheus.values("gpuprof_run_recording", "run")) == {*FAULTS, "quiet"}
    assert {each["health"] for each in prometheus.rules()} == {"ok"}
    assert fired_in(prometheus) == expected
    assert fired_for(alerts) == {(run, name) for run, (_, name) in FAULTS.items()}
