# SPDX-License-Identifier: Apache-2.0
"""The benchmark of live views runs in short, and has all figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "live_cost.py"


def test_all_figures(tmp_path: Path) -> None:
    options = [
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--spans",
        "5000",
        "--intervals",
        "24",
        "--json",
        "out.json",
    ]
    options += ["--viewer", f"another={sys.executable} -c 'import time; time.sleep(600)' {{run}} {{pid}}"]
    options += ["--viewer", "broken=/missing/viewer {run}", "--viewer", f"short={sys.executable} -c ''"]
    words = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    viewers = figures["steps"]["viewers"]
    assert set(viewers) == {"gpuprof top", "another"}
    assert set(figures["steps"]["failed"]) == {"broken", "short"}
    for each in viewers.values():
        assert each["step_ratio_q1"] <= each["step_ratio"] <= each["step_ratio_q3"]
        assert each["rss_mb"] > 1
        assert each["processor_ratio"] > 0
    for name in ("recorded", "always-on"):
        low, middle, high = figures["programs"][name]["processor_ratio"]
        assert 0 < low <= middle <= high
    assert figures["million"]["spans"] >= 5000
    assert figures["hour"]["intervals"] == 24
    assert figures["hour"]["rss_at_the_end_mb"] > figures["hour"]["growth_mb"]
