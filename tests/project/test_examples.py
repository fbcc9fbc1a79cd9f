# SPDX-License-Identifier: Apache-2.0
"""Every example runs, in a process and a folder of its own."""

from __future__ import annotations

import ast
import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the examples run PyTorch models")

import gpuprof

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
SHORT = {
    "always_on.py": ["--seconds", "3"],
    "api.py": [],
    "async_server.py": ["--requests", "3"],
    "benchmark.py": ["--launches", "2"],
    "compare_outputs.py": ["--samples", "256"],
    "dashboard.py": [],
    "difference.py": ["--steps", "20"],
    "load.py": ["--seconds", "0.5"],
    "load_openai.py": ["--duration", "0.5"],
    "sql.py": [],
    "transformer.py": ["--steps", "2", "--layers", "2", "--batch", "2", "--tokens", "4"],
}

SLOW = {"always_on.py", "benchmark.py", "compare_outputs.py"}


def run_example(folder: Path, *command: str) -> str:
    """Run Python with `command` in `folder`; return its standard output."""
    result = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in SHORT]
)
def test_runs(name: str, tmp_path: Path) -> None:
    output = run_example(tmp_path, str(EXAMPLES / name), *SHORT[name])
    assert output.strip()


def test_api_leaves_a_run_and_a_page(tmp_path: Path) -> None:
    output = run_example(tmp_path, str(EXAMPLES / "api.py"))
    assert "layers cover" in output
    assert gpuprof.open(tmp_path / "run.gpuprof").meta["complete"]
    assert "</html>" in (tmp_path / "flame.html").read_text(encoding="utf-8")


def test_api_is_the_readmes_example() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert shown is not None
    _docstring, *example = ast.parse((EXAMPLES / "api.py").read_text(encoding="utf-8")).body
    assert [ast.dump(each) for each in example] == [ast.dump(each) for each in ast.parse(shown[1]).body]


@pytest.mark.slow
def test_transformer_under_gpuprof_run_prints_the_same(tmp_path: Path) -> None:
    script = str(EXAMPLES / "transformer.py")
    alone = run_example(tmp_path, script, *SHORT["transformer.py"])
    arguments = ["-m", "gpuprof", "run", "--out", "demo.gpuprof", script, *SHORT["transformer.py"]]
    profiled = run_example(tmp_path, *arguments)
    losses = re.findall(r"loss (\S+)", alone)
    assert losses
    assert re.findall(r"loss (\S+)", profiled) == losses
    names = gpuprof.open(tmp_path / "demo.gpuprof").sql(
        "SELECT DISTINCT name FROM spans WHERE kind = 'layer'"
    )
    assert "layers.1.attn.q_proj" in {name for (name,) in names.fetchall()}


def test_async_requests_belong_to_their_clients(tmp_path: Path) -> None:
    run_example(tmp_path, str(EXAMPLES / "async_server.py"), "--requests", "3", "--out", "a.gpuprof")
    parents = gpuprof.open(tmp_path / "a.gpuprof").sql("""
        SELECT parent.name, count(*)
        FROM spans AS child JOIN spans AS parent ON child.parent_id = parent.span_id
        WHERE child.name = 'request' GROUP BY 1 ORDER BY 1
    """)
    assert parents.fetchall() == [("client A", 3), ("client B", 3), ("client C", 3)]


@pytest.mark.slow
def test_the_suite_ends_in_a_report_of_its_raw_samples(tmp_path: Path) -> None:
    """Four variants at three batch sizes: the figures of the report are computed again from the journal."""
    folder = shutil.copytree(EXAMPLES / "suite", tmp_path / "suite")
    suite = (folder / "suite.toml").read_text(encoding="utf-8")
    shorter = suite.replace("launches = 10", "launches = 2").replace(
        "duration = 1", "iterations = 40\nwarmup = 3"
    )
    assert shorter != suite
    (folder / "suite.toml").write_text(shorter, encoding="utf-8")
    assert "trained" in run_example(folder, str(folder / "model.py"))
    command = [sys.executable, "-m", "gpuprof", "suite", "suite.toml", "--report", "json,html,csv"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 3), done.stderr
    results = folder / "results" / "classifier"
    document = json.loads((results / "report.json").read_text(encoding="utf-8"))
    raw = raw_samples_s(results / "journal.jsonl")
    shown = {
        (each["name"], batch["batch_size"]): batch
        for each in document["variants"]
        for batch in each["batches"]
    }
    assert len(shown) == 12
    for key, batch in shown.items():
        assert batch["samples"] == sum(map(len, raw[key])) == 80
        assert batch["launch_medians_s"] == pytest.approx([float(np.median(each)) for each in raw[key]])
        assert batch["mean_s"] == pytest.approx(float(np.mean(raw[key])))
        assert batch["throughput_per_s"]["value"] == pytest.approx(key[1] / float(np.mean(raw[key])))
    with (results / "report.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        key = (row["variant"], int(row["batch_size"]))
        assert float(row["latency_mean_ms"]) == pytest.approx(float(np.mean(raw[key])) * 1e3)
    assert all(each["accuracy"]["labelled"] for each in document["variants"])
    assert "</html>" in (results / "report.html").read_text(encoding="utf-8")


def raw_samples_s(journal: Path) -> dict[tuple[str, int], list[list[float]]]:
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for line in journal.read_text(encoding="utf-8").splitlines()[1:-1]:
        entry = json.loads(line)
        for batch in entry["noted"]["batches"]:
            samples = [each / 1e9 for each in batch["launch"]["measurement"]["samples_ns"]]
            found.setdefault((entry["variant"], batch["batch_size"]), {})[entry["noted"]["launch"]] = samples
    return {key: [launches[number] for number in sorted(launches)] for key, launches in found.items()}
