# SPDX-License-Identifier: Apache-2.0
"""The benchmark of imports runs and reports; no figure of it is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "import_nsys.py"


def test_every_export_is_imported_whole(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--rows", "5000", "--folder", str(tmp_path), "--json", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["imports"]
    assert found["spans"] == 3000  # of every five rows two are kernels
    assert found["peak_memory_bytes"] > 0
    assert list(tmp_path.iterdir()) == []
