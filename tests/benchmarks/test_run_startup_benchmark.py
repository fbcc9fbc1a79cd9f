# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a short program's start-up runs each command, and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "run_startup.py"


def test_each_command_has_its_times(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["command"]: row for row in json.loads(done.stdout)["rows"]}
    assert {"python", "gpuprof run", "cProfile"} <= rows.keys()
    assert rows["python"]["cpu_ratio"] == 1
    for row in rows.values():
        assert row["wall_s"] > 0
        assert row["added_wall_s"] == row["wall_s"] - rows["python"]["wall_s"]
    assert not list(tmp_path.iterdir())
