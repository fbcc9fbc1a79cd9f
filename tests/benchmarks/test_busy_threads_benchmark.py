# SPDX-License-Identifier: Apache-2.0
"""The benchmark of recording next to busy threads measures each recorder, and ends its threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark records PyTorch's operators")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "busy_threads.py"


def test_each_row_has_the_times_of_each_recorder() -> None:
    command = [sys.executable, str(SCRIPT), "--threads", "0,1", "--repeats", "1", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["rows"]
    assert [row.pop("threads") for row in rows] == [0, 1]
    expected = {f"{name}_{what}_s" for name in ("gpuprof", "torch.profiler") for what in ("begin", "end")}
    for row in rows:
        assert row.keys() == expected
        assert all(seconds > 0 for seconds in row.values())
