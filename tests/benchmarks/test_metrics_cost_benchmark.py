# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the text of metrics runs in short, and has all figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "metrics_cost.py"


@pytest.mark.needs("prometheus_client")
def test_all_figures() -> None:
    words = [sys.executable, str(SCRIPT), "--series", "100", "--rounds", "3", "--json", "-"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [each["format"] for each in rows] == ["Prometheus", "OpenMetrics"]
    for each in rows:
        assert each["ratio"] == pytest.approx(each["gpuprof_ms"] / each["prometheus_client_ms"])
        assert each["bytes"] > 100 * len('gpuprof_layer_seconds_total{run="run0",layer="layers.0.mlp"} 0.0')
