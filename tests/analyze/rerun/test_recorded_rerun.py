# SPDX-License-Identifier: Apache-2.0
"""A re-run of a recorded training, in its own process: what it reports, not how fast it is."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from click.testing import CliRunner

import gpuprof
from gpuprof.analyze.findings.finding import GainKind, RerunProblem, Rule, Verdict
from gpuprof.cli.explain import explain


def test_a_recorded_optimizer_is_measured_again(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(30)))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    with gpuprof.profile(model, out=tmp_path / "r.gpuprof"):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
    threads = torch.get_num_threads()
    result = CliRunner().invoke(explain, [str(tmp_path / "r.gpuprof"), "--rerun", "--json"])
    assert result.exit_code == 0, result.output
    assert torch.get_num_threads() == threads
    report = json.loads(result.stdout)
    found = [each for each in report["findings"] if each["rule"] == Rule.OPTIMIZER]
    if not found:  # on a busy machine the gain may not be significant
        (outcome,) = [each for each in report["rules"] if each["rule"] == Rule.OPTIMIZER]
        assert outcome["verdict"] == Verdict.NOT_SIGNIFICANT
        return
    (finding,) = found
    rerun = finding["rerun"]
    if rerun["problem"] is None:
        assert finding["gain"]["kind"] == GainKind.RERUN
        assert finding["gain"]["step"]["low_ns"] <= finding["gain"]["step"]["high_ns"]
        assert rerun["pairs"] >= 6
    else:
        assert rerun["problem"] in (RerunProblem.INCONCLUSIVE, RerunProblem.DEADLINE)
    assert rerun["pairs"] > 0
