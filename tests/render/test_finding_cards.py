# SPDX-License-Identifier: Apache-2.0
"""The cards of findings: what is on them, that nothing of a run gets out, and where they lead to."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from run_edits import change_meta
from simulated_training import Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.finding import Finding
from gpuprof.analyze.findings.text import evidence_figures, gain_basis, repair
from gpuprof.render import findings as finding_cards

HOSTILE = "</li></ol><script>alert(1)</script><img src=x onerror=alert(2)>"
CAUSES = Planted(load=20, collect=20, log=12, values=50, sleep=9, is_fused=False)


def recorded(folder: Path, planted: Planted, **values: Any) -> gpuprof.Run:
    host = TrainingHost(settings=settings(**({"fused": False} | values)))
    return gpuprof.open(train(host, planted).write(folder / "r.gpuprof"))


def page_of(run: gpuprof.Run) -> str:
    return run.flamegraph(run.path.parent / "page.html").read_text("utf-8")


class Section(HTMLParser):
    """The text of the section of findings, by the class or the name of the innermost element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self._open: list[str] = []
        found = re.search(r'<section class="findings".*?</section>', page, re.DOTALL)
        self.feed(found[0] if found else "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(dict(attrs).get("class") or tag)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1], []).append(data)


def targets(page: str) -> list[Any]:
    (head,) = re.findall(r'<script type="application/json" id="head">(.*?)</script>', page, re.DOTALL)
    found: list[Any] = json.loads(head)["findings"]
    return found


def test_a_card_has_gain_kind_confidence_fix_and_check(tmp_path: Path) -> None:
    run = recorded(tmp_path, Planted(collect=20))
    section = Section(page_of(run))
    assert section.tags.count("h3") == 1
    assert section.texts["b"] == ["16.0 ms to 20.0 ms of the mean step (32.0% to 40.0%)"]
    (finding,) = run.findings()
    assert (section.texts["span"], round(finding.confidence, 2)) == ([gain_basis(finding)], 0.9)
    assert section.texts["evidence"] == [f"evidence: {evidence_figures(finding)}"]
    assert repair(finding) in "".join(section.texts["code"])
    assert f"gpuprof explain NEW --against {run.path}" in section.texts["code"]


def test_the_first_cards_are_open_and_the_others_are_folded(tmp_path: Path) -> None:
    run = recorded(tmp_path, CAUSES)
    section = Section(page_of(run))
    assert len(run.findings()) == section.tags.count("h3") == 5
    assert section.tags.index("details") > [i for i, tag in enumerate(section.tags) if tag == "h3"][2]
    assert section.texts["summary"][0] == "2 more findings"


def test_cards_lead_to_cells_and_times_of_their_cause(tmp_path: Path) -> None:
    run = recorded(tmp_path, CAUSES)
    found = {
        each.rule.value: target for each, target in zip(run.findings(), targets(page_of(run)), strict=True)
    }
    names = {row[0]: row[1] for row in run.sql("SELECT node_id, name FROM call_tree").fetchall()}
    for rule, name in (("collections", "generation 2"), ("optimizer", "Optimizer.step#AdamW.step")):
        cell, (begin, end) = found[rule]
        assert names[cell] == name
        spans = run.sql(
            f"SELECT start_ns, start_ns + duration_ns FROM spans WHERE name = '{name}'"
        ).fetchall()
        assert (begin, end) in spans
    cell, (begin, end) = found["waiting"]
    assert cell == -1  # its function is in no cell of this run
    assert end - begin == 9_000_000


def test_a_run_without_a_cause_has_one_line(tmp_path: Path) -> None:
    section = Section(page_of(recorded(tmp_path, Planted(), fused=True)))
    assert "h3" not in section.tags
    assert section.tags.count("details") == 1
    assert re.search(r"\d+ not present", section.texts["summary"][0])


def test_rules_without_data_are_counted_as_unknown(tmp_path: Path) -> None:
    host = TrainingHost(sources=("operators", "kernels"))
    run = gpuprof.open(train(host, Planted()).write(tmp_path / "r.gpuprof"))
    change_meta(run.path, sources={})
    section = Section(page_of(gpuprof.open(run.path)))
    assert "not checked" in section.texts["summary"][0]
    assert section.texts["dt"][-1] == "not checked"


def test_hostile_text_adds_no_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, Planted(collect=20))
    plain = Section(page_of(run))
    monkeypatch.setattr(finding_cards, "place_text", lambda finding: HOSTILE)
    monkeypatch.setattr(finding_cards, "title_with_rank", lambda finding, rank: HOSTILE)
    monkeypatch.setattr(finding_cards, "repair", lambda finding: HOSTILE)
    hostile = Section(page_of(run))
    assert sorted(hostile.tags) == sorted([*plain.tags, "p"])  # a line for the place
    assert (hostile.texts["button"][0], hostile.texts["place"]) == (HOSTILE, [f"where: {HOSTILE}"])


def test_an_imported_run_has_no_cards(tmp_path: Path) -> None:
    run = recorded(tmp_path, Planted(collect=20))
    change_meta(run.path, imported={"source": "test"})
    assert Section(page_of(gpuprof.open(run.path))).tags == []


def test_a_large_run_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, Planted(collect=20))
    monkeypatch.setattr(finding_cards, "is_searched", lambda meta: False)

    def refuse(folder: object) -> list[Finding]:
        raise AssertionError

    monkeypatch.setattr(finding_cards, "find", refuse)
    section = Section(page_of(run))
    assert section.texts["code"] == [f"gpuprof explain {run.path}"]
