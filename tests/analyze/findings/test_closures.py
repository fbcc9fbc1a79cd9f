# SPDX-License-Identifier: Apache-2.0
"""Optimizers that run the model in their step, by a closure: only what follows it is their update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuprof
from gpuprof.analyze.findings.between_layers import logging
from gpuprof.analyze.findings.optimizer import optimizer
from gpuprof.analyze.findings.record import ProgramRecord
from gpuprof.opened_run import Run
from gpuprof.run.folder import RunFolder
from gpuprof.run.outermost_calls import after_closures

torch = pytest.importorskip("torch")
STEPS = 12
READS = 4000  # of a step: below 0.5% of its time, they are no finding


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Adam trains a model in closures that read values."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    adam = torch.optim.Adam(model.parameters())

    def closure() -> torch.Tensor:
        adam.zero_grad()
        loss = model(torch.ones(32, 64)).square().mean()
        for _ in range(READS):
            loss.item()
        loss.backward()
        return loss

    out = tmp_path_factory.mktemp("closures") / "run.gpuprof"
    adam.step(closure)  # imports what its first step needs
    with gpuprof.profile(model, out=out):
        for _ in range(STEPS):
            adam.step(closure)
    return gpuprof.open(out)


def update_times(run: Run) -> list[int]:
    """Return the nanoseconds of each step of Adam that follow its last node of the backward pass."""
    steps = run.sql(
        "SELECT start_ns, start_ns + duration_ns FROM spans WHERE name = 'Optimizer.step#Adam.step' "
        "ORDER BY start_ns"
    ).fetchall()
    nodes = run.sql("SELECT start_ns, start_ns + duration_ns FROM spans WHERE kind = 'backward'").fetchall()
    return [
        end - max(node_end for node_begin, node_end in nodes if begin <= node_begin and node_end <= end)
        for begin, end in steps
    ]


def test_a_step_has_the_update_as_its_optimizer(run: Run) -> None:
    found = run.sql("SELECT optimizer_ns FROM steps ORDER BY begin_ns").fetchall()
    expected = update_times(run)
    assert len(expected) == STEPS
    # The gradients that the closure releases count, too.
    released = run.sql(
        "SELECT duration_ns FROM spans WHERE name = 'Optimizer.zero_grad#Adam.zero_grad' ORDER BY start_ns"
    ).fetchall()
    assert [each for (each,) in found] == [
        update + zero for update, (zero,) in zip(expected, released, strict=True)
    ]


def test_the_rule_about_optimizers_looks_at_the_updates(run: Run) -> None:
    drafts = optimizer(ProgramRecord(RunFolder(run.path)))
    assert isinstance(drafts, list)
    (draft,) = drafts
    expected = update_times(run)
    assert draft.time.total_ns == sum(expected)
    assert draft.gain.high_ns <= sum(expected)
    figures = {each.code: each.value for each in draft.evidence}
    assert figures["optimizer_time"] == sum(expected)
    operators = run.sql(
        "SELECT count(*) FROM spans AS inner_ JOIN spans AS outer_ ON inner_.parent_id = outer_.span_id "
        "WHERE outer_.name = 'Optimizer.step#Adam.step' AND inner_.name = 'aten::addcdiv_'"
    ).fetchall()
    assert operators == [(STEPS * 4,)]
    assert figures["optimizer_operators"] is not None
    whole = run.sql(
        "SELECT count(*) FROM spans AS inner_ JOIN spans AS outer_ ON inner_.parent_id = outer_.span_id "
        "WHERE outer_.name = 'Optimizer.step#Adam.step' AND inner_.kind = 'operator'"
    ).fetchall()
    # The closure's own operators are left out: those of the loss, and of the values that it reads.
    assert STEPS * 4 < figures["optimizer_operators"] < whole[0][0] - STEPS * 4


def test_values_that_a_closure_reads_are_found(run: Run) -> None:
    drafts = logging(ProgramRecord(RunFolder(run.path)))
    assert isinstance(drafts, list)
    counts = [figure.value for each in drafts for figure in each.evidence if figure.unit == "count"]
    assert STEPS * READS in counts


def record_steps(out: Path, step: Any, model: torch.nn.Module) -> Run:
    step()
    with gpuprof.profile(model, out=out):
        for _ in range(6):
            step()
    return gpuprof.open(out)


def test_work_between_several_closures_is_the_optimizers(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64)
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        return loss

    run = record_steps(tmp_path / "run.gpuprof", lambda: lbfgs.step(closure), model)
    record = ProgramRecord(RunFolder(run.path))
    assert not record.has_closures
    spans = record.spans("Optimizer.step#%", "span")
    assert len(spans) == 6
    assert (record.in_model.covered_ns(spans.begin_ns, spans.end_ns) == spans.end_ns - spans.begin_ns).all()
    assert logging(record) == []


def test_layers_that_a_hook_calls_after_the_update_do_not_end_it(tmp_path: Path) -> None:
    model, probe = torch.nn.Linear(64, 64), torch.nn.Identity()
    adam = torch.optim.Adam(model.parameters())
    adam.register_step_post_hook(lambda *_: probe(torch.ones(1)))

    def step() -> None:
        adam.zero_grad()
        model(torch.ones(8, 64)).square().mean().backward()
        adam.step()

    run = record_steps(tmp_path / "run.gpuprof", step, torch.nn.ModuleList([model, probe]))
    whole = run.sql("SELECT sum(duration_ns) FROM spans WHERE name = 'Optimizer.step#Adam.step'").fetchall()
    (draft,) = optimizer(ProgramRecord(RunFolder(run.path)))
    assert draft.time.total_ns == whole[0][0]


def test_the_update_begins_after_the_backward_pass() -> None:
    begin, end = np.array([0, 100, 200]), np.array([50, 180, 250])
    nodes = np.array([[10, 20], [30, 40], [60, 90], [110, 150]])
    forward = np.array([5, 55, 105, 160])
    assert after_closures(begin, end, forward, *nodes.T).tolist() == [40, 150, 200]
    # A step with two passes: the optimizer works between them.
    assert after_closures(begin, end, np.array([5, 25, 105]), *nodes.T).tolist() == begin.tolist()
    assert after_closures(begin, end, forward, *nodes[:0].T).tolist() == begin.tolist()
