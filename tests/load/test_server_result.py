# SPDX-License-Identifier: Apache-2.0
"""`gpuprof load` of a server: result, files and exit codes, from the command line and from Python."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from load_server import OK, LoadServer, respond_with, serving, stream_of

import gpuprof
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.cli.load import load
from gpuprof.errors import BenchmarkError
from gpuprof.load.server_result import ServerResult
from gpuprof.load.targets.server_target import server_target
from gpuprof.run.database import connect

pytest.importorskip("uvloop")
TEXT = b'data: {"choices":[{"text":"x"}]}\n\n'
STREAMED = stream_of(TEXT, TEXT, TEXT, b"data: [DONE]\n\n")


def run(address: str, folder: Path, *words: str) -> Result:
    shutil.rmtree(folder / "out", ignore_errors=True)
    command = [address, *words, "--out", str(folder / "out"), "--json"]
    return CliRunner().invoke(load, command, catch_exceptions=True)


def at(server: LoadServer, path: str, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}{path}"


def test_a_load_of_streams_has_their_figures_and_verdict(tmp_path: Path) -> None:
    words = ["--model", "m", "--output-tokens", "3", "--rate", "100", "--duration", "500ms"]
    with serving({"/v1/chat/completions": respond_with(STREAMED)}) as server:
        address = at(server, "/v1", "openai+http")
        missed = run(address, tmp_path, *words, "--slo", "ttft_p50<1ns")
        inconclusive = run(address, tmp_path, *words, "--slo", "itl_p99.9<60s")
        refused = run(address, tmp_path, *words, "--slo", "ttft_p99.9<60s")
        met = run(address, tmp_path, *words, "--slo", "ttft_p50<60s")
    assert (met.exit_code, missed.exit_code, inconclusive.exit_code) == (0, 1, 3)
    assert getattr(refused.exception, "code", None) == "too_few_requests"
    found = json.loads(met.stdout)
    count = found["requests"]
    assert found["statuses"] == {"ok": count}
    assert found["streams"]["output_tokens"] == 3 * count
    assert found["streams"]["ttft"]["count"] == count
    assert json.loads((tmp_path / "out" / "result.json").read_text())["streams"]["requests"] == count
    query = "SELECT count(*), count(DISTINCT request) FROM read_parquet(?)"
    rows = connect().execute(query, [str(tmp_path / "out" / "tokens.parquet")]).fetchone()
    assert rows == (3 * count, count)


def test_the_report_of_streams_has_their_figures_and_verdict(tmp_path: Path) -> None:
    words = ["--model", "m", "--output-tokens", "3", "--rate", "100", "--duration", "500ms"]
    with serving({"/v1/chat/completions": respond_with(STREAMED)}) as server:
        address = at(server, "/v1", "openai+http")
        done = run(address, tmp_path, *words, "--slo", "ttft_p50<60s", "--report", "md,csv")
    streams = json.loads(done.stdout)["streams"]
    with (tmp_path / "out" / "report.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    for metric in ("ttft", "tpot", "itl", "e2e"):
        for q in ("p50", "p90"):
            assert float(row[f"{metric}_{q}_ms"]) == pytest.approx(streams[metric][f"{q}_s"] * 1e3)
    assert float(row["goodput_per_s"]) == pytest.approx(streams["goodput"]["per_second"])
    assert int(row["tokens"]) == streams["output_tokens"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert ": met (0.0% of the requests are above" in text
    assert f"| time to first token | {streams['ttft']['count']} |" in text
    assert "goodput" in text


def test_responses_that_no_request_asked_for_are_a_warning(tmp_path: Path) -> None:
    with serving({"/": respond_with(OK + OK)}) as server:
        done = run(at(server, "/"), tmp_path, "--rate", "500", "--duration", "100ms")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["statuses"] == {"ok": 50}
    warned = {each["code"]: each["values"] for each in found["warnings"]}
    assert warned["unrequested_responses"] == {"responses": 50}


def test_failures_are_counted_and_are_late(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    with serving({"/predict": respond_with(refusal)}) as server:
        done = run(
            at(server, "/predict"), tmp_path, "--rate", "1000", "--duration", "400ms", "--slo", "p50<60s"
        )
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert found["statuses"] == {"server_error": found["requests"]}
    assert found["client"]["http_codes"] == {"503": found["requests"]}
    assert not (tmp_path / "out" / "tokens.parquet").exists()


@pytest.mark.parametrize(("scenario", "connections"), [("single-stream", 1), ("closed-loop", 2)])
def test_closed_loops(scenario: str, connections: int, tmp_path: Path) -> None:
    words = ["--scenario", scenario, "--count", "30"]
    with serving({"/": respond_with(OK)}) as server:
        cap = ["--concurrency", "2"] if scenario == "closed-loop" else []
        done = run(at(server, "/"), tmp_path, *words, *cap)
        assert server.connections <= connections
    found = json.loads(done.stdout)
    assert (done.exit_code, found["statuses"]) == (0, {"ok": 30})


def test_from_python() -> None:
    with serving({"/": respond_with(OK)}) as server:
        by_address = gpuprof.load(at(server, "/"), rate=200, duration_s=0.2)
        target = server_target(at(server, "/"), timeout_s=20.0)
        by_target = gpuprof.load(target, scenario="offline", count=40, slo="p50<60s")
    for result in (by_address, by_target):
        assert isinstance(result, ServerResult)
        assert result.streams is None
        assert str(result)
        assert result.run.ceiling_per_s is not None
    assert by_target.verdict is TargetVerdict.MET


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--mix", "batch=1:80,8:20"], "invalid_load"),
        (["--rate", "0"], "invalid_schedule"),
        (["--rate", "5", "--slo", "ttft_p99<1s"], "invalid_target"),
        (["--rate", "5", "--slo", "p99<1s"], "too_few_requests"),
        (["--rate", "5", "--body", "missing.json"], "cannot_read"),
    ],
)
def test_what_is_refused(words: list[str], code: str, tmp_path: Path) -> None:
    done = run("http://127.0.0.1:1/", tmp_path, *words, "--duration", "1s")
    assert isinstance(done.exception, BenchmarkError)
    assert not (tmp_path / "out").exists()
    assert done.exception.code == code


def test_another_machine_needs_consent(tmp_path: Path) -> None:
    done = run("http://192.0.2.1/", tmp_path, "--rate", "5")
    error: Any = done.exception
    assert error.code == "remote_target"
