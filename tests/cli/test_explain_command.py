# SPDX-License-Identifier: Apache-2.0
"""`gpuprof explain`: what it prints, also of runs that lack what rules need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_edits import change_meta
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.cli.main import execute

HOSTILE = "<script>alert(1)</script>\x1b[31m'; DROP TABLE spans; --{0}"


def written(path: Path, planted: Planted, **values: object) -> str:
    host = TrainingHost(**{"settings": settings(), **values})  # type: ignore[arg-type]
    return str(train(host, planted).write(path))


def test_findings_are_printed_with_gain_fix_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "r.gpuprof", Planted(collect=20, sleep=9))
    assert execute(["explain", run]) == 0
    printed = capsys.readouterr().out
    numbered = [line for line in printed.splitlines() if line[:1].isdigit()]
    assert len(numbered) == 2
    for label in ("gain", "cost", "evidence", "confidence", "fix", "check", "not found"):
        assert f"\n   {label}" in printed or f"\n{label}" in printed


@pytest.mark.parametrize("command", [["explain"], ["whatif", "--remove", "gc:*"]])
def test_an_incomplete_run_is_called_so_first(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "r.gpuprof", Planted(collect=20))
    assert execute([command[0], run, *command[1:]]) == 0
    assert "incomplete:" not in capsys.readouterr().out
    totals = json.loads((tmp_path / "r.gpuprof" / "meta.json").read_text())["totals"]
    change_meta(tmp_path / "r.gpuprof", complete=False, totals={**totals, "dropped_events": 734_501})
    assert execute([command[0], run, *command[1:]]) == 0
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith(
        "warning this run is incomplete: it contains what could be recovered; lost: 734,501 events dropped"
    )


def test_json_has_each_figure_with_its_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "r.gpuprof", Planted(collect=20))
    assert execute(["explain", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert finding["rule"] == "collections"
    assert finding["gain"]["kind"] == "replayed"
    assert finding["gain"]["run"]["low_ns"] == 12 * 20 * MS
    assert finding["cost_step_ns"] == 20 * MS
    assert all(figure["sql"].startswith("SELECT") for figure in finding["evidence"])
    assert {each["rule"]: each["verdict"] for each in found["rules"]}["loader"] == "not_found"
    assert "score" not in found


def test_a_comparison_prints_the_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = written(tmp_path / "old.gpuprof", Planted(collect=20))
    new = written(tmp_path / "new.gpuprof", Planted())
    assert execute(["explain", new, "--against", old, "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert [each["outcome"] for each in score["promises"]] == ["hit"]
    assert execute(["explain", new, "--against", old]) == 0
    printed = capsys.readouterr().out
    assert "predicted" in printed
    assert "score.json" in printed


def test_the_summary_begins_with_the_largest_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "r.gpuprof", Planted(collect=20, sleep=9, log=12, values=50, load=40))
    assert execute(["summary", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = [
        line.split()[0] for line in lines if line.startswith(("finding ", "evidence ", "fix ", "check "))
    ]
    assert labels == ["finding", "evidence", "fix", "finding", "finding", "check"]
    assert execute(["explain", run, "--json"]) == 0
    largest, *_ = json.loads(capsys.readouterr().out)["findings"]
    printed = " ".join(" ".join(lines).split())
    assert f" fix {' '.join(largest['fix'].split())} finding " in printed
    assert f" check gpuprof explain NEW --against {run} run " in printed


def test_names_of_the_run_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = TrainingHost(settings=settings(dataset=HOSTILE))
    for _ in range(12):
        with host.step():
            with host.span("model", "layer"):
                host.work(10 * MS)
            with host.span(HOSTILE), host.function(f"{HOSTILE} (train.py:1)"):
                host.operator("aten::item", MS)
                host.work(8 * MS)
            with host.function(f"poll{HOSTILE} (train.py:2)"):
                host.sleep(5 * MS)
    run = str(host.write(tmp_path / "r.gpuprof"))
    assert execute(["explain", run]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert len([line for line in printed.splitlines() if line[:1].isdigit()]) == 2
    for finding in gpuprof.open(run).findings():
        for figure in finding.evidence:
            assert gpuprof.open(run).sql(figure.sql).fetchall()


def test_a_run_without_steps_shows_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof"):
        sum(range(1000))
    assert execute(["explain", str(tmp_path / "r.gpuprof")]) == 0
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize("steps", [1, 2])
def test_few_steps_are_enough(steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = train(TrainingHost(settings=settings()), Planted(collect=20), steps)
    assert execute(["explain", str(host.write(tmp_path / "r.gpuprof"))]) == 0
    assert "\n1  " in "\n" + capsys.readouterr().out


def test_an_incomplete_run_lowers_the_confidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "r.gpuprof", Planted(collect=20))
    change_meta(Path(run), complete=False)
    assert execute(["explain", run, "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["confidence"] == pytest.approx(0.45)
    assert finding["factors"]["incomplete"] == 0.5


def test_a_run_of_format_1_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "r.gpuprof", Planted(collect=20))
    meta = json.loads((Path(run) / "meta.json").read_text(encoding="utf-8"))
    for key in ("settings", "sources"):
        meta.pop(key)
    (Path(run) / "meta.json").write_text(json.dumps({**meta, "format_version": 1}), encoding="utf-8")
    assert execute(["explain", run]) == 0
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["missing.gpuprof"], []])
def test_bad_usage_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", *arguments]) == 2
    assert capsys.readouterr().out == ""
