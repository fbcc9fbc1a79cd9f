# SPDX-License-Identifier: Apache-2.0
"""The gate on the JSON of comparisons, which have accuracies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_documents import document

from gpuprof.bench.compare.document import document_from, plain_document
from gpuprof.bench.gate.comparison_file import read_gate_file
from gpuprof.bench.gate.gate import judge
from gpuprof.bench.gate.result import Thresholds
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.cli.main import execute
from gpuprof.stats.ratio_test import proportion_ratio


def write(path: Path, change: float = 0.0, samples: int = 10_000, **batch: Any) -> Path:
    plain = json.loads(json.dumps(plain_document(document_from(document(("original", "int8"), (1, 8))))))
    for variant in plain["variants"]:
        for each in variant["batches"]:
            each |= batch
        variant["accuracy"]["samples"] = samples
    accuracy = plain["variants"][1]["accuracy"]
    accuracy["accuracy"] += change
    path.write_text(json.dumps(plain), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "samples", "verdict", "code"),
    [
        (0.0, 200_000, "same", 0),
        (-0.05, 10_000, "worse", 1),
        (0.05, 200_000, "better", 0),
        (0.0, 300, "inconclusive", 3),
    ],
)
def test_a_lower_accuracy_fails(tmp_path: Path, change: float, samples: int, verdict: str, code: int) -> None:
    old = write(tmp_path / "old.json", samples=samples)
    new = write(tmp_path / "new.json", change, samples)
    limits = Thresholds(metrics=(RunMetric.ACCURACY,))
    rows = judge(read_gate_file(old), read_gate_file(new), limits).rows
    assert [row.configuration.model for row in rows] == ["original", "int8"]
    assert rows[1].verdict == verdict
    assert rows[1].baseline is not None
    assert rows[1].candidate is not None
    assert rows[1].ratio == pytest.approx(rows[1].baseline / rows[1].candidate)
    command = ["gate", "--baseline", str(old), "--candidate", str(new), "--metric", "accuracy"]
    assert execute(command) == code


def test_times_of_comparisons_are_judged_too(tmp_path: Path) -> None:
    old = write(tmp_path / "old.json", samples=200_000)
    slower = [0.02 * (1 + 0.001 * run) for run in range(10)]
    new = write(tmp_path / "new.json", samples=200_000, launch_medians_s=slower)
    found = judge(read_gate_file(old), read_gate_file(new))
    assert found.by_metric[RunMetric.P50] == "worse"
    assert execute(["gate", "--baseline", str(old), "--candidate", str(new)]) == 1


def test_the_interval_of_a_ratio_of_accuracies_covers() -> None:
    generator = np.random.default_rng(81)
    wrong = 0
    for _ in range(1_000):
        old, new = (int(generator.binomial(2_000, 0.76)) / 2_000 for _ in range(2))
        wrong += proportion_ratio((old, 2_000), (new, 2_000)).p_value <= 0.05
    assert 30 <= wrong <= 70
