# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the page runs and reports every row. No test checks the budgets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpuprof

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "page.py"
IN_BROWSER = {
    "ready_ms",
    "redraw_ms",
    "zoomed_redraw_ms",
    "flame_redraw_ms",
    "search_ms",
    "range_ms",
    "heap_mb",
}
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from benchmarks._page_run import write_run
from pathlib import Path
write_run(Path(sys.argv[2]), 5_432)
"""


def test_every_row_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--slices", "3000", "--repeats", "2", "--json", "-"]
    result = subprocess.run(
        [*command, "--folder", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    rows = {row["name"]: row for row in report["rows"]}
    assert set(rows) == {"write_s", "size_mb", *IN_BROWSER}
    # A small run has no budget: the budgets are those of a million slices.
    assert {row["budget"] for row in rows.values()} == {None}
    assert rows["size_mb"]["median"] > 0.1
    known = {name for name in IN_BROWSER if rows[name]["median"] is not None}
    assert known in (set(), IN_BROWSER)  # all, or none where there is no browser


def test_its_run_has_the_slices_and_the_depth_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "made.gpuprof"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(SCRIPT.parents[1]), str(path)], check=True, timeout=180
    )
    run = gpuprof.open(path)
    found = run.sql("SELECT count(*), count(DISTINCT name), max(depth) + 1 FROM spans").fetchall()
    assert found == [(5_432, 400, 8)]
