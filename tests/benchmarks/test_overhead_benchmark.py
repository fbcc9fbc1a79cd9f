# SPDX-License-Identifier: Apache-2.0
"""The overhead benchmark runs and reports every row. No test checks the budgets."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark measures PyTorch models")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "overhead.py"
ROWS = {
    "idle.reused": "ns",
    "idle.fresh": "ns",
    "span.reused": "ns",
    "span.fresh": "ns",
    "layer": "ns",
    "operator": "ns",
    "python": "x",
    "million.loop": "s",
    "million.finish": "s",
    "million.memory": "MB",
    "million.disk": "MB",
    "model.transformer": "x",
    "model.convnet": "x",
    "work.transformer": "x",
    "work.convnet": "x",
}
# No peer counts work while it records: the base is the same recording without counting.
AGAINST_ITSELF = {"work.transformer", "work.convnet"}
# Small differences of two times: on a busy machine a quick run may find them below zero.
DIFFERENCES = {
    "idle.reused",
    "idle.fresh",
    "span.reused",
    "span.fresh",
    "layer",
    "operator",
    "million.loop",
}


def run_overhead(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark as a developer does, from another folder."""
    command = [sys.executable, str(SCRIPT), "--folder", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = run_overhead(tmp_path_factory.mktemp("overhead"), "--quick", "--rounds", "1", "--json", "-")
    assert result.returncode == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_every_row_is_measured(report: dict[str, Any]) -> None:
    units = {row["name"]: row["unit"] for row in report["rows"] if row["measured"] is not None}
    missing = {"million.memory"} if not sys.platform.startswith("linux") else set()
    assert units == {name: unit for name, unit in ROWS.items() if name not in missing}


def test_figures_are_numbers(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        for line in [row, *row["others"]]:
            measured = line["measured"]
            if measured is None:
                continue
            assert math.isfinite(measured["median"]), row["name"]
            assert measured["first_quartile"] <= measured["median"] <= measured["third_quartile"]
            assert measured["repeats"] >= 1
        if row["name"] not in DIFFERENCES and row["measured"] is not None:
            assert row["measured"]["median"] > 0, row["name"]


def test_rows_have_peers(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        role = "scale" if row["name"] in AGAINST_ITSELF else "peer"
        assert any(other["role"] == role for other in row["others"]), row["name"]


def test_budgets_are_the_designs(report: dict[str, Any]) -> None:
    budgets = {row["name"]: row["budget"] for row in report["rows"] if row["budget"] is not None}
    # Those of a million operators apply to a million only, which a quick run does not record.
    assert budgets == {
        "idle.reused": 40,
        "idle.fresh": 40,
        "span.reused": 60,
        "span.fresh": 60,
        "layer": 100,
        "operator": 200,
        "work.transformer": 1.02,
        "work.convnet": 1.02,
    }


def test_the_machine_is_described(report: dict[str, Any]) -> None:
    assert report["quick"] is True
    assert report["machine"]["python"] == sys.version.split()[0]
    assert report["machine"]["cores"] >= 1
    assert report["gpuprof"]["version"]


def test_table_fits_a_page(tmp_path: Path) -> None:
    result = run_overhead(tmp_path, "--quick", "--row", "idle", "--json", "idle.json")
    assert result.returncode == 0, result.stderr
    assert "idle.fresh" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    written = json.loads((tmp_path / "idle.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in written["rows"]] == ["idle.reused", "idle.fresh"]
