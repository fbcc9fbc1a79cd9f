# SPDX-License-Identifier: Apache-2.0
"""Comparisons under load: of stored folders, and of variants that are measured; suites with a load."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queues import served
from refusals import refused, refused_command

from gpuprof.bench.compare.plan import ComparisonPlan, Variant, read_suite
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.verdicts import GateVerdict
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.load import comparison_run
from gpuprof.load.compared_loads import compare_loads, runs_in
from gpuprof.load.comparison_plan import LoadComparisonPlan, LoadTable, parse_load, read_load_suite
from gpuprof.load.comparison_report import write_comparison
from gpuprof.load.comparison_run import run_load_comparison
from gpuprof.load.requests import Rows
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings

SERVICE_MS = {"slow.py:build": 1.5, "fast.py:build": 0.5}
COUNT = 4_000


def rows_of(seed: int, service_ms: float) -> Rows:
    """Return the rows of a server with exponential services, at 300 requests per second."""
    generator = np.random.default_rng(seed)
    planned = np.cumsum(generator.exponential(1e9 / 300, COUNT)).astype(np.int64)
    return served(planned, (generator.exponential(1e6, COUNT) * service_ms).astype(np.int64))


def result_of(settings: LoadSettings, service_ms: float) -> LoadResult:
    rows = rows_of(settings.seed, service_ms)
    return LoadResult(settings, LoadRun(10**9, int(rows["end_ns"].max()), environment={}), rows)


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    """A folder with three runs for each of three variants."""
    for number, (name, service_ms) in enumerate({"old": 1.0, "new": 0.6, "equal": 1.0}.items()):
        for seed in range(3):
            settings = LoadSettings("m.py:build", "server", "poisson", rate=300.0, seed=10 * number + seed)
            result_of(settings, service_ms).save(tmp_path / "loads" / name / f"run{seed}")
    return tmp_path / "loads"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[LoadSettings]:
    """Replace runs by a server whose service time is that of the model's name."""
    asked: list[LoadSettings] = []

    def run(target: str, settings: LoadSettings, *, options: Any) -> LoadResult:
        assert options.drain_s == 60
        asked.append(settings)
        return result_of(settings, SERVICE_MS[target])

    monkeypatch.setattr(comparison_run, "run_load", run)
    return asked


def plan(load: LoadTable | None, **models: str) -> LoadComparisonPlan:
    variants = tuple(Variant(name, SystemSpec(model)) for name, model in models.items())
    return LoadComparisonPlan(ComparisonPlan(variants, name="loads"), load)


def test_the_faster_variant_is_recommended(loads: Path) -> None:
    found = compare_loads({each: runs_in(loads / each) for each in ("old", "new")})
    assert found.choice is not None
    assert found.choice.name == "new"
    assert found.verdict_of("new") is GateVerdict.BETTER
    assert {len(each.runs) for each in found.variants} == {3}
    backwards = compare_loads({each: runs_in(loads / each) for each in ("old", "new")}, "new")
    assert backwards.choice is backwards.baseline


def test_all_rows_of_all_variants_have_one_correction(loads: Path) -> None:
    found = compare_loads({each: runs_in(loads / each) for each in ("old", "new", "equal")})
    levels = {row.judgement.level for row in found.gate.rows if row.judgement is not None}
    assert len(levels) == 1
    alone = compare_loads({each: runs_in(loads / each) for each in ("old", "equal")})
    assert len(found.gate.rows) == 2 * len(alone.gate.rows)


def test_the_command_compares_folders_and_writes_its_reports(
    loads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", f"old:{loads / 'old'},new:{loads / 'new'}", "--output-dir", str(tmp_path / "out")]
    assert execute([*words, "--report", "md,json,csv"]) == 0
    assert capsys.readouterr().out.startswith("recommended: new")
    plain = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (plain["kind"], plain["recommended"]) == ("load_comparison", "new")
    with (tmp_path / "out" / "report.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} >= {"p50", "p99", "service-p50", "throughput", "success"}
    assert next(row for row in rows if row["metric"] == "service-p50")["verdict"] == "better"
    equal = ["compare", f"old:{loads / 'old'},equal:{loads / 'equal'}", "--output-dir", str(tmp_path / "e")]
    assert execute(equal) == 3


def test_variants_take_turns_and_each_run_has_a_seed(simulated: list[LoadSettings], tmp_path: Path) -> None:
    wanted = plan(LoadTable(rate=300, duration="10s", runs=4), a="slow.py:build", b="fast.py:build")
    found = run_load_comparison(wanted, tmp_path)
    assert found.choice is not None
    assert found.choice.name == "b"
    targets = [each.target for each in simulated]
    assert targets[0:2] == targets[3:1:-1]
    assert sorted(each.seed for each in simulated) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_folders_of_another_origin_are_not_removed(simulated: list[LoadSettings], tmp_path: Path) -> None:
    foreign = tmp_path / "old.2024"
    foreign.mkdir()
    (foreign / "data.txt").write_text("precious")
    load = parse_load("rate=300,duration=10s,runs=2")
    with refused(BenchmarkError, "not_ours", foreign):
        run_load_comparison(plan(load, old="slow.py:build", new="fast.py:build"), tmp_path)
    assert (foreign / "data.txt").read_text() == "precious"
    assert not simulated


def test_an_interrupted_comparison_is_continued(
    simulated: list[LoadSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plan(LoadTable(rate=300, duration=10, runs=3), a="slow.py:build", b="fast.py:build")
    run = comparison_run.run_load

    def interrupted(*words: Any, **more: Any) -> LoadResult:
        if len(simulated) == 3:
            raise KeyboardInterrupt
        return run(*words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(comparison_run, "run_load", interrupted)
        first = run_load_comparison(wanted, tmp_path)
    assert first.interrupted
    # Of the second round only one variant has its run.
    assert [len(each.runs) for each in first.variants] == [1, 1]
    again = run_load_comparison(wanted, tmp_path)
    assert len(simulated) == 6
    assert not again.interrupted
    run_load_comparison(wanted, tmp_path, resume=True)
    assert len(simulated) == 6
    run_load_comparison(wanted, tmp_path)
    assert len(simulated) == 12
    other = plan(LoadTable(rate=200, duration=10, runs=3), a="slow.py:build", b="fast.py:build")
    run_load_comparison(other, tmp_path, resume=True)
    assert len(simulated) == 18


def test_an_interrupt_leaves_out_its_own_round_only(
    simulated: list[LoadSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = LoadTable(rate=300, duration=10, runs=3)
    models = {"a": "slow.py:build", "b": "fast.py:build"}
    run_load_comparison(plan(load, **models), tmp_path)
    run = comparison_run.run_load

    def interrupted(most: int) -> Any:
        def run_one(*words: Any, **more: Any) -> LoadResult:
            if len(simulated) == most:
                raise KeyboardInterrupt
            return run(*words, **more)

        return run_one

    wanted = plan(load, **models, added="slow.py:build")
    counts, notes = [], []
    for most in (6, 7):
        monkeypatch.setattr(comparison_run, "run_load", interrupted(most))
        found = run_load_comparison(wanted, tmp_path, resume=True)
        counts.append([len(each.runs) for each in found.variants])
        notes.append({each.code: each.values for each in found.gate.notes})
        write_comparison(found, ["html"], tmp_path / "report")
        assert any(row.ratio is not None for row in found.rows_of("b"))
        assert any(row.ratio is not None for row in found.rows_of("added")) is (most == 7)
        assert found.verdict_of("added") is GateVerdict.INCONCLUSIVE
    assert counts == [[2, 2, 0], [2, 2, 1]]
    planned = {"planned": 9, "left_out": 2, "unit": "run"}
    assert [each["interrupted"] for each in notes] == [{"runs": 4, **planned}, {"runs": 5, **planned}]
    pairs = {"baseline": "a", "variant": "added", "of_baseline": 2, "unit": "run"}
    assert [each["not_paired"] for each in notes] == [
        {"runs": 0, "pairs": 0, **pairs},
        {"runs": 1, "pairs": 1, **pairs},
    ]


def test_an_interrupt_before_each_variant_has_a_run_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_words: Any, **_more: Any) -> LoadResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison_run, "run_load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_load_comparison(plan(LoadTable(rate=300), a="slow.py:build", b="fast.py:build"), tmp_path)


SUITE = """
name = "suite"
model = "slow.py:build"
[load]
rate = 300
duration = "10s"
runs = 2
slo = "p99<1s"
[[variant]]
name = "base"
[[variant]]
name = "fast"
model = "fast.py:build"
"""


def test_a_suite_has_a_load(simulated: list[LoadSettings], tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text(SUITE, encoding="utf-8")
    found = read_load_suite(path)
    assert found is not None
    assert found.load == LoadTable(rate=300, duration="10s", runs=2, slo="p99<1s")
    assert execute(["suite", str(path), "--output-dir", str(tmp_path / "out")]) in (0, 3)
    assert {each.slo for each in simulated} == {"p99<1s"}
    path.write_text(SUITE.replace("[load]", "[lod]"), encoding="utf-8")
    refused_command(["suite", str(path)], "unknown_key", "lod")
    path.write_text(SUITE.replace("runs = 2", "rums = 2"), encoding="utf-8")
    refused_command(["suite", str(path)], "unknown_key", "runs")
    plain = SUITE[: SUITE.index("[load]")] + SUITE[SUITE.index("[[variant]]") :]
    path.write_text(plain, encoding="utf-8")
    assert read_load_suite(path) is None
    assert [each.name for each in read_suite(path).variants] == ["base", "fast"]


def test_a_load_on_a_command_line() -> None:
    found = parse_load("rate=200, duration=30s,pattern=burst:5x,2s,every=30s,slo=p99<20ms,max-batch=8")
    assert found == LoadTable(
        rate=200, duration="30s", pattern="burst:5x,2s,every=30s", slo="p99<20ms", max_batch=8
    )


def test_what_cannot_be_compared_is_refused(loads: Path, tmp_path: Path) -> None:
    old = f"old:{loads / 'old'}"
    refused_command(["compare", f"{old},m:fast.py:build"], "no_load", "m")
    refused_command(["compare", f"{old},new:{loads / 'new'}", "--launches", "3"], "options_of_calls")
    refused_command(["compare", "a:x.py:f,b:y.py:g", "--load", "rte=3"], "invalid_load", "rte")
    refused_command(["compare", "a:x.py:f,b:y.py:g", "--load", "rate=-3"], "invalid_schedule")
    refused_command(["compare", old, "--output-dir", str(tmp_path)], "one_variant")
    words = ["compare", f"{old},new:{loads / 'new'}", "--output-dir", str(tmp_path)]
    refused_command([*words, "--report", "recommendations"], "unknown_format")
    with refused(BenchmarkError, "unknown_baseline"):
        compare_loads({"old": runs_in(loads / "old")}, "other")
    with refused(BenchmarkError, "no_results"):
        runs_in(tmp_path / "nothing")
