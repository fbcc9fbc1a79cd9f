# SPDX-License-Identifier: Apache-2.0
"""Programs whose operators all have their work: training with a smaller last batch, and generation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import gpt2
import pytest

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import torch
from roofline_rows import know_ceilings

from gpuprof.analyze.roofline.evidence import NoLabel
from gpuprof.analyze.roofline.rows import RooflineData, RooflineRow

LAYERS, WIDTH, HEADS, VOCABULARY = 2, 64, 4, 128


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    know_ceilings(monkeypatch)


def flops_by_calls(rows: Iterable[RooflineRow], operator: str, layer: str = "") -> dict[int, int]:
    """Return the calls of an operator by their FLOPs."""
    found: dict[int, int] = {}
    for row in rows:
        if row.operator == operator and row.phase != "backward" and (not layer or row.layer == layer):
            found[row.flops or 0] = found.get(row.flops or 0, 0) + row.calls
    return found


def reasons(roofline: RooflineData) -> set[NoLabel]:
    """Return why operators have no label, those around counted ones left out."""
    return {row.reason for row in roofline.unmatched} - {NoLabel.CONTAINS_COUNTED}


def test_training_with_a_smaller_last_batch(tmp_path: Path) -> None:
    model, tokens = gpt2.GPT2(LAYERS, WIDTH, HEADS, VOCABULARY), 16
    with gpuprof.profile(model, out=tmp_path / "r", work=True) as recording:
        gpt2.train(model, [4, 4, 4, 4, 3], tokens)
    roofline = recording.run.roofline()
    assert reasons(roofline) <= {NoLabel.ORDER_DIFFERS, NoLabel.BACKWARD_NOT_COUNTED}
    rest = [row for row in roofline.unmatched if row.reason != NoLabel.CONTAINS_COUNTED]
    # Of their number, since the time of a few short operators depends on other work on the machine.
    assert sum(row.calls for row in rest) < 0.02 * sum(row.calls for row in roofline.operators)
    # The head of the last batch: a product of 3 x 16 rows.
    head = 2 * tokens * WIDTH * VOCABULARY
    assert flops_by_calls(roofline.operators, "aten::mm", "lm_head") == {4 * head: 4}
    assert flops_by_calls(roofline.operators, "aten::linear", "lm_head") == {3 * head: 1}
    # Single-tensor AdamW on a CPU: the moments of all parameters, each step.
    number = sum(parameter.numel() for parameter in model.parameters())
    steps = [row for row in roofline.operators if row.operator == "aten::lerp_" and row.phase == "optimizer"]
    assert sum((row.flops or 0) * row.calls for row in steps) == pytest.approx(5 * 3 * number, rel=1e-3)
    assert sum((row.bytes or 0) * row.calls for row in steps) == pytest.approx(5 * 12 * number, rel=1e-3)


def test_a_prefill_and_its_decode_steps(tmp_path: Path) -> None:
    model, batch, prompt, count = gpt2.GPT2(LAYERS, WIDTH, HEADS, VOCABULARY), 2, 8, 30
    with gpuprof.profile(model, out=tmp_path / "r", work=True) as recording:
        gpt2.generate(model, batch, prompt, count)
    run = recording.run
    roofline = run.roofline()
    assert not reasons(roofline)
    # Attention of one token to all before it, two products; most steps had no window.
    attention = [
        row for row in roofline.operators if "attention" in (row.operator or "") and row.layer == "h.0"
    ]
    steps = sum(2 * 2 * batch * WIDTH * (prompt + step) for step in range(1, count))
    first = 2 * 2 * batch * WIDTH * prompt * (prompt + 1) // 2  # causal
    total = sum((row.flops or 0) * row.calls for row in attention)
    assert total == pytest.approx(first + steps, rel=1e-3)
    windows = run.meta["work"]["trace"]["windows"]
    assert len(windows) < count / 2
    assert sum(row.calls for row in attention) == count
    # The products of one token are the same in all steps.
    found = flops_by_calls(roofline.operators, "aten::linear", "h.0.c_fc")
    assert found == {2 * batch * WIDTH * 4 * WIDTH: count - 1}


def test_views_are_labeled_with_no_work(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    with gpuprof.profile(model, out=tmp_path / "r", work=True) as recording:
        for _ in range(3):
            model(torch.ones(2, 4)).t().view(4, 2)
    views = [row for row in recording.run.roofline().operators if row.operator in ("aten::t", "aten::view")]
    assert {row.operator for row in views if row.layer == ""} == {"aten::t", "aten::view"}
    assert {(row.flops, row.bytes, row.exactness) for row in views} == {(0, 0, "exact")}
