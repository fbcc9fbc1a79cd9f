# SPDX-License-Identifier: Apache-2.0
"""Findings of a training that is recorded here: its settings, collections and operators reach the rules."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

import gpuprof
from gpuprof.analyze.findings.finding import GainKind, Rule, Verdict


def train(folder: Path, *, collects: bool, fused: bool) -> gpuprof.Run:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    kept = [{number: [number]} for number in range(200_000)] if collects else []
    with gpuprof.profile(model, python=True, out=folder / "r.gpuprof") as recording:
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            if collects:
                gc.collect()
    assert len(kept) == 200_000 * collects
    return recording.run


def test_a_collection_in_each_step_is_found_in_a_recorded_program(tmp_path: Path) -> None:
    """It takes far more than 40% of a step."""
    run = train(tmp_path, collects=True, fused=True)
    found = run.findings()
    (finding,) = [each for each in found if each.rule is Rule.COLLECTIONS]
    assert finding.values["in_each_step"]
    assert finding.gain.kind is GainKind.REPLAYED
    names = dict(run.sql("SELECT node_id, kind || name FROM call_tree").fetchall())
    assert {names[node] for node in finding.places.nodes} == {"gcgeneration 2"}
    assert 0 < finding.gain.run.low_ns <= finding.gain.run.high_ns <= found.wall_ns


def test_the_settings_of_a_recorded_program_reach_the_rules(tmp_path: Path) -> None:
    found = train(tmp_path, collects=False, fused=True).findings()
    verdicts = {each.rule: each.verdict for each in found.results}
    assert verdicts[Rule.OPTIMIZER] is Verdict.NOT_FOUND
    assert verdicts[Rule.THREADS] is not Verdict.UNKNOWN


def test_the_loop_of_a_recorded_optimizer_is_not_overlooked(tmp_path: Path) -> None:
    found = train(tmp_path, collects=False, fused=False).findings()
    verdicts = {each.rule: each.verdict for each in found.results}
    assert verdicts[Rule.OPTIMIZER] in (Verdict.FOUND, Verdict.NOT_SIGNIFICANT)
