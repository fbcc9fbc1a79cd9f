# SPDX-License-Identifier: Apache-2.0
"""The gate: what passes, what fails, what stays open, and what cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import batch_of
from refusals import refused

from gpuprof.bench.gate.gate import judge, runs_needed
from gpuprof.bench.gate.text import gate_text, name_parts
from gpuprof.bench.results.files import Stamp, document_of, to_json
from gpuprof.bench.results.stored import Configuration, read_result_file
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import imported_run, kind_code
from gpuprof.stats.ratio_test import compare

STAMP = Stamp("2026-02-03T12:00:00+00:00", "abc")
Write = Callable[..., Path]
Change = Callable[[dict[str, Any]], None]


def runs(level_ms: float, seed: int, count: int = 12, spread: float = 0.004) -> list[list[float]]:
    random = np.random.default_rng(seed)
    return [(level_ms * random.normal(1, spread) * random.normal(1, 0.02, 40)).tolist() for _ in range(count)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(
        name: str,
        *sizes: tuple[int, list[list[float]]],
        change: Callable[[dict[str, Any]], None] | None = None,
    ) -> Path:
        batches = [batch_of(*samples, batch_size=size) for size, samples in sizes]
        document = json.loads(to_json(document_of(batches, STAMP, profile=None)))
        if change is not None:
            change(document)
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return written


@pytest.mark.parametrize(
    ("ratio", "outcome", "code"), [(1.0, "passed", 0), (1.1, "failed", 1), (0.9, "passed", 0)]
)
def test_the_exit_code_is_the_outcome(
    write: Write, capsys: pytest.CaptureFixture[str], ratio: float, outcome: str, code: int
) -> None:
    old = write("old.json", (1, runs(10, 1)), (8, runs(50, 2)))
    new = write("new.json", (1, runs(10, 3)), (8, runs(50 * ratio, 4)))
    assert execute(["gate", "--baseline", str(old), "--candidate", str(new)]) == code
    printed = capsys.readouterr().out
    assert printed.startswith(f"{outcome}: ")
    assert max(map(len, printed.splitlines())) <= 100
    rows = {
        row.configuration.batch_size: row for row in judge(read_result_file(old), read_result_file(new)).rows
    }
    assert rows[1].verdict == "same"
    assert rows[8].verdict == {1.0: "same", 1.1: "slower", 0.9: "faster"}[ratio]
    assert rows[8].candidate_s == pytest.approx(0.05 * ratio, rel=0.01)


def test_noise_and_too_few_process_runs_leave_it_open(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1, spread=0.2))))
    new = read_result_file(write("new.json", (1, runs(10.3, 2, spread=0.2))))
    assert judge(old, new).outcome == "inconclusive"
    one = read_result_file(write("one.json", (1, runs(20, 3, count=1))))
    found = judge(old, one)
    assert (found.outcome, found.rows[0].judgement.low) == ("inconclusive", None)  # type: ignore[union-attr]
    assert execute(["gate", "--baseline", str(old.path), "--candidate", str(new.path)]) == 3


def test_a_margin_lets_small_changes_pass(write: Write) -> None:
    old, new = write("old.json", (1, runs(10, 1))), write("new.json", (1, runs(10.3, 2)))
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute([*command, "--margin", "1%"]) == 1
    assert execute([*command, "--margin", "0.05"]) == 0


def test_what_the_candidate_lacks_is_inconclusive_and_what_is_new_is_reported(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1)), (8, runs(50, 2))))
    new = read_result_file(write("new.json", (1, runs(10, 3)), (32, runs(200, 4))))
    found = judge(old, new)
    assert [row.verdict for row in found.rows] == ["same", "not measured"]
    assert found.outcome == "inconclusive"
    (name,) = found.notes[-1].values["configurations"]
    assert found.notes[-1].code == "only_candidate"
    assert name.endswith("batch 32")


def cut_off(document: dict[str, Any]) -> None:
    """The last process run crashed after three calls, which were slow."""
    last = document["results"][0]["launches"][-1]
    last["measurement"] |= {"stopped_by": "failure", "samples_ns": [90_000_000] * 3}
    last["failure"] = "it crashed"


def test_an_aborted_process_run_is_not_counted_and_is_reported(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1))))
    new = read_result_file(write("new.json", (1, runs(10, 3)), change=cut_off))
    found = judge(old, new)
    assert found.outcome == "passed"
    assert found.rows[0].judgement is not None
    assert found.rows[0].judgement.new_launches == 11
    (aborted,) = [note.values for note in found.notes if note.code == "aborted_runs"]
    assert (aborted["aborted"], aborted["process_runs_made"]) == (1, 12)


def other_processor(document: dict[str, Any]) -> None:
    for each in document["results"]:
        each["environment"]["processor"] = "another"


def test_another_machine_is_refused_unless_allowed(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old = write("old.json", (1, runs(10, 1)))
    new = write("new.json", (1, runs(10, 2)), change=other_processor)
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute(command) == 2
    assert "another machine" in capsys.readouterr().err
    assert execute([*command, "--any-machine", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "different_machines" in [each["code"] for each in notes]


def other_threads(document: dict[str, Any]) -> None:
    for each in document["results"]:
        each["description"]["details"] = {"threads": "64"}


def test_other_threads_are_refused_like_another_machine(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write("old.json", (1, runs(10, 1)))
    new = write("new.json", (1, runs(10, 2)), change=other_threads)
    assert execute(["gate", "--baseline", str(old), "--candidate", str(new)]) == 2
    assert "threads None and 64" in capsys.readouterr().err


def cold_caches(document: dict[str, Any]) -> None:
    for each in document["results"]:
        each["settings"]["caches"] = "cold"


def other_data(document: dict[str, Any]) -> None:
    document["asked"] = {"spec": {"data": "images"}}


def no_process_runs(document: dict[str, Any]) -> None:
    document["results"][0]["launches"] = []


def newer_format(document: dict[str, Any]) -> None:
    document["format"] = 99


def no_results(document: dict[str, Any]) -> None:
    document["results"] = []


def other_model(document: dict[str, Any]) -> None:
    document["results"][0]["row"]["model"] = "other"


def no_row(document: dict[str, Any]) -> None:
    del document["results"][0]["row"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (cold_caches, "measured with caches warm"),
        (other_data, "was measured with data None"),
        (no_process_runs, "no process run"),
        (newer_format, "format 99"),
        (no_results, "holds no results"),
        (other_model, "has no configuration of"),
        (no_row, "cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    write: Write, capsys: pytest.CaptureFixture[str], change: Change, line: str
) -> None:
    old = write("old.json", (1, runs(10, 1)))
    new = write("new.json", (1, runs(10, 2)), change=change)
    assert execute(["gate", "--baseline", str(old), "--candidate", str(new)]) == 2
    errors = capsys.readouterr().err
    assert line in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 3}', "not json", "[" * 100_000])
def test_files_that_are_no_results_are_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with refused(BenchmarkError, "not_a_result"):
        read_result_file(path)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with refused(BenchmarkError, "cannot_read"):
        read_result_file(tmp_path / "none.json")


@pytest.mark.parametrize("margin", ["much", "-1%", "100%", "nan"])
def test_a_margin_is_a_fraction(write: Write, capsys: pytest.CaptureFixture[str], margin: str) -> None:
    old = write("old.json", (1, runs(10, 1)))
    assert execute(["gate", "--baseline", str(old), "--candidate", str(old), "--margin", margin]) == 2
    assert "margin" in capsys.readouterr().err


def write_run(path: Path, second_ms: float) -> None:
    """A run of 40 steps with two parts each, whose times vary by a known percent."""
    random, now, spans = np.random.default_rng(3), 0, []
    for _ in range(40):
        first, second = (round(ms * 1e6 * random.normal(1, 0.01)) for ms in (1.0, second_ms))
        spans += [("step", now, first + second), ("first", now, first), ("second", now + first, second)]
        now += first + second + 1000
    with imported_run(path) as run:
        columns = {
            "process_id": np.full(len(spans), 7),
            "thread_id": np.full(len(spans), 1),
            "kind": np.full(len(spans), kind_code("span")),
            "name_id": np.array([run.name_id(name) for name, _, _ in spans], dtype=np.int64),
            "start_ns": np.array([start for _, start, _ in spans], dtype=np.int64),
            "duration_ns": np.array([duration for _, _, duration in spans], dtype=np.int64),
        }
        run.add_spans(columns)
        run.finish(ImportFacts(source="test", thread_names={(7, 1): "main"}))


def test_the_slowed_part_is_named(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuprof.cli.gate._kinds", lambda *_: ("span",))
    for name, second_ms in (("old", 1.0), ("new", 3.0)):
        write_run(tmp_path / f"{name}.gpuprof", second_ms)
    old = write(
        "old.json", (1, runs(2, 1)), change=lambda told: told.update(profile="/elsewhere/old.gpuprof")
    )
    new = write("new.json", (1, runs(4, 2)), change=lambda told: told.update(profile="new.gpuprof"))
    page = tmp_path / "difference.html"
    command = ["gate", "--baseline", str(old), "--candidate", str(new), "--flamegraph", str(page)]
    assert execute(command) == 1
    printed = capsys.readouterr().out
    assert "span second: " in printed
    assert "span first: " not in printed
    assert "note: One run on a side" in printed
    assert f"wrote {page}" in printed
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert execute([*command[:5], "--json"]) == 1
    cause = json.loads(capsys.readouterr().out)["cause"]
    assert cause["span"]["rows"][0]["name"] == "second"


def test_without_runs_there_is_a_hint(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write("old.json", (1, runs(10, 1))), write("new.json", (1, runs(12, 2)))
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute(command) == 1
    assert "gpuprof bench --profile" in capsys.readouterr().out
    assert execute([*command, "--flamegraph", "page.html"]) == 2
    assert "no run next to" in capsys.readouterr().err


def test_an_inconclusive_gate_has_the_required_process_runs(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write("old.json", (1, runs(10, 1, spread=0.02)), (8, runs(50, 2, spread=0.0)))
    new = write("new.json", (1, runs(10, 3, spread=0.02)), (8, runs(50, 4, spread=0.0)))
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute(command) == 3
    printed = " ".join(capsys.readouterr().out.split())
    rows = judge(read_result_file(old), read_result_file(new)).rows
    needed = rows[0].runs_needed
    assert needed is not None
    # By hand for process runs that vary by 2%: 2 (2.926 * 0.02 / ln(1.01))^2 + 1 = 70.
    assert 40 <= needed <= 110
    assert rows[1].runs_needed is None
    assert (
        f"required sample size: about {needed} process runs a side, gpuprof bench --launches {needed}"
        in printed
    )
    assert execute([*command, "--json"]) == 3
    assert [row["launches_needed"] for row in json.loads(capsys.readouterr().out)["rows"]] == [needed, None]


def test_no_number_of_process_runs_is_shown_where_none_is_known(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1, count=1))))
    new = read_result_file(write("new.json", (1, runs(10, 2, count=1))))
    assert judge(old, new).rows[0].runs_needed is None
    noisy = [
        read_result_file(write(f"{seed}.json", (1, runs(10, seed, count=4, spread=0.3)))) for seed in (1, 2)
    ]
    assert "more than 1,000 process runs a side" in gate_text(judge(*noisy))
    no_margin = judge(*noisy, margin=0.0)
    assert no_margin.rows[0].runs_needed is None


def test_what_is_near_the_margin_needs_more_than_it_has() -> None:
    found = compare([1.0, 1.002, 0.998] * 4, [1.009, 1.011, 1.013] * 4)
    assert found.verdict == "inconclusive"
    assert runs_needed(found, 0.0018) == 48


@pytest.mark.parametrize(("margin", "hint"), [("5", "write 5% or 0.05"), ("1", "write 1% or 0.01")])
def test_a_margin_in_percent_without_its_sign_has_a_hint(
    write: Write, capsys: pytest.CaptureFixture[str], margin: str, hint: str
) -> None:
    old = write("old.json", (1, runs(10, 1)))
    assert execute(["gate", "--baseline", str(old), "--candidate", str(old), "--margin", margin]) == 2
    assert f"'{margin}' is not a fraction; hint: {hint}" in capsys.readouterr().err


def rename(old: str, new: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        for each, name in zip(document["results"], (old, new), strict=True):
            each["row"]["model"] = name

    return change


def test_what_differs_between_long_names_is_shown_whole(write: Write) -> None:
    names = "company_detector_resnet50_fpn_v2_first_head", "company_detector_resnet50_fpn_v2_other_head"
    sizes = ((8, runs(10, 1)), (8, runs(20, 2)))
    stored = read_result_file(write("names.json", *sizes, change=rename(*names)))
    text = gate_text(judge(stored, stored))
    assert max(map(len, text.splitlines())) <= 100
    assert "all: pytorch cpu float32 3x8x8, batch 8" in text
    column = "".join(line.strip().split("  ")[0] for line in text.splitlines())
    assert all(name in column for name in names)
    assert "..." not in text


def test_one_row_alone_has_its_whole_name() -> None:
    shared, names = name_parts([Configuration("pytorch", "net", "cpu", None, None, 8)])
    assert (shared, names) == ("", ["net pytorch cpu, batch 8"])
    sizes = [Configuration("pytorch", "net", "cpu", None, None, size) for size in (1, 8)]
    assert name_parts(sizes) == ("net pytorch cpu", ["batch 1", "batch 8"])
