# SPDX-License-Identifier: Apache-2.0
"""The benchmark of HTTP clients measures ours and each peer that is installed; its figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("httptools")
pytest.importorskip("uvloop")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "load_clients.py"


def test_each_client_has_its_figures() -> None:
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--requests", "200", "--connections", "4"]
    done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row.pop("client"): row for row in json.loads(done.stdout)["rows"]}
    assert rows["gpuprof"]["rate_ratio"] == rows["gpuprof"]["cpu_ratio"] == 1
    assert all(figure > 0 for row in rows.values() for figure in row.values())
