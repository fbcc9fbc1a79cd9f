# SPDX-License-Identifier: Apache-2.0
"""`gpuprof summary`: its facts, its table, and why one is empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, FakeRun, make_tree
from refusals import refused_command
from run_edits import change_meta

import gpuprof
from gpuprof.analyze.summary import summarize
from gpuprof.cli.header import outline
from gpuprof.cli.main import execute
from gpuprof.record.facts import Method, NoteCode, Reason, SourceStatus, note
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.losses import Loss, LossCode, losses
from gpuprof.run.messages import loss_text, reason_text


@pytest.mark.texts
def test_summary_prints_facts_and_a_table(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["summary", "demo.gpuprof"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "run       demo.gpuprof (complete)",
        "recorded  4.21 s wall time, 10,000 spans",
        "machine   AMD EPYC, 4 cores, 25.3 GB memory, Linux 6.18",
        "versions  gpuprof 0.1.0, python 3.11.7",
        "sources   spans, layers; no operators (torch was never imported)",
        "lost      no events",
        "",
        "layer              calls    total     self  self %     mean",
    ]
    assert lines[8].startswith("layer 火 number 1")


@pytest.mark.texts
def test_summary_reports_what_is_lost_and_cannot_be_tricked_by_it(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.recorded.meta |= {
        "complete": False,
        "totals": {"spans": 1, "dropped_events": 1_200, "damaged_events": 3, "unfinished_spans": 2},
        "damage": [Damage(DamageCode.SEGMENT_CUT_SHORT, "1-2.0\x1b[2J.segment", 9).to_plain()],
        "notes": [note(NoteCode.DISK_FAILED, error="no\nroom").to_plain()],
        "processes": [{"process_id": 42}, {"process_id": 43}],
    }
    assert execute(["summary", "r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run       demo.gpuprof (incomplete: contains what could be recovered)"
    assert lines[1] == "recorded  4.21 s wall time, 1 span, 2 processes"
    assert lines[5:8] == [
        "lost      1,200 events dropped, 3 events damaged, 2 spans cut off at the end, events of 1 damaged",
        "          segment",
        "damage    1-2.0\\x1b[2J.segment: cut short, 9 places for events are missing",
    ]
    assert "note      the disk failed while recording (no\\nroom): events are missing" in lines


def test_a_process_in_parts_is_counted_once(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.meta |= {"processes": [{"process_id": 42}, {"process_id": 43}, {"process_id": 42}]}
    assert execute(["summary", "r"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(", 2 processes")
    api.recorded.meta |= {"processes": [{"process_id": 42}] * 3}
    assert execute(["summary", "r"]) == 0
    assert "process" not in capsys.readouterr().out.splitlines()[1]


SEGMENT, NAMES = "r/segments/1-2.0.segment", "r/segments/1-2.names"


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ([Damage(DamageCode.SEGMENT_HEADER, SEGMENT)], [Loss(LossCode.DAMAGED_SEGMENTS, 1)]),
        (
            [Damage(DamageCode.CLOCK_POINT, SEGMENT), Damage(DamageCode.SEGMENT_CUT_SHORT, SEGMENT, 9)],
            [Loss(LossCode.DAMAGED_SEGMENTS, 1)],
        ),
        ([Damage(DamageCode.CLOCK_POINT, SEGMENT)], []),
        ([Damage(DamageCode.SEGMENT_COPY, SEGMENT)], []),
        (
            [Damage(DamageCode.UNREADABLE, NAMES, values={"error": "no such file"})],
            [Loss(LossCode.DAMAGED_NAMES, 1)],
        ),
        (
            [
                Damage(DamageCode.NAMES_CUT, NAMES, 3),
                Damage(DamageCode.SEGMENT_CUT_SHORT, SEGMENT, 1),
                Damage(DamageCode.NAMES_NO_FILE, "r/9.names"),
            ],
            [Loss(LossCode.DAMAGED_SEGMENTS, 1), Loss(LossCode.DAMAGED_NAMES, 2)],
        ),
        (
            [Damage(DamageCode.SEGMENTS_MISSING, None, 2, {"process_id": 7})],
            [Loss(LossCode.MISSING_SEGMENTS, 2)],
        ),
    ],
)
def test_summary_reports_what_damaged_files_cost(
    api: FakeApi, capsys: pytest.CaptureFixture[str], damage: list[Damage], lost: list[Loss]
) -> None:
    api.recorded.meta |= {"complete": False, "damage": [each.to_plain() for each in damage]}
    assert execute(["summary", "r"]) == 0
    expected = ", ".join(map(loss_text, lost)) or "unknown"
    assert f"\nlost      {expected}" in capsys.readouterr().out


def test_the_line_of_a_written_run_has_what_was_lost() -> None:
    meta = {"complete": False, "duration_ns": 5_000_000, "totals": {"spans": 7, "dropped_events": 1_200}}
    (lost,) = losses(meta)
    assert outline(meta) == f"5.00 ms, 7 spans, incomplete: {loss_text(lost)}"
    assert outline({**meta, "totals": {"spans": 7}}) == "5.00 ms, 7 spans, incomplete"
    assert outline({**meta, "complete": True, "totals": {"spans": 7}}) == "5.00 ms, 7 spans"


def test_summary_of_a_run_without_facts(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.meta = {}
    assert execute(["summary", "r"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "run       demo.gpuprof (incomplete: contains what could be recovered)",
        "recorded  -",
        "",
    ]


@pytest.mark.parametrize(
    ("kinds", "by"),
    [
        (("python", "operator", "span"), "operator"),
        (("kernel", "span", "python"), "span"),
        (("nvtx",), "span"),
        (("kernel", "python"), "python"),
        (("kernel",), "kernel"),
    ],
)
def test_the_default_falls_back_with_a_note(
    api: FakeApi, capsys: pytest.CaptureFixture[str], kinds: tuple[str, ...], by: str
) -> None:
    api.recorded = FakeRun(Path("r.gpuprof"), *kinds)
    assert execute(["summary", "r.gpuprof"]) == 0
    assert f"note: no layer was recorded here, so this is the table by {by}" in capsys.readouterr().out
    assert execute(["summary", "r.gpuprof", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["by"] == by


def test_the_fallback_names_the_processes_that_have_layers(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree("span", "process", "layer")
    tree.parent[2:] = [-1, 2]
    tree.process_id[2:] = 43
    api.recorded.call_tree = tree
    assert execute(["summary", "r.gpuprof", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["summary"]["notes"]
    assert first == ("no layer was recorded in process 42, but in another (43), so this is the table by span")
    assert any("--process takes an id or all" in note for note in others)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (SourceStatus.on(Method.FRAMES), "no sample has a function of the program"),
        (SourceStatus.off(Reason.NOT_WANTED), None),
    ],
)
def test_a_table_without_python_functions_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: SourceStatus, reason: str | None
) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof") as profile:
        pass
    run = profile.run
    change_meta(run.path, sources={**run.meta["sources"], "python": status.to_plain()})
    assert execute(["summary", str(run.path), "--by", "python"]) == 0
    expected = f"note: no Python function was recorded here: {reason or reason_text(status)}"
    assert expected in capsys.readouterr().out


def test_an_empty_run_and_an_empty_table_have_a_reason(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.recorded = FakeRun(Path("r.gpuprof"))
    assert execute(["summary", "r.gpuprof"]) == 0
    assert "note: no layer was recorded here: layers come from" in capsys.readouterr().out
    api.recorded = FakeRun(Path("r.gpuprof"), "operator")
    assert execute(["summary", "r.gpuprof", "--by", "layer"]) == 0
    output = capsys.readouterr().out
    assert "note: no layer was recorded here: layers come from" in output
    assert "operator 火" not in output
    assert execute(["summary", "r.gpuprof", "--by", "kernel"]) == 0
    assert "no GPU work was recorded" in capsys.readouterr().out


def test_summary_as_json_is_json_alone(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.meta = {"complete": True}
    assert execute(["summary", "r", "--json", "--by", "span", "--process", "42"]) == 0
    output = capsys.readouterr()
    values = json.loads(output.out)
    assert output.err == ""
    assert values["run"] == str(api.recorded.path)
    assert values["meta"] == {"complete": True}
    assert values["summary"] == summarize(api.recorded.call_tree, "span", 42).to_dict()


def test_top_cuts_the_table_and_the_json(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded = FakeRun(Path("r.gpuprof"), *["layer"] * 40)
    execute(["summary", "r", "--top", "5"])
    output = capsys.readouterr().out
    assert output.count("layer 火 number") == 5
    assert "... and 35 more" in output
    execute(["summary", "r"])
    assert capsys.readouterr().out.count("layer 火 number") == 30
    execute(["summary", "r", "--top", "5", "--json"])
    values = json.loads(capsys.readouterr().out)["summary"]
    assert (len(values["rows"]), values["row_count"]) == (5, 40)


@pytest.mark.usefixtures("api")
def test_an_unknown_process_is_refused() -> None:
    refused_command(["summary", "r", "--process", "7"], "unknown_process", 7, 42)
    assert execute(["summary", "r", "--process", "all"]) == 0


def test_a_terminal_without_the_names_letters_shows_them_escaped(
    run_python: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import gpuprof
from fake_api import FakeApi, FakeRun
from pathlib import Path
sys.modules["gpuprof.api"] = gpuprof.api = FakeApi(FakeRun(Path("r"), "layer"))
from gpuprof.cli.main import execute
sys.exit(execute(["summary", "r"]))
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "layer \\u706b number 0" in done.stdout
