# SPDX-License-Identifier: Apache-2.0
"""`gpuprof whatif`: what it prints, and what it refuses before it reads the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpuprof
from gpuprof.cli.main import execute


@pytest.fixture
def run(tmp_path: Path) -> str:
    with gpuprof.profile(out=tmp_path / "r.gpuprof"), gpuprof.span("load=1"):
        sum(range(100_000))
    return str(tmp_path / "r.gpuprof")


def test_a_prediction_is_printed(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["whatif", run, "--remove", "load=1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["recorded", "change", "predicted", "gain", "confidence"]


def test_json_has_the_gain_in_nanoseconds(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["whatif", run, "--speed-up", "load=1=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["whatif"]
    assert 0 < found["low_ns"] <= found["high_ns"] < found["recorded_ns"]
    (change,) = found["changes"]
    assert (change["pattern"], change["factor"]) == ("load=1", 2)
    assert abs(found["high_ns"] - change["thread_ns"] / 2) <= 1
    assert found["confidence"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--speed-up", "load"],
        ["--speed-up", "load=fast"],
        ["--speed-up", "load=0"],
        ["--speed-up", "load=-1"],
        ["--speed-up", "load=inf"],
        ["--speed-up", "=2"],
        ["--speed-up", "load=1=2", "--speed-up", "load=1=3"],
        ["--workers", "0"],
        ["--workers", "2"],
        ["--remove", "\x1b[31mnothing"],
        ["--remove", "python:load"],
    ],
)
def test_bad_usage_is_one_line_with_a_hint(
    run: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["whatif", run, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "\x1b" not in printed.err


def test_a_missing_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["whatif", str(tmp_path / "missing.gpuprof"), "--remove", "x"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--speed-up", "load=-1"], "'-1' is not a factor for 'load'"),
        (["--speed-up", "load=nan"], "'nan' is not a factor for 'load'"),
        (["--speed-up", "load=fast"], "'load=fast' is not NAME=FACTOR"),
        (["--workers", "x"], "'x' is not a whole number"),
        (["--workers", "0"], "0 is not in the range x>=1"),
        (["--remove", "python:load"], "no Python stacks were recorded"),
    ],
)
def test_the_cause_is_named(
    run: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["whatif", run, *options]) == 2
    assert message in capsys.readouterr().err
