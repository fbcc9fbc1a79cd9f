# SPDX-License-Identifier: Apache-2.0
"""What `gpuprof bench` hands out: a failure of the table or of a file loses nothing of the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batches import batch_of

from gpuprof.bench.benchmark_run import Request
from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.facts import error
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.results import files as results
from gpuprof.bench.results.session import BenchFinding, SessionResult
from gpuprof.bench.workers.events import Ended, Event, State
from gpuprof.bench.workers.schedule import RunEvent
from gpuprof.cli import bench as command
from gpuprof.cli import compare as compare_command
from gpuprof.cli.main import EXIT_BROKEN_PIPE, execute
from gpuprof.cli.measuring import OccasionalLines
from gpuprof.errors import BenchmarkError

WORDS = ("bench", "resnet50", "--output-dir", "out")


class PlayedBenchmark:
    """A benchmark that has been made."""

    def __init__(self) -> None:
        batches = [batch_of([1.0] * 60)]
        self.finding = BenchFinding(SessionResult(SystemSpec("resnet50"), JobSettings(), batches))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlayedBenchmark:
    made = PlayedBenchmark()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_carried_out", lambda request: (made, False))
    return made


def endings(folder: Path) -> list[str]:
    return sorted(path.suffix for path in (folder / "out").iterdir())


def full(path: Path, text: str) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_loses_no_table(
    played: PlayedBenchmark,
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(results, "write_whole", full)
    assert execute([*WORDS, *more]) == 2
    out, err = capsys.readouterr()
    assert "samples_ns" in out if more else "1.00 ms" in out
    assert "wrote" not in out
    assert "cannot write out/benchmark_results_" in err
    assert len(err.splitlines()) == 1
    assert endings(tmp_path) == []


def test_a_failure_is_reported_next_to_that_of_the_files(
    played: PlayedBenchmark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played.finding.session.failure = BenchmarkError("batch size 8 does not fit")
    monkeypatch.setattr(results, "write_whole", full)
    assert execute(WORDS) == 2
    err = capsys.readouterr().err
    assert "batch size 8 does not fit; " in err
    assert "out/" in err
    assert len(err.splitlines()) == 1


def test_a_closed_pipe_loses_no_files(
    played: PlayedBenchmark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def closed(*_words: Any, **_options: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command._Output, "_print", closed)
    monkeypatch.setattr("gpuprof.cli.main._forget_standard_output", lambda: None)
    assert execute(WORDS) == EXIT_BROKEN_PIPE
    assert endings(tmp_path) == [".csv", ".json", ".md"]


def test_names_that_are_no_utf_8_are_escaped(
    played: PlayedBenchmark, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (batch,) = played.finding.session.batches
    batch.description = replace(batch.description, model="m\udcff:build")
    assert execute(WORDS) == 0
    assert "m\\udcff:build" in capsys.readouterr().out
    assert endings(tmp_path) == [".csv", ".json", ".md"]
    for path in (tmp_path / "out").iterdir():
        assert "udcff:build" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--time-limit", "--duration"])
@pytest.mark.parametrize("value", ["inf", "nan", "0", "-1", "1e400"])
def test_times_that_are_none(
    option: str, value: str, played: PlayedBenchmark, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute([*WORDS, option, value]) == 2
    err = capsys.readouterr().err
    assert option in err
    assert not (tmp_path / "out").exists()


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    now_s, said = 100.0, []
    lines = OccasionalLines(said.append, clock=lambda: now_s)
    for second in range(60):
        now_s = 100.0 + second
        lines.add(f"{second} s")
    assert said == ["20 s", "30 s", "40 s", "50 s"]


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (2, "process run 2 of 3, batch size 8: measuring, 1,200 calls\n"),
        (4, "profile, batch size 8: measuring, 1,200 calls\n"),
    ],
)
def test_progress_goes_to_standard_error_and_only_without_a_terminal(
    number: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuprof.cli.measuring.FIRST_S", 0.0)
    request = Request(SystemSpec("m"), JobSettings(), runs=3)
    with command._progress(request) as (watch, probed):
        watch(RunEvent("m", number, 1, 3, Event(State.MEASURING, batch_size=8, calls=1_200)))
        probed(16, "ok")
    out, err = capsys.readouterr()
    assert (out, err) == ("", line)


def test_each_failure_of_a_comparison_is_compared_with_the_one_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures = ["ValueError: A", "ValueError: A", "CUDA out of memory", None, "CUDA out of memory"]
    with compare_command._progress() as watch:
        for number, each in enumerate(failures, 1):
            failure = None if each is None else Failure(FailureCode.FAILED, each)
            watch(RunEvent("m", number, number, 6, Ended(failure=failure)))
        for number in (6, 7):
            watch(RunEvent("m", number, 6, 6, Ended(skipped=True)))
    outcomes = [line.partition(": m: ")[2] or "completed" for line in capsys.readouterr().err.splitlines()]
    assert [each.partition(" (")[0] for each in outcomes] == [
        "failed: ValueError: A",
        "failed again, for the same reason",
        "failed: CUDA out of memory",
        "completed",
        "failed: CUDA out of memory",
        "skipped, as all later ones, because it failed before",
    ]


@pytest.mark.texts
def test_the_first_of_several_failures_is_reported_as_the_first() -> None:
    found = error("failed", failure="failed", message="ValueError: A", hint="", failed_runs=3)
    assert str(found) == "3 process runs failed, first: ValueError: A"


def test_a_result_is_one_line_in_a_list() -> None:
    shown = repr([batch_of([1.0] * 60, [1.0] * 60)])
    assert shown == "[<BatchResult m|x (pytorch), batch size 4: 2 process runs, 120 samples, median 1.00 ms>]"
    assert "median unavailable" in repr(batch_of([1.0]))
