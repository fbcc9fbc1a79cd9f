# SPDX-License-Identifier: Apache-2.0
"""The benchmark of windows runs in short, and has all figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "always_on.py"


def test_all_figures(tmp_path: Path) -> None:
    options = ["--rounds", "2", "--every", "3", "--for", "0.5", "--json", "out.json"]
    words = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert figures["steps_of_window"] > 0
    assert figures["begin_ms"] > 0
    assert figures["end_ms"] > 0
    assert set(figures["torch_profiler"]) == {"stop_s", "export_s", "key_averages_s"}
