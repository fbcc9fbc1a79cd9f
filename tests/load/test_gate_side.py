# SPDX-License-Identifier: Apache-2.0
"""Load results in a gate: M/M/1 queues whose change is known, single runs and several, and a history."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queues import random_queue, served
from refusals import refused

from gpuprof.bench.gate.gate import judge
from gpuprof.bench.gate.result import Gate, Thresholds
from gpuprof.bench.gate.text import gate_text
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.load.correlated import fraction_of, quantile_of_run
from gpuprof.load.figures import latencies_s
from gpuprof.load.gate_side import read_side
from gpuprof.load.requests import RequestStatus, Rows
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.warnings import load_warning

Save = Callable[..., Path]
COUNT = 12_000
LOAD = 0.3


def queue(slower: float, seed: int, failing: int | None = None, count: int = COUNT) -> Rows:
    """Return an M/M/1 queue with services of 1 ms and a load of 30%; services are `slower`."""
    generator = np.random.default_rng(seed)
    planned = np.cumsum(generator.exponential(1e6 / LOAD, count)).astype(np.int64)
    rows = served(planned, (generator.exponential(1e6, count) * slower).astype(np.int64))
    if failing is not None:
        rows["status"][::failing] = RequestStatus.SERVER_ERROR
    return rows


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def saved(
        name: str, *, slower: float = 1.0, seed: int = 0, day: int = 1, busy: bool = False, **more: Any
    ) -> Path:
        rows = queue(slower, seed, more.pop("failing", None), more.pop("count", COUNT))
        target = more.pop("target", "m.py:build")
        settings = LoadSettings(target, "server", "poisson", rate=300.0, **{"slo": "p99<20ms", **more})
        environment = {"processor": "P", "cores": 2, "date": f"2026-01-{day:02d}T00:00:00+00:00"}
        warnings = (load_warning("steal_time", share=0.5),) if busy else ()
        run = LoadRun(10**9, int(rows["end_ns"].max()), machine_warnings=warnings, environment=environment)
        return LoadResult(settings, run, rows).save(tmp_path / name)

    return saved


def verdicts(found: Gate) -> dict[str, str]:
    return {str(row.metric): str(row.verdict) for row in found.rows}


def gate(*words: str | Path) -> int:
    return execute(["gate", *map(str, words)])


def sides(option: str, *folders: Path) -> list[str]:
    return [word for folder in folders for word in (option, str(folder))]


# --- one run of each ------------------------------------------------------------------------------


def test_one_slower_run_fails_and_an_equal_one_does_not(save: Save) -> None:
    base = save("base", seed=1)
    found = judge(read_side([base]), read_side([save("slow", seed=2, slower=1.5)]))
    worse = {name for name, verdict in verdicts(found).items() if verdict == "worse"}
    assert worse >= {"p50", "p99", "service-p50", "service-p99"}
    rows = {row.metric: row for row in found.rows}
    service = rows[RunMetric.SERVICE_P99]
    assert service.judgement is not None
    assert service.judgement.low is not None
    assert service.judgement.high is not None
    assert service.judgement.low < 1.5 < service.judgement.high
    assert gate("--baseline", base, "--candidate", save("slow", seed=2, slower=1.5)) == 1
    assert gate("--baseline", base, "--candidate", save("same", seed=3), "--margin", "20%",
                "--threshold", "p99=60%") == 0  # fmt: skip


def test_a_gate_of_equal_runs_is_rarely_worse(save: Save) -> None:
    runs = [read_side([save(f"run{seed}", seed=seed)]) for seed in range(8)]
    found = [judge(old, new) for old, new in itertools.permutations(runs, 2)]
    # 5% of the gates, with one correction over the rows
    assert sum(bool(each.worse) for each in found) <= 0.05 * len(found)


@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_the_interval_of_a_quantile_of_one_run_covers(quantile: float) -> None:
    truth_s = -math.log(1 - quantile) / (1 - 0.5) * 1e-3
    found = [quantile_of_run(latencies_s(random_queue(0.5, 8_000, seed)), quantile) for seed in range(30)]
    known = [(each.low, each.high) for each in found if each.low is not None and each.high is not None]
    assert len(known) >= 22
    # 17 to 50 of 100 by the rank interval of independent requests
    assert sum(low <= truth_s <= high for low, high in known) >= 0.85 * len(known)


def test_a_run_that_is_too_short_for_its_correlation_is_inconclusive(save: Save, tmp_path: Path) -> None:
    def saved(name: str, seed: int) -> Path:
        rows = random_queue(0.9, 6_000, seed)
        settings = LoadSettings("m.py:build", "server", "poisson", rate=900.0)
        run = LoadRun(10**9, int(rows["end_ns"].max()), environment={})
        return LoadResult(settings, run, rows).save(tmp_path / name)

    old, new = saved("old", 1), saved("new", 2)
    found = judge(read_side([old]), read_side([new]))
    assert verdicts(found)["p99"] == "inconclusive"
    reason = next(row.reason for row in found.rows if row.metric is RunMetric.P99)
    assert reason is not None
    assert reason.code in ("load_too_few", "load_correlated")
    assert gate("--baseline", old, "--candidate", new) == 3


def test_a_median_that_is_missing_has_its_reason(save: Save) -> None:
    found = judge(read_side([save("a", seed=1)]), read_side([save("b", seed=2, count=35)]))
    [row] = [row for row in found.rows if row.metric is RunMetric.P50]
    assert row.reason is not None
    assert row.reason.code == "load_few_requests"


@pytest.mark.texts
def test_the_throughput_of_streams_is_in_tokens(save: Save) -> None:
    old, new = (read_side([save(name, target="openai+http://127.0.0.1:1/v1")]) for name in "ab")
    assert " tokens/s" in gate_text(judge(old, new))
    assert "tokens" not in gate_text(judge(read_side([save("c")]), read_side([save("d")])))


# --- failures -------------------------------------------------------------------------------------


def test_ten_requests_have_no_interval_of_failures(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = save("base", seed=1, count=10), save("new", seed=2, count=10)
    words = ("--baseline", str(base), "--candidate", str(new), "--json")
    assert gate(*words) == 3
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["success"]["verdict"] == "inconclusive"


def test_failures_are_worse_and_take_the_goodput_with_them(save: Save) -> None:
    found = judge(read_side([save("a", seed=1)]), read_side([save("b", seed=2, failing=50)]))
    assert {name: verdicts(found)[name] for name in ("success", "goodput")} == {
        "success": "worse",
        "goodput": "worse",
    }
    row = next(row for row in found.rows if row.metric is RunMetric.SUCCESS)
    assert (row.baseline, row.candidate) == (1.0, pytest.approx(0.98))
    # of the p99 the failed requests are the latest
    assert "p99" not in verdicts(found)
    assert [each.code for each in found.notes] == ["tail_not_judged"]


def test_a_run_in_which_all_fail_is_worse(save: Save) -> None:
    old, new = save("a", seed=1), save("b", seed=2, failing=1)
    assert gate("--baseline", old, "--candidate", new) == 1


def test_failures_that_come_together_count_less() -> None:
    apart, together = np.zeros(10_000), np.zeros(10_000)
    apart[::100] = 1
    together[:100] = 1
    widths = [found.high - found.low for found in map(fraction_of, (apart, together))]
    assert widths[1] > 5 * widths[0]


def test_targets_that_differ_are_no_goodput(save: Save) -> None:
    found = judge(read_side([save("a", seed=1)]), read_side([save("b", seed=2, slo="p99<9ms")]))
    assert "goodput" not in verdicts(found)
    assert [each.code for each in found.notes] == ["goodput_not_judged"]


# --- several runs, histories ----------------------------------------------------------------------


def test_several_folders_are_independent_runs(save: Save) -> None:
    old = [save(f"old{each}", seed=each) for each in range(5)]
    new = [save(f"new{each}", seed=50 + each, slower=1.3) for each in range(5)]
    found = judge(read_side(old), read_side(new))
    comparison = next(row.judgement for row in found.rows if row.metric is RunMetric.P50)
    assert getattr(comparison, "old_launches", None) == 5
    assert verdicts(found)["p50"] == "worse"
    assert gate(*sides("--baseline", *old), *sides("--candidate", *new)) == 1


def test_a_history_of_folders(save: Save, tmp_path: Path) -> None:
    for day in range(9):
        save(f"history/run{day}", seed=day, day=1 + day)
    history = tmp_path / "history"
    slow = save("slow", seed=40, day=20, slower=1.5)
    assert gate("--history", history, "--candidate", slow) == 1
    same = save("same", seed=41, day=20)
    loose = ("--margin", "30%", "--threshold", "p99=80%")
    assert gate("--history", f"{history}/*", "--candidate", same, *loose) == 0


def test_a_busy_machine_is_inconclusive_but_not_about_failures(save: Save) -> None:
    old, slow = save("old", seed=1), save("slow", seed=2, slower=1.5, busy=True)
    assert gate("--baseline", old, "--candidate", slow) == 3
    assert gate("--baseline", old, "--candidate", slow, "--any-load") == 1
    assert gate("--baseline", old, "--candidate", save("bad", seed=2, failing=10, busy=True)) == 1


# --- what cannot be compared ----------------------------------------------------------------------


def test_what_cannot_be_one_side(save: Save, tmp_path: Path) -> None:
    old = save("old", seed=1)
    with refused(BenchmarkError, "different_loads"):
        read_side([old, save("other", seed=1, concurrency=4)])
    (tmp_path / "empty").mkdir()
    assert gate("--baseline", old, "--candidate", tmp_path / "empty") == 2
    (tmp_path / "bench.json").write_text("{}", encoding="utf-8")
    assert gate("--baseline", old, "--baseline", tmp_path / "bench.json", "--candidate", old) == 2
    (tmp_path / "other" / "requests.parquet").unlink()
    assert gate("--baseline", old, "--candidate", tmp_path / "other") == 2


def test_thresholds_of_a_load_are_wider_unless_they_are_named(
    save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = save("old", seed=1), save("new", seed=3)
    for words, expected in (((), 0.05), (("--margin", "2%"), 0.02)):
        gate("--baseline", old, "--candidate", new, *words, "--json")
        rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
        assert rows["p50"]["threshold"] == expected
        assert rows["success"]["threshold"] == 0.005
    key = (next(iter(read_side([old]).medians_s)), RunMetric.GOODPUT)
    assert Thresholds(own={RunMetric.GOODPUT: 0.03}).of_key(key) == 0.03
