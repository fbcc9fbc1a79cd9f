# SPDX-License-Identifier: Apache-2.0
"""GPU: ceilings are plausible, and the cases whose label is known beforehand have it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpuprof.analyze.ceilings.cache import load_gpu_ceilings
from gpuprof.analyze.ceilings.gpu import theoretical_ceilings

ROOT = Path(__file__).resolve().parents[2]


def test_ceilings_are_plausible(cuda: str) -> None:
    found, notes = load_gpu_ceilings(refresh=True)
    assert found, notes
    for gpu in found:
        rows = {(row.resource, row.dtype): row for row in gpu.ceilings.rows}
        theory = {row.dtype: row.value for row in theoretical_ceilings(gpu.device, gpu.ceilings.machine)}
        assert 0.5 <= rows["memory.dram", None].value / theory[None] <= 1.05
        assert rows["memory.l2", None].value > rows["memory.dram", None].value
        if ("compute.matmul", "bf16") in rows and "bf16" in theory:
            assert 0.4 <= rows["compute.matmul", "bf16"].value / theory["bf16"] <= 1.05
        assert 200 < rows["launch", None].value < 20_000
        assert rows["launch.period", None].value >= 0.9 * rows["launch", None].value


def test_cases_have_their_labels(cuda: str) -> None:
    words = ["benchmarks/roofline_cases.py", "--device", "cuda", "--json", "--no-agreement"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode in (0, 1, 3), done.stderr[-3000:]
    cases = json.loads(done.stdout)["cases"]
    wrong = {case["name"]: case for case in cases if case["passed"] is False}
    assert not wrong
