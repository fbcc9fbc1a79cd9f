# SPDX-License-Identifier: Apache-2.0
"""The gate: what passes, what fails, what stays open, and what cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import batch_of
from refusals import refused, refused_command

from gpuprof.bench.gate.gate import judge, runs_needed
from gpuprof.bench.gate.result import Gate, GateRow, Thresholds
from gpuprof.bench.gate.text import gate_text, name_parts
from gpuprof.bench.measure.host import MachineUse
from gpuprof.bench.results.batch import Stamp
from gpuprof.bench.results.files import document_of, to_json
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.bench.results.stored import Configuration, read_result_file
from gpuprof.cli import main
from gpuprof.cli.gate import METRICS
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import imported_run, kind_code
from gpuprof.stats.ratio_test import compare

STAMP = Stamp("2026-02-03T12:00:00+00:00", "abc")
Write = Callable[..., Path]
MANY = 400  # samples of a process run, enough for p99
Change = Callable[[dict[str, Any]], None]


def runs(level_ms: float, seed: int, count: int = 12, spread: float = 0.004) -> list[list[float]]:
    random = np.random.default_rng(seed)
    return [(level_ms * random.normal(1, spread) * random.normal(1, 0.02, 40)).tolist() for _ in range(count)]


def medians(found: Gate) -> list[GateRow]:
    return [row for row in found.rows if row.metric == "p50"]


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
    found = judge(read_result_file(old), read_result_file(new))
    rows = {row.configuration.batch_size: row for row in medians(found)}
    assert rows[1].verdict == "same"
    assert rows[8].verdict == {1.0: "same", 1.1: "worse", 0.9: "better"}[ratio]
    assert rows[8].candidate == pytest.approx(0.05 * ratio, rel=0.01)


def test_noise_and_too_few_process_runs_leave_it_open(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1, spread=0.2))))
    new = read_result_file(write("new.json", (1, runs(10.3, 2, spread=0.2))))
    assert judge(old, new).outcome == "inconclusive"
    one = read_result_file(write("one.json", (1, runs(20, 3, count=1))))
    found = judge(old, one)
    assert (found.outcome, found.rows[0].judgement.low) == ("inconclusive", None)  # type: ignore[union-attr]
    assert execute(["gate", "--baseline", str(old.path), "--candidate", str(new.path)]) == 3


def test_the_figures_of_a_row_have_the_ratio_that_is_judged(write: Write) -> None:
    # The medians of these process runs contradict their ratio: 27.8 to 24.7 ms.
    old = read_result_file(write("old.json", (1, [[5.0] * 40, [27.8] * 40, [30.0] * 40])))
    new = read_result_file(write("new.json", (1, [[24.0] * 40, [24.7] * 40, [400.0] * 40])))
    (row,) = medians(judge(old, new))
    assert row.baseline == pytest.approx((5 * 27.8 * 30) ** (1 / 3) / 1e3)
    assert row.ratio is not None
    assert row.candidate == pytest.approx(row.baseline * row.ratio)


def test_a_margin_lets_small_changes_pass(write: Write) -> None:
    old, new = write("old.json", (1, runs(10, 1))), write("new.json", (1, runs(10.3, 2)))
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute([*command, "--margin", "1%"]) == 1
    assert execute([*command, "--margin", "0.05"]) == 0


def test_what_the_candidate_lacks_is_inconclusive_and_what_is_new_is_reported(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1)), (8, runs(50, 2))))
    new = read_result_file(write("new.json", (1, runs(10, 3)), (32, runs(200, 4))))
    found = judge(old, new)
    assert [row.verdict for row in medians(found)] == ["same", "not measured"]
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
    refused_command(command, "other_machine", old, new)
    assert execute([*command, "--any-machine", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "different_machines" in [each["code"] for each in notes]


def other_threads(document: dict[str, Any]) -> None:
    for each in document["results"]:
        each["description"]["details"] = {"threads": "64"}


def test_other_threads_are_refused_like_another_machine(write: Write) -> None:
    old = write("old.json", (1, runs(10, 1)))
    new = write("new.json", (1, runs(10, 2)), change=other_threads)
    refused_command(["gate", "--baseline", old, "--candidate", new], "other_machine", "64")


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
    ("change", "code", "value"),
    [
        (cold_caches, "measured_differently", "warm"),
        (other_data, "data_differs", "None"),
        (no_process_runs, "no_process_run", ""),
        (newer_format, "unknown_format", "99"),
        (no_results, "no_results", ""),
        (other_model, "no_configuration", ""),
        (no_row, "damaged", "row"),
    ],
)
def test_what_cannot_be_compared_is_one_line(write: Write, change: Change, code: str, value: str) -> None:
    old = write("old.json", (1, runs(10, 1)))
    new = write("new.json", (1, runs(10, 2)), change=change)
    refused_command(["gate", "--baseline", old, "--candidate", new], code, "new.json", value)


@pytest.mark.texts
def test_a_result_without_a_format_is_refused_in_words(write: Write) -> None:
    path = write("old.json", (1, runs(10, 1)), change=lambda document: document.pop("format"))
    refused_command(["gate", "--baseline", path, "--candidate", path], "unknown_format", "no format")


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
    with pytest.raises(BenchmarkError) as caught:
        main._invoke([*command, "--flamegraph", "page.html"])
    assert caught.value.code == "no_run"


def test_an_inconclusive_gate_has_the_required_process_runs(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write("old.json", (1, runs(10, 1, spread=0.02)), (8, runs(50, 2, spread=0.0)))
    new = write("new.json", (1, runs(10, 3, spread=0.02)), (8, runs(50, 4, spread=0.0)))
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute(command) == 3
    printed = " ".join(capsys.readouterr().out.split())
    rows = medians(judge(read_result_file(old), read_result_file(new)))
    needed = rows[0].runs_needed
    assert needed is not None
    # By hand for process runs that vary by 2%, 4 figures at 1 - 0.2 / 4 and a level of 0.05 / 4:
    # 2 ((2.498 + 1.645) * 0.02 / ln(1.02 / 1.01))^2 + 1.6 = 142.
    assert 80 <= needed <= 220
    assert rows[1].runs_needed is None
    assert (
        f"required sample size: about {needed} process runs a side, gpuprof bench --launches {needed}"
        in printed
    )
    assert execute([*command, "--json"]) == 3
    printed_rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["launches_needed"] for row in printed_rows if row["metric"] == "p50"] == [needed, None]


def test_no_number_of_process_runs_is_shown_where_none_is_known(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1, count=1))))
    new = read_result_file(write("new.json", (1, runs(10, 2, count=1))))
    assert judge(old, new).rows[0].runs_needed is None
    noisy = [
        read_result_file(write(f"{seed}.json", (1, runs(10, seed, count=4, spread=0.3)))) for seed in (1, 2)
    ]
    assert "more than 1,000 process runs a side" in gate_text(judge(*noisy))
    no_margin = judge(*noisy, Thresholds(0.0))
    assert no_margin.rows[0].runs_needed is None


def test_what_is_near_the_margin_needs_more_than_it_has() -> None:
    found = compare([1.0, 1.002, 0.998] * 4, [1.009, 1.011, 1.013] * 4)
    assert found.verdict == "inconclusive"
    assert runs_needed(found, 0.0018) == 48


@pytest.mark.parametrize(("margin", "fraction"), [("5", "0.05"), ("1", "0.01")])
def test_a_margin_in_percent_without_its_sign_has_a_hint(write: Write, margin: str, fraction: str) -> None:
    old = write("old.json", (1, runs(10, 1)))
    command = ["gate", "--baseline", old, "--candidate", old, "--margin", margin]
    refused_command(command, "invalid_fraction", f"'{margin}'", fraction)


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


# --- metrics besides the median ------------------------------------------------------------------


def long_runs(level_ms: float, seed: int, *, tail: float = 1.0, count: int = 12) -> list[list[float]]:
    """Process runs of MANY samples each, the slowest 5% of which are `tail` times as slow."""
    generator = np.random.default_rng(seed)
    slow = np.arange(MANY) % 20 == 0
    return [
        (
            level_ms
            * generator.normal(1, 0.002)
            * np.where(slow, tail, 1.0)
            * generator.normal(1, 0.01, MANY)
        ).tolist()
        for _ in range(count)
    ]


def with_extra(**extra: Any) -> Change:
    """Add what a process run recorded besides its samples."""

    def change(document: dict[str, Any]) -> None:
        for each in document["results"]:
            for run in each["launches"]:
                run["extra"] |= extra

    return change


def verdicts(found: Gate) -> dict[str, str]:
    return {str(metric): str(verdict) for metric, verdict in found.by_metric.items()}


def test_a_slower_tail_fails_though_the_median_is_the_same(write: Write) -> None:
    old = read_result_file(write("old.json", (1, long_runs(10, 1))))
    new = read_result_file(write("new.json", (1, long_runs(10, 2, tail=50))))
    found = judge(old, new)
    assert found.outcome == "failed"
    assert verdicts(found) == {"p50": "same", "p95": "worse", "p99": "worse", "mean": "worse"}
    same = judge(old, read_result_file(write("same.json", (1, long_runs(10, 3)))))
    assert same.outcome == "passed"
    assert set(verdicts(same).values()) == {"same"}


@pytest.mark.parametrize("kind", ["allocator_peak_bytes", "host_own_bytes", "host_resident_bytes"])
def test_ten_times_the_memory_fails(write: Write, kind: str) -> None:
    files = [
        read_result_file(write(f"{size}.json", (1, runs(10, size)), change=with_extra(memory={kind: size})))
        for size in (10**6, 10**7)
    ]
    metric = "process-memory" if kind == "host_resident_bytes" else "memory"
    found = judge(*files)
    assert found.outcome == "failed"
    assert verdicts(found)[metric] == "worse"
    assert verdicts(found)["p50"] == "same"
    assert verdicts(judge(files[1], files[0]))[metric] == "better"
    (row,) = [row for row in found.rows if row.metric == metric]
    assert (row.baseline, row.candidate) == (pytest.approx(10**6), pytest.approx(10**7))
    assert row.to_dict()["unit"] == "B"


def test_more_energy_fails(write: Write) -> None:
    files = [
        read_result_file(
            write(
                f"{joules}.json",
                (1, runs(10, joules)),
                change=with_extra(energy={"energy_per_sample_j": joules}),
            )
        )
        for joules in (1, 2)
    ]
    assert verdicts(judge(*files))["energy"] == "worse"
    assert judge(*files, Thresholds(metrics=(RunMetric.P50,))).outcome == "passed"


def test_less_throughput_is_worse(write: Write) -> None:
    old = read_result_file(write("old.json", (8, runs(10, 1))))
    new = read_result_file(write("new.json", (8, runs(12, 2))))
    limits = Thresholds(metrics=(RunMetric.THROUGHPUT,))
    (row,) = judge(old, new, limits).rows
    assert row.verdict == "worse"
    assert row.baseline == pytest.approx(800, rel=0.01)
    assert row.candidate == pytest.approx(800 / 1.2, rel=0.01)
    assert row.ratio == pytest.approx(1.2, rel=0.01)
    (row,) = judge(new, old, limits).rows
    assert row.verdict == "better"


def test_each_metric_has_a_threshold(write: Write) -> None:
    old = read_result_file(write("old.json", (1, long_runs(10, 1))))
    new = read_result_file(write("new.json", (1, long_runs(10, 2, tail=1.5))))
    wide = dict.fromkeys((RunMetric.P95, RunMetric.P99, RunMetric.MEAN), 0.9)
    assert verdicts(judge(old, new))["p99"] == "worse"
    found = judge(old, new, Thresholds(own=wide))
    assert found.outcome == "passed"
    assert {row.metric: row.threshold for row in found.rows} == {RunMetric.P50: 0.01, **wide}


def test_a_tail_of_too_few_samples_is_reported_and_inconclusive_if_it_was_named(write: Write) -> None:
    old, new = (read_result_file(write(f"{seed}.json", (1, runs(10, seed)))) for seed in (1, 2))
    found = judge(old, new)
    assert found.outcome == "passed"
    reasons = {
        each.values["metric"]: each.values["reason"] for each in found.notes if each.code == "tail_not_judged"
    }
    assert {name: reason["values"] for name, reason in reasons.items()} == {
        "p95": {"samples": 40, "needed": 59},
        "p99": {"samples": 40, "needed": 299},
    }
    named = judge(old, new, Thresholds(own={RunMetric.P99: 0.2}))
    assert named.outcome == "inconclusive"
    assert verdicts(named)["p99"] == "not measured"


def test_thresholds_of_the_command_line(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write("old.json", (1, long_runs(10, 1))), write("new.json", (1, long_runs(10, 2, tail=1.5)))
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute(command) == 1
    capsys.readouterr()
    assert (
        execute([*command, "--threshold", "p99=60%", "--threshold", "p95=0.6", "--threshold", "mean=10%"])
        == 0
    )
    capsys.readouterr()
    assert execute([*command, "--metric", "p50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == {"p50": "same"}


@pytest.mark.parametrize("words", ["p42=10%", "p99", "p99=50", "p99=much", "=1%", "p99=-1%"])
def test_a_threshold_is_a_metric_with_a_fraction(
    write: Write, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    old = write("old.json", (1, runs(10, 1)))
    command = ["gate", "--baseline", str(old), "--candidate", str(old)]
    assert execute([*command, "--threshold", words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_metrics_of_the_command_line_are_all_there_are() -> None:
    assert tuple(map(str, RunMetric)) == METRICS


# --- a busy machine ------------------------------------------------------------------------------


def busy(runs_of_12: int) -> Change:
    """Other processes kept 3 of 4 processors busy during so many process runs."""

    def change(document: dict[str, Any]) -> None:
        use = MachineUse(1.0, 4, 0, 3.0, 0.0, None, None)
        for each in document["results"]:
            for run in each["launches"][:runs_of_12]:
                run["measurement"]["machine"] = asdict(use)

    return change


@pytest.mark.parametrize("side", ["old", "new"])
def test_times_of_a_busy_machine_are_inconclusive(
    write: Write, capsys: pytest.CaptureFixture[str], side: str
) -> None:
    changes = {name: busy(12) if name == side else None for name in ("old", "new")}
    old = write("old.json", (1, runs(10, 1)), change=changes["old"])
    new = write("new.json", (1, runs(15, 2)), change=changes["new"])
    found = judge(read_result_file(old), read_result_file(new))
    assert found.outcome == "inconclusive"
    assert {row.reason.code for row in found.rows if row.reason is not None} == {"gate_busy_machine"}
    (noted,) = [each for each in found.notes if each.code == "gate_background_load"]
    assert (noted.severity, noted.values["busy"], noted.values["measured"]) == ("warning", 12, 12)
    command = ["gate", "--baseline", str(old), "--candidate", str(new)]
    assert execute(command) == 3
    capsys.readouterr()
    assert execute([*command, "--any-load"]) == 1


def test_little_load_is_a_warning_and_memory_does_not_depend_on_it(write: Write) -> None:
    old = read_result_file(write("old.json", (1, runs(10, 1)), change=busy(2)))
    new = read_result_file(write("new.json", (1, runs(15, 2))))
    found = judge(old, new)
    assert found.outcome == "failed"
    assert [each.values["busy"] for each in found.notes if each.code == "gate_background_load"] == [2]

    def loaded(size: int) -> Change:
        def change(document: dict[str, Any]) -> None:
            busy(12)(document)
            with_extra(memory={"host_own_bytes": size})(document)

        return change

    sides = [read_result_file(write(f"{n}.json", (1, runs(10, n)), change=loaded(n * 10**6))) for n in (1, 3)]
    both = judge(*sides)
    assert both.outcome == "failed"
    assert verdicts(both) == {"p50": "inconclusive", "mean": "inconclusive", "memory": "worse"}
