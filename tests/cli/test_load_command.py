# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from refusals import refused, refused_command

from gpuprof.cli.main import cli, execute
from gpuprof.errors import RunError
from gpuprof.load import open_result
from gpuprof.load.out_folder import new_folder
from gpuprof.load.result import LoadSettings
from gpuprof.load.search import MaxRate
from gpuprof.load.several_runs import MaxRateResult, SweepResult
from gpuprof.load.sweep import ConcurrencySweep


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "load_targets_of_test.py").write_text("def respond():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "python:load_targets_of_test:respond"


@pytest.mark.parametrize(("slo", "code"), [("max<60s", 0), ("max<1ns", 1), ("p50<60s", 0)])
def test_the_exit_code_is_the_verdict(target: str, tmp_path: Path, slo: str, code: int) -> None:
    words = ["load", target, "--rate", "3000/s", "--duration", "100ms", "--slo", slo, "--out"]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "out")])
    assert done.exit_code == code
    assert slo in done.stdout
    assert len(open_result(tmp_path / "out").rows) == 300


@pytest.mark.parametrize("more", [(), ("--slo", "p50<1s"), ("--json",)])
def test_a_run_in_which_every_request_fails_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    (tmp_path / "failing_target_of_test.py").write_text("def respond():\n    1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["load", "python:failing_target_of_test:respond", "--rate", "200", "--duration", "100ms", *more]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert len(open_result(tmp_path / "out").rows) == 20


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("--concurrency", "1,2,4", "--duration", "50ms"), "sweep.json"),
        (("--find-max-rate", "--slo", "p50<1s", "--rate", "200", "--duration", "100ms"), "max_rate.json"),
        (("--scenario", "soak", "--duration", "10s", "--rate", "200"), "soak.json"),
    ],
)
def test_several_runs_of_a_target_that_never_works_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], file: str
) -> None:
    (tmp_path / "failing_target_of_test.py").write_text("def respond():\n    1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    command = ["load", "python:failing_target_of_test:respond", *words, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1, done.output
    stopped = json.loads((tmp_path / "out" / file).read_text())["stopped"]
    assert (stopped["code"], stopped["values"]["cause"]) == (
        "all_failed",
        "ZeroDivisionError: division by zero",
    )
    assert done.stdout.splitlines()[-1] == stopped["text"]


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "200"),
        ("--concurrency", "1,2"),
        ("--find-max-rate", "--slo", "p50<1s", "--rate", "200"),
        ("--scenario", "soak", "--duration", "10s"),
        ("--mlperf", "--scenario", "offline"),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_request(
    target: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    refused_command(["load", target, *words, "--out", tmp_path / "file" / "out"], "cannot_write", "file")
    refused_command(["load", target, *words, "--out", tmp_path / "file"], "cannot_write", "file")


def test_a_folder_with_another_result_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    words = ["load", target, "--rate", "3000", "--duration", "50ms", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    refused_command([*words, "--report", "md"], "exists")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_a_folder_that_cannot_be_made_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for out in (tmp_path / "link", tmp_path / "link" / "out"):
        refused_command(["load", target, "--rate", "10", "--out", out], "cannot_write", "link")
    refused_command(["load", target, "--rate", "10", "--out", ""], "empty_path")


@pytest.mark.parametrize("name", ["result.json", "mlperf.json", "soak.json", "sweep.json", "max_rate.json"])
def test_loadgen_replaces_no_result(target: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    words = ["load", "--mlperf", target, "--scenario", "offline", "--out", str(tmp_path)]
    refused_command(words, "exists")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_a_file_system_that_takes_no_files_is_refused_before_the_first_request(target: str) -> None:
    refused_command(["load", target, "--rate", "10", "--out", "/proc/load"], "cannot_write")


def test_figures_are_printed_before_they_are_written(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_rows: object, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("gpuprof.load.result.write_rows", full)
    words = ["load", target, "--rate", "300", "--duration", "100ms", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, words)
    assert "30 requests" in done.stdout
    assert isinstance(done.exception, RunError)


@pytest.mark.parametrize("words", [("--rate", "300"), ("--rate", "300", "--concurrency", "1,2")])
def test_a_closed_pipe_does_not_lose_the_result(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    echo = click.echo

    def closed(message: str = "", *, err: bool = False) -> None:
        if not err:
            raise BrokenPipeError
        echo(message, err=True)

    monkeypatch.setattr("gpuprof.cli.load.click.echo", closed)
    scenario = () if len(words) == 2 else ("--scenario", "closed-loop")
    given = words if len(words) == 2 else words[2:]
    done = CliRunner().invoke(
        cli, ["load", target, *scenario, *given, "--duration", "100ms", "--out", str(tmp_path / "out")]
    )
    assert isinstance(done.exception, BrokenPipeError) or done.exit_code != 0
    assert list((tmp_path / "out").glob("*.json"))


def test_without_a_folder_no_result_is_replaced(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        CliRunner().invoke(cli, ["load", target, "--scenario", "offline", "--count", "5"])
    found = sorted(each.name for each in tmp_path.iterdir() if each.is_dir() and "load" in each.name)
    assert found == ["gpuprof-load", "gpuprof-load-2", "gpuprof-load-3"]


def test_loads_next_to_each_other_have_folders_of_their_own(tmp_path: Path) -> None:
    with new_folder(tmp_path / "load") as first, new_folder(tmp_path / "load") as second:
        assert (first.name, second.name) == ("load", "load-2")
        (second / "result.json").touch()
    assert [each.name for each in tmp_path.iterdir()] == ["load-2"]
    with refused(RunError, "cannot_write"), new_folder(tmp_path / "missing" / "load"):
        pass


def test_a_load_that_is_refused_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["load", "python:no_such_module:f", "--rate", "10"])
    assert done.exit_code != 0
    assert list(tmp_path.iterdir()) == []


def test_json_has_the_figures(target: str, tmp_path: Path) -> None:
    words = ["load", target, "--scenario", "offline", "--count", "50", "--json", "--out"]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "out")])
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (found["kind"], found["requests"], found["statuses"]) == ("load", 50, {"ok": 50})
    assert found["settings"]["scenario"] == "offline"


def test_the_probe_takes_no_target(target: str) -> None:
    refused_command(["load", target, "--probe"], "probe_and_target")


def test_a_profile_shows_the_slowest_requests(target: str, tmp_path: Path) -> None:
    words = [
        "load",
        target,
        "--scenario",
        "closed-loop",
        "--count",
        "40",
        "--profile",
        "--report",
        "md",
        "--out",
    ]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert str(open_result(tmp_path / "out").profiled) in done.stdout
    run = tmp_path / "out" / "profile.gpuprof"
    assert run.is_dir()
    *_, report, profile = done.stderr.splitlines()
    assert report.endswith(str(tmp_path / "out" / "report.md"))
    assert profile.endswith(f"gpuprof flamegraph {run}")
    assert "(tail.html)" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "tail.html").exists()
    slowest = json.loads((tmp_path / "out" / "result.json").read_text())["slowest"]
    assert len(slowest) == 10
    assert sum(slowest[0]["parts_ns"].values()) == slowest[0]["service_ns"]


@pytest.mark.parametrize(
    "words",
    [
        ["--find-max-rate", "--slo", "p90<50ms", "--rate", "5"],
        ["--concurrency", "1,2"],
        ["--scenario", "soak", "--duration", "1s"],
        ["--mlperf", "--scenario", "offline"],
        ["--probe"],
    ],
)
def test_a_profile_of_more_than_one_load_is_refused(target: str, words: list[str]) -> None:
    refused_command(["load", target, "--profile", *words], "profile_of_one_load")


def test_a_profile_of_a_server_is_refused(tmp_path: Path) -> None:
    words = ["load", "http://127.0.0.1:9/", "--rate", "5", "--profile", "--out", tmp_path / "out"]
    refused_command(words, "profile_of_server", "http://127.0.0.1:9/")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["--concurrency", "1,2"], ["--find-max-rate", "--slo", "p90<5ms"], ["--slo", "p90<5ms"]]
)
def test_a_soak_test_is_one_run(target: str, words: list[str]) -> None:
    command = ["load", target, "--scenario", "soak", "--duration", "1s", *words]
    refused_command(command, "options_of_one_run", "--scenario soak")


def test_what_cannot_work_is_refused(target: str) -> None:
    refused_command(["load", "--rate", "5"], "no_target")
    refused_command(["load", target, "--rate", "fast"], "invalid_rate", "fast")
    refused_command(["load", target, "--rate", "0"], "invalid_schedule")
    refused_command(["load", target, "--rate", "5", "--duration", "soon"], "invalid_time", "soon")


def test_an_interrupt_before_the_first_request_is_reported(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuprof.load.run.run_load", interrupted)
    assert execute(["load", target, "--rate", "5", "--out", str(tmp_path / "out")]) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("interrupted before")


@pytest.mark.texts
def test_a_search_that_is_refused_does_not_print_that_it_searches(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["load", target, "--find-max-rate", "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--slo" in line


@pytest.mark.parametrize(
    ("words", "run", "file"),
    [
        (("--concurrency", "1,2"), "sweep_concurrency", "sweep.json"),
        (("--find-max-rate", "--slo", "p50<1s"), "find_rate", "max_rate.json"),
    ],
)
def test_an_interrupt_of_the_report_does_not_deny_the_saved_result(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], run: str, file: str,
) -> None:  # fmt: skip
    settings = LoadSettings("m.py:build", "server", "poisson", rate=1.0, slo="p50<1s")
    results = {
        "sweep_concurrency": SweepResult(settings, ConcurrencySweep((), None, None), {}),
        "find_rate": MaxRateResult(settings, MaxRate(None, None, None, (), ())),
    }

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"gpuprof.load.several_runs.{run}", lambda *_, **__: results[run])
    monkeypatch.setattr("gpuprof.load.several_report.write_several", interrupted)
    report = ["--report", "json", "--out", str(tmp_path / "out")]
    assert execute(["load", target, *words, *report]) == 130
    assert (tmp_path / "out" / file).is_file()
    assert "before there was a result" not in capsys.readouterr().err
