# SPDX-License-Identifier: Apache-2.0
"""Findings of a training that is recorded here: its settings, collections and operators reach the rules."""

# mypy: allow-subclassing-any

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import gpuprof
from gpuprof.analyze.findings.finding import GainKind, Rule, Verdict
from gpuprof.analyze.findings.loading import loader
from gpuprof.analyze.findings.moved_bytes import fp32_norms
from gpuprof.analyze.findings.record import ProgramRecord
from gpuprof.record import stack_sampler
from gpuprof.run.folder import RunFolder


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


@pytest.mark.slow
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


class Computed(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that need some milliseconds of Python code."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(sum(number % 7 for number in range(400_000)) % 5))


@pytest.mark.skipif(stack_sampler.why_not() is not None, reason="the sampler does not work here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_function_of_a_recorded_worker_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    with gpuprof.profile(model, python=True, out=tmp_path / "r.gpuprof") as recording:
        for batch in DataLoader(Computed(), num_workers=1):
            model(batch).sum().backward()
            optimizer.step()
    (draft,) = loader(ProgramRecord(RunFolder(recording.run.path)))
    line = Computed.__getitem__.__code__.co_firstlineno
    assert draft.values["fetch_function"].endswith(f"test_recorded_findings.py:{line})")
    assert draft.values["fetch_function"] == draft.values["item"]
    assert 0.5 < draft.values["fetch_fraction"] <= 1
    assert draft.values["busy"] >= draft.values["fetch_fraction"]
    begin = test_the_function_of_a_recorded_worker_is_named.__code__.co_firstlineno
    assert begin < draft.values["iterated_line"] < begin + 10


class Fp32Norm(torch.nn.LayerNorm):
    """Calculates in fp32."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the normalized values in the type of the input."""
        return super().forward(values.float()).to(values.dtype)


def test_normalization_in_fp32_has_the_time_of_both_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuprof.analyze.ceilings.of_run.add_ceilings", lambda *_: None)  # takes seconds
    model = torch.nn.Sequential(Fp32Norm(64), torch.nn.Linear(64, 64, dtype=torch.bfloat16))
    with gpuprof.profile(model, work=True, out=tmp_path / "r.gpuprof") as recording:
        for _ in range(4):
            model(torch.ones(8, 64, dtype=torch.bfloat16)).float().sum().backward()
    (draft,) = fp32_norms(ProgramRecord(RunFolder(recording.run.path)))
    assert (draft.values["type"], draft.values["layers"], draft.values["dtype"]) == (
        "Fp32Norm",
        1,
        "bfloat16",
    )
    nodes = "name = '0' OR regexp_matches(name, '(NativeLayerNormBackward0|ToCopyBackward0|AccumulateGrad)$')"
    query = f"SELECT sum(duration_ns) FROM spans WHERE kind IN ('layer', 'backward') AND ({nodes})"
    ((most,),) = recording.run.sql(query).fetchall()
    ((forward,),) = recording.run.sql("SELECT sum(duration_ns) FROM spans WHERE name = '0'").fetchall()
    assert forward < draft.time.total_ns <= most
    # Of 20 bytes an element (a cast, the normalization and a cast back), 4 remain.
    assert 0.15 < draft.values["remaining"] < 0.25
    assert draft.gain.high_ns == draft.time.total_ns * (1 - draft.values["remaining"])
