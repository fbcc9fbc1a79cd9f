# SPDX-License-Identifier: Apache-2.0
"""`gpuprof compare` and `gpuprof suite`: the console, the comparison document, reports, and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import INPUTS, Done, Run, break_python
from golden_files import GoldenFiles, PageOutline

REPORTS = "html,md,csv,json"


def check_reports(golden: GoldenFiles, name: str, folder: Path) -> None:
    for ending in ("md", "csv"):
        golden.check(f"{name}/report.{ending}", (folder / f"report.{ending}").read_text(encoding="utf-8"))
    golden.check_json(f"{name}/report.json", json.loads((folder / "report.json").read_text(encoding="utf-8")))
    page = PageOutline((folder / "report.html").read_text(encoding="utf-8"))
    golden.check(f"{name}/report.html.txt", page.text)
    (data,) = (json.loads(each) for each in page.data.values() if each.lstrip().startswith("{"))
    golden.check_json(f"{name}/report.html.json", data)


def write_dataset() -> None:
    """Samples that float32 holds exactly, and labels of which one in nine is wrong."""
    rows, columns = np.arange(240)[:, None], np.arange(8)[None, :]
    inputs = ((rows * 7919 + columns * 104729 + rows**2 * 31) % 251 - 125).astype(np.float32) / 64
    numbers = np.arange(8)[:, None] * 7919 + np.arange(5)[None, :] * 104729
    labels = (inputs @ ((numbers % 127 - 63) / 64).astype(np.float32)).argmax(axis=1)
    labels[::9] = (labels[::9] + 1) % 5
    np.savez("test.npz", inputs=inputs, labels=labels)


def test_accuracy_and_a_variant_that_fails(golden: GoldenFiles, gpuprof: Run, replay: Path) -> None:
    pytest.importorskip("plotly")
    write_dataset()
    variants = ("float32:models.py:float32", "degraded:models.py:degraded", "failing:models.py:failing")
    words = ("--framework", "python", "--batch-sizes", "1,8", "--launches", "3", "--dataset", "test.npz")
    done = gpuprof("compare", ",".join(variants), *words, "--report", REPORTS, "--profile")
    golden.check("compare/console.txt", str(done))
    check_reports(golden, "compare", replay / "results" / "comparison")


def test_shared_requests(golden: GoldenFiles, gpuprof: Run, replay: Path) -> None:
    words = ("--framework", "python", "--input-shape", "8", "--launches", "5", "--no-accuracy")
    traffic = ("--interleave", "--traffic", "80,20", "--report", "md,csv,json", "--output-dir", "shared")
    done = gpuprof("compare", "float32:models.py:float32,int8:models.py:int8", *words, *traffic)
    golden.check("traffic/console.txt", str(done))
    golden.check("traffic/report.md", (replay / "shared" / "report.md").read_text(encoding="utf-8"))
    document = json.loads((replay / "shared" / "report.json").read_text(encoding="utf-8"))
    golden.check_json("traffic/traffic.json", document["traffic"])


def test_a_suite_from_its_journal(golden: GoldenFiles, gpuprof: Run, replay: Path) -> None:
    """The second time no process can be started, and all results come from the folder."""
    pytest.importorskip("plotly")
    shutil.copy(INPUTS / "suite.toml", replay)
    words = ("suite", "suite.toml", "--output-dir", "out", "--report")
    first = gpuprof(*words, "csv")
    golden.check("suite/progress.txt", first.err)
    break_python(replay)
    again = gpuprof(*words, REPORTS, "--resume")
    assert _tables(again) == _tables(first)
    golden.check("suite/console.txt", str(again))
    check_reports(golden, "suite", replay / "out")
    as_json = gpuprof(*words, "csv", "--resume", "--json")
    printed = json.loads(as_json.out)
    assert as_json.code == again.code
    assert _without_times(printed) == _without_times(
        json.loads((replay / "out" / "report.json").read_text("utf-8"))
    )


def _tables(done: Done) -> str:
    return done.out.partition("\n\n")[2].partition("\n\n")[0]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key not in ("timestamp", "date")}
    return [_without_times(each) for each in value] if isinstance(value, list) else value
