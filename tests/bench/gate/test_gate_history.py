# SPDX-License-Identifier: Apache-2.0
"""The gate against a history: changes of level, found by simulation with fixed seeds, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import batch_of
from refusals import refused, refused_command

from gpuprof.bench.facts import note
from gpuprof.bench.gate.history import judge_history
from gpuprof.bench.gate.result import Thresholds
from gpuprof.bench.gate.text import gate_text
from gpuprof.bench.results.batch import Stamp
from gpuprof.bench.results.files import document_of, to_json
from gpuprof.bench.results.run_figures import RunFigures, RunMetric
from gpuprof.bench.results.stored import Configuration, ResultFile
from gpuprof.bench.results.stored_history import History, read_history
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.stats.change_points import find_change_points
from gpuprof.stats.ratio_test import Levels, required_files, required_margin

FIRST_DAY = datetime(2026, 2, 1, tzinfo=timezone.utc)
MODEL = Configuration("pytorch", "net", "cpu", "float32", "3x8x8", 4)
OTHER = MODEL._replace(batch_size=8)
BETWEEN_FILES = BETWEEN_RUNS = 0.01


def series(generator: np.random.Generator, levels: np.ndarray, runs: int = 5) -> list[np.ndarray]:
    """Logarithms of the process runs of files around known levels."""
    return [
        level + generator.normal(0, BETWEEN_FILES) + generator.normal(0, BETWEEN_RUNS, runs)
        for level in levels
    ]


def step(files: int, at: int, change: float) -> np.ndarray:
    return np.where(np.arange(files) < at, 0.0, math.log1p(change))


def dated(day: int, figures: dict[Configuration, np.ndarray], **more: Any) -> ResultFile:
    at = FIRST_DAY + timedelta(days=day)
    told: dict[str, Any] = {
        "path": Path(f"{day:03}.json"),
        "timestamp": at.isoformat(),
        "revision": f"revision{day:03}",
        "machine": {},
        "data": None,
        "versions": {},
        "profile": None,
        "medians_s": {each: tuple(0.01 * np.exp(logs)) for each, logs in figures.items()},
        "ways": dict.fromkeys(figures, ("latency", "warm")),
    }
    return ResultFile(**(told | more))


def history_of(files: list[np.ndarray], *candidates: np.ndarray) -> History:
    days = [dated(day, {MODEL: logs}) for day, logs in enumerate(files)]
    new = [dated(900 + number, {MODEL: logs}) for number, logs in enumerate(candidates)]
    return History(tuple(days), tuple(new), ())


# --- change points -------------------------------------------------------------------------------


@pytest.mark.parametrize(("files", "most"), [(8, 17), (30, 17)])
def test_histories_without_a_change_show_one_in_at_most_the_stated_share(files: int, most: int) -> None:
    generator = np.random.default_rng(40)
    repeats = 200
    found = sum(
        bool(find_change_points(generator.normal(0, 1, files), permutations=199, seed=seed))
        for seed in range(repeats)
    )
    # 10 of 200 are expected; more than 17 have a probability of 1 in 100.
    assert found <= most


def test_heavy_tails_make_no_more_false_changes() -> None:
    generator = np.random.default_rng(41)
    series_of = [generator.standard_t(2, 20) for _ in range(200)]
    assert sum(bool(find_change_points(each, permutations=199)) for each in series_of) <= 17


def test_a_step_is_found_within_one_file() -> None:
    generator = np.random.default_rng(42)
    repeats, near, more = 100, 0, 0
    for seed in range(repeats):
        # The step is 3.7 times the deviation of a file's mean.
        figures = [each.mean() for each in series(generator, step(30, 20, 0.05))]
        found = find_change_points(figures, permutations=199, seed=seed)
        near += any(abs(place - 20) <= 1 for place in found)
        more += len(found) > 1
    assert near >= 0.95 * repeats
    assert more <= 0.1 * repeats


def test_what_was_taken_back_is_two_changes() -> None:
    generator = np.random.default_rng(43)
    bump = np.where((np.arange(30) >= 10) & (np.arange(30) < 20), 0.05, 0.0)
    found = [find_change_points(bump + generator.normal(0, 0.01, 30), seed=seed) for seed in range(20)]
    near = [all(any(abs(place - at) <= 1 for place in each) for at in (10, 20)) for each in found]
    assert sum(near) >= 19


def test_one_bad_day_is_no_new_level() -> None:
    generator = np.random.default_rng(44)
    figures = generator.normal(0, 0.01, 30)
    figures[14] += 0.5
    assert find_change_points(figures) == []
    figures[20:] += 0.05
    assert find_change_points(figures) == [20]


@pytest.mark.parametrize("figures", [[], [1.0], [1.0] * 3, [1.0] * 40, [1.0, 1.0, 2.0, 2.0]])
def test_too_few_figures_and_equal_ones_have_no_change(figures: list[float]) -> None:
    assert find_change_points(figures) == []


def test_equal_figures_at_two_levels_change_once() -> None:
    assert find_change_points([1.0] * 10 + [2.0] * 10) == [10]


# --- the candidate -------------------------------------------------------------------------------


def alarms(files: int, runs: int, new_runs: int, candidates: int = 1, repeats: int = 400) -> float:
    generator = np.random.default_rng(45)
    found = 0
    for _ in range(repeats):
        levels = Levels(tuple(series(generator, np.zeros(files), runs)), ())
        new = series(generator, np.zeros(candidates), new_runs)
        ratio = levels.against(new)
        assert ratio is not None
        found += ratio.p_value <= 0.05
    return found / repeats


@pytest.mark.parametrize(
    ("files", "runs", "new_runs", "candidates"),
    [(12, 5, 5, 1), (3, 5, 5, 1), (12, 10, 3, 1), (12, 3, 10, 1), (12, 1, 1, 1), (12, 5, 5, 3)],
)
def test_the_variation_between_files_is_in_the_interval(
    files: int, runs: int, new_runs: int, candidates: int
) -> None:
    assert alarms(files, runs, new_runs, candidates) <= 0.075


def test_process_runs_alone_would_raise_false_alarms() -> None:
    """What the variation between files prevents: one file against another, process run by process run."""
    from gpuprof.stats.ratio_test import log_ratio

    generator, found = np.random.default_rng(46), 0
    for _ in range(200):
        old, new = series(generator, np.zeros(2), 20)
        ratio = log_ratio(np.exp(old), np.exp(new))
        found += ratio is not None and ratio.p_value <= 0.05
    assert found / 200 > 0.5


@pytest.fixture
def few_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """For simulations: the level stays, decisions become a little coarser."""
    quick = partial(find_change_points, permutations=199)
    monkeypatch.setattr("gpuprof.bench.gate.history.find_change_points", quick)


def verdicts(levels: np.ndarray, change: float, repeats: int = 25) -> list[str]:
    generator = np.random.default_rng(47)
    found = []
    for seed in range(repeats):
        (new,) = series(generator, levels[-1:] + math.log1p(change))
        history = history_of(series(generator, levels), new)
        found.append(judge_history(history, seed=seed).rows[0].verdict)
    return found


@pytest.mark.usefixtures("few_permutations")
def test_a_slower_candidate_fails_and_an_equal_one_does_not() -> None:
    assert verdicts(np.zeros(20), 0.10).count("worse") >= 24
    assert verdicts(np.zeros(20), 0.0).count("worse") <= 1


@pytest.mark.usefixtures("few_permutations")
def test_a_change_in_the_past_is_the_baseline_of_today() -> None:
    slower_since = step(30, 15, 0.20)
    assert verdicts(slower_since, 0.0).count("worse") <= 1
    assert verdicts(slower_since, 0.10).count("worse") >= 24
    # What got faster may not get as slow as it was.
    assert verdicts(step(30, 15, -0.15), 0.15).count("worse") >= 24


@pytest.mark.usefixtures("few_permutations")
def test_a_drift_in_the_distant_past_lets_no_candidate_fail() -> None:
    drift = np.concatenate([np.linspace(-0.3, 0.0, 20), np.zeros(20)])
    assert verdicts(drift, 0.0).count("worse") <= 1


@pytest.mark.usefixtures("few_permutations")
def test_the_interval_of_a_change_holds_it() -> None:
    generator = np.random.default_rng(48)
    held = told = 0
    for seed in range(60):
        new = series(generator, np.array([math.log(1.08)]))[0]
        row = judge_history(history_of(series(generator, step(20, 12, 0.08)), new), seed=seed).rows[0]
        if len(row.changes) == 1:
            told += 1
            held += row.changes[0].low <= 1.08 <= row.changes[0].high
    assert told >= 54
    assert held / told >= 0.88


def test_steady_files_need_one_candidate_and_noisy_ones_have_the_required_number() -> None:
    steady = [np.full(3, 0.001 * (day % 2)) for day in range(12)]
    found = judge_history(history_of(steady, np.zeros(3)))
    assert (found.outcome, found.rows[0].verdict) == ("passed", "same")
    noisy = series(np.random.default_rng(49), np.zeros(12))
    row = judge_history(history_of(noisy, np.zeros(3))).rows[0]
    assert row.reason is not None
    assert row.verdict == "inconclusive"
    assert row.reason.values["fix"]["code"] == "gate_needs_margin"
    wide = judge_history(history_of(noisy, np.zeros(3)), Thresholds(0.025)).rows[0]
    assert wide.reason is not None
    assert wide.reason.values["fix"]["code"] == "gate_needs_files"


def test_required_process_runs_of_a_comparison_with_a_level() -> None:
    needed = required_files(0.01, 20, 0.02)
    assert needed == 3
    assert required_files(0.01, 20, 0.001) is None
    margin = required_margin(0.01, 20)
    assert required_files(0.01, 20, margin * 1.001) == 1
    assert required_files(0.0, 20, 0.01) == 1


def test_one_file_leaves_it_open() -> None:
    found = judge_history(history_of([np.zeros(5)], np.zeros(5)))
    assert found.outcome == "inconclusive"
    reason = found.rows[0].reason
    assert reason is not None
    assert reason.code == "gate_one_file"
    assert found.notes == (note("few_files", few=1, configurations=1, fewest=8),)


def test_change_points_have_revisions_and_versions() -> None:
    generator = np.random.default_rng(50)
    files = [
        dated(day, {MODEL: logs}, versions={"torch": "2.12" if day < 12 else "2.13"})
        for day, logs in enumerate(series(generator, step(24, 12, 0.2)))
    ]
    new = dated(30, {MODEL: np.full(5, math.log(1.2))}, versions={"torch": "2.13"})
    (change,) = judge_history(History(tuple(files), (new,), ())).rows[0].changes
    assert (change.before.path.name, change.after.path.name) == ("011.json", "012.json")
    assert change.low < 1.2 < change.high
    assert change.versions == ["torch 2.12 to 2.13"]
    text = gate_text(judge_history(History(tuple(files), (new,), ())))
    assert max(map(len, text.splitlines())) <= 100
    assert "(revision01) and 2026-02-13" in " ".join(text.split())


def test_what_the_newest_file_of_the_model_has_must_be_measured() -> None:
    zeros = np.zeros(3)
    retired = MODEL._replace(batch_size=64)
    other_model = MODEL._replace(model="another")
    files = [dated(0, {MODEL: zeros, retired: zeros}), dated(1, {MODEL: zeros, OTHER: zeros})]
    files.append(dated(2, {other_model: zeros}))
    new = MODEL._replace(batch_size=16)
    found = judge_history(History(tuple(files), (dated(3, {MODEL: zeros, new: zeros}),), ()))
    assert {row.configuration: row.verdict for row in found.rows} == {MODEL: "same", OTHER: "not measured"}
    assert found.outcome == "inconclusive"
    assert found.notes[-1] == note("only_candidate", configurations=[str(new)])
    with refused(BenchmarkError, "no_configuration"):
        judge_history(History(tuple(files), (dated(3, {new: zeros}),), ()))


# --- files ---------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixteen days; half as slow again from the ninth."""
    generator = np.random.default_rng(51)
    for day, logs in enumerate(series(generator, step(16, 8, 0.5), 4)):
        write(tmp_path / f"{day:02}.json", day, logs)
    return tmp_path


def write(path: Path, day: int, logs: np.ndarray, change: Change | None = None) -> Path:
    runs = [(10 * np.exp(each) * np.array([1.0, 0.999, 1.001])).tolist() for each in logs]
    stamp = Stamp((FIRST_DAY + timedelta(days=day)).isoformat(), f"revision{day}")
    document = json.loads(to_json(document_of([batch_of(*runs)], stamp, profile=None)))
    if change is not None:
        change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


NEW = np.log(1.5) + np.array([0.0, 0.005, -0.005, 0.002])


@pytest.mark.parametrize(("factor", "code"), [(1.0, 3), (1.5, 1), (1 / 1.5, 0)])
def test_the_exit_code_is_the_outcome(
    folder: Path, capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    new = write(folder / "new.json", 20, NEW + math.log(factor))
    command = ["gate", "--history", str(folder), "--candidate", str(new)]
    assert execute(command) == code
    printed = capsys.readouterr().out
    assert "between 2026-02-08T00:00:00+00:00 (revision7)" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert execute([*command[:2], f"{folder}/*.json", *command[3:], "--margin", "5%"]) == {3: 0}.get(
        code, code
    )
    assert capsys.readouterr().out.split(":")[0] == {0: "passed", 1: "failed", 3: "passed"}[code]
    assert execute([*command, "--json"]) == code
    row, mean = json.loads(capsys.readouterr().out)["rows"]
    assert (row["metric"], mean["metric"]) == ("p50", "mean")
    (change,) = row["change_points"]
    assert (change["before"]["revision"], change["after"]["revision"]) == ("revision7", "revision8")
    assert len(row["baseline"]) == 8
    assert row["ratio"] == pytest.approx(factor, rel=0.02)


def test_copies_newer_files_and_empty_ones_are_left_out(folder: Path) -> None:
    new = write(folder / "new.json", 20, NEW)
    write(folder / "later.json", 25, NEW)
    (folder / "copy.json").write_bytes((folder / "03.json").read_bytes())
    (folder / "running.json").touch()
    read = read_history([str(folder), f"{folder}/0*.json"], [new])
    assert [each.path.name for each in read.files] == [f"{day:02}.json" for day in range(16)]
    assert [each.code for each in read.notes] == ["empty_files", "copied_files", "newer_files"]
    several = read_history([str(folder)], [new, folder / "later.json"])
    assert [each.path.name for each in several.candidates] == ["new.json", "later.json"]


def other_processor(document: dict[str, Any]) -> None:
    document["results"][0]["environment"]["processor"] = "another"


def cold_caches(document: dict[str, Any]) -> None:
    document["results"][0]["settings"]["caches"] = "cold"


def other_data(document: dict[str, Any]) -> None:
    document["asked"] = {"spec": {"data": "images"}}


def no_time(document: dict[str, Any]) -> None:
    document["timestamp"] = "yesterday"


def no_process_runs(document: dict[str, Any]) -> None:
    document["results"][0]["launches"] = []


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        (other_processor, "other_machine", ""),
        (cold_caches, "measured_differently", ""),
        (other_data, "measured_differently", ""),
        (no_time, "unusable_history", "'yesterday'"),
        (no_process_runs, "unusable_history", ""),
        (None, "unusable_history", ""),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], change: Change | None, code: str, value: str
) -> None:
    wrong = write(folder / "02.json", 2, NEW, change)
    if change is None:
        wrong.write_text('{"results": [')
    new = write(folder / "new.json", 20, NEW)
    command = ["gate", "--history", str(folder), "--candidate", str(new)]
    refused_command(command, code, "02.json", value)
    if change is other_processor:
        assert execute([*command, "--any-machine"]) in (0, 3)
        capsys.readouterr()
        assert execute([*command, "--any-machine", "--json"]) in (0, 3)
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert "other_machine_files" in [each["code"] for each in notes]


def test_many_corrupt_files_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in range(5):
        (folder / f"{day:02}.json").write_text("torn")
    new = write(folder / "new.json", 20, NEW)
    assert execute(["gate", "--history", str(folder), "--candidate", str(new)]) == 2
    errors = capsys.readouterr().err
    assert "; and 2 more" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "no_baseline"),
        (["--history", "here", "--baseline", "b.json"], "no_baseline"),
        (["--baseline", "b.json", "--candidate", "c.json"], "needs_history"),
        (["--history", "nowhere/*.json"], "no_results"),
    ],
)
def test_wrong_options_are_one_line(folder: Path, arguments: list[str], code: str) -> None:
    refused_command(["gate", "--candidate", folder / "00.json", *arguments], code)


def test_a_history_of_later_results_only_is_refused(folder: Path) -> None:
    with refused(BenchmarkError, "no_older_results"):
        read_history([str(folder)], [folder / "00.json"])


def test_runs_next_to_the_newest_files_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuprof.cli import gate

    seen: list[Any] = []
    monkeypatch.setattr(gate, "_cause", lambda *asked: seen.append(asked))
    for day in (3, 12, 14):
        run = folder / f"{day}.gpuprof"
        run.mkdir()
        logs = np.log(
            json.loads((folder / f"{day:02}.json").read_text())["results"][0]["row"]["latency_p50_ms"] / 10
        )
        write(
            folder / f"{day:02}.json",
            day,
            logs + np.zeros(4),
            lambda told, run=run: told.update(profile=str(run)),
        )
    new = write(folder / "new.json", 20, NEW + 0.5)
    assert execute(["gate", "--history", str(folder), "--candidate", str(new)]) == 1
    assert [each.path.name for each in seen[0][:2]] == ["14.json", "new.json"]


def test_candidates_count_as_files_of_their_own() -> None:
    generator = np.random.default_rng(52)
    files = series(generator, np.zeros(20))
    several = judge_history(history_of(files, *series(generator, np.zeros(12))), Thresholds(0.02))
    assert several.rows[0].verdict == "same"
    assert several.candidates == 12
    assert replace(several, candidates=1).outcome == "passed"


def test_a_history_of_memory_has_its_own_levels() -> None:
    generator = np.random.default_rng(71)

    def with_memory(day: int, size: float) -> ResultFile:
        figures = RunFigures({RunMetric.MEMORY: (size,) * 3}, {}, 0, 3)
        logs = generator.normal(0, 0.002, 3)
        return replace(dated(day, {MODEL: logs}), more={MODEL: figures})

    files = [with_memory(day, 4e6) for day in range(10)]
    for size, verdict in ((4e6, "same"), (4.4e7, "worse"), (2e6, "better")):
        found = judge_history(History(tuple(files), (with_memory(900, size),), ()), Thresholds(0.05))
        assert found.by_metric == {RunMetric.P50: "same", RunMetric.MEMORY: verdict}
        row = next(row for row in found.rows if row.metric is RunMetric.MEMORY)
        assert row.ratio == pytest.approx(size / 4e6)


def test_throughput_in_a_history_is_worse_where_there_is_less() -> None:
    generator = np.random.default_rng(72)

    def with_rate(day: int, rate: float) -> ResultFile:
        rates = tuple(rate * np.exp(generator.normal(0, 0.002, 3)))
        figures = RunFigures({RunMetric.THROUGHPUT: rates}, {}, 0, 3)
        return replace(dated(day, {MODEL: generator.normal(0, 0.002, 3)}), more={MODEL: figures})

    history = History(tuple(with_rate(day, 500) for day in range(10)), (with_rate(900, 300),), ())
    (row,) = judge_history(history, Thresholds(metrics=(RunMetric.THROUGHPUT,))).rows
    assert row.verdict == "worse"
    assert (row.baseline, row.candidate) == (pytest.approx(500, rel=0.01), pytest.approx(300, rel=0.01))
    assert row.ratio == pytest.approx(5 / 3, rel=0.02)


def test_a_busy_candidate_is_inconclusive_against_a_history() -> None:
    quiet = [dated(day, {MODEL: np.zeros(3)}, more={MODEL: RunFigures(completed=3)}) for day in range(9)]
    new = dated(900, {MODEL: np.full(3, 0.5)}, more={MODEL: RunFigures(busy=3, completed=3)})
    found = judge_history(History(tuple(quiet), (new,), ()))
    assert found.outcome == "inconclusive"
    assert "gate_background_load" in {each.code for each in found.notes}
    assert judge_history(History(tuple(quiet), (new,), ()), any_load=True).outcome == "failed"
