# SPDX-License-Identifier: Apache-2.0
"""Facts of benchmarks: each code has one message, and no decision depends on a text."""

from __future__ import annotations

import ast
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparisons import comparison_of, runs

import gpuprof.bench
from gpuprof.bench.compare.document import ComparisonDocument, document_from, plain_document
from gpuprof.bench.compare.figures import MoreFigures, document_of
from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.messages import MESSAGES
from gpuprof.bench.report.console import document_text
from gpuprof.record.facts import Severity
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.messages import Messages

ROOT = Path(gpuprof.bench.__file__).parent
AT = datetime.datetime(2026, 2, 3, 12, tzinfo=datetime.timezone.utc)


def made_codes() -> Iterator[str]:
    """The codes of all facts that the package makes with a literal; `load` makes some for the gate."""
    for path in (*ROOT.rglob("*.py"), ROOT.parent / "load" / "gate_side.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
            if is_call and node.func.id in ("note", "warning", "error", "Diagnostic"):  # type: ignore[attr-defined]
                for each in ast.walk(node.args[0]):  # type: ignore[attr-defined]
                    if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value:
                        yield each.value


def test_every_code_has_a_message_and_every_message_a_code() -> None:
    of_verdicts = {"gate_worse", "gate_better", "gate_crosses", "gate_one_run"}
    of_verdicts |= {f"concluded_{verdict}" for verdict in ("faster", "slower", "same", "open")}
    assert set(made_codes()) | of_verdicts == MESSAGES.codes


@pytest.mark.texts
def test_values_are_shown_with_their_units() -> None:
    speedup = {"low": 1.2, "value": 1.3, "high": 1.4}
    found = note("is_slower", speedup=Estimate(1.2, 1.3, 1.4))
    assert found.values["speedup"] == speedup
    assert str(found) == "it is 1.30x (1.20 to 1.40) as fast as the baseline"
    assert "1.50 ms" in str(warning("bimodal", first_s=0.0015, second_s=0.003))
    assert str(note("keep_baseline", variant="old", reason=note("none_faster"))) == (
        "Keep old: no other variant is faster"
    )


def test_a_code_of_a_later_version_shows_its_values() -> None:
    assert str(Diagnostic("of_tomorrow", Severity.NOTE, {"level": 5})) == "of_tomorrow, level 5"


@pytest.mark.texts
def test_braces_in_names_are_text() -> None:
    assert str(note("take", variant="{0.__class__}")) == "take {0.__class__}"


def decided(document: ComparisonDocument) -> Any:
    """What a document decides, without any text."""
    steps = [(each.action.code, each.reason and each.reason.code) for each in document.recommendations]
    codes = [each.code for each in document.notes]
    verdicts = [each.verdict for each in document.variants]
    return document.summary.choice, document.summary.headline.code, steps, codes, verdicts


def test_reworded_messages_change_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "old": {1: runs(10.0, 1), 8: runs(40.0, 2)},
        "new": {1: runs(6.0, 3), 8: runs(24.0, 4)},
        "broken": "the factory raised ValueError",
    }
    extra = MoreFigures(accuracy={"new": note("accuracy_not_requested")})
    before = document_of(comparison_of(given), AT, extra)
    assert before.summary.choice == "new"
    monkeypatch.setattr(Messages, "text", lambda _messages, code, _values: f"<{code}>")
    after = document_of(comparison_of(given), AT, extra)
    assert decided(after) == decided(before)
    assert "<take_variant>" in document_text(after)
    again = document_from(json.loads(json.dumps(plain_document(after))))
    assert decided(again) == decided(before)
