# SPDX-License-Identifier: Apache-2.0
"""An installed wheel at work, in environments without a compiler and without the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from environments import Environment

SPANS = """
import gpuprof
with gpuprof.profile(out="spans.gpuprof") as recording:
    for step in range(3):
        with gpuprof.span("step"):
            with gpuprof.span("load"):
                sum(range(1000))
recording.run.flamegraph("spans.html")
print(recording.run.sql("SELECT name, count(*) FROM spans GROUP BY 1 ORDER BY 1").fetchall())
"""
TRAIN = """
import sys
import gpuprof
with gpuprof.span("epoch"):
    print("trained", sys.argv[1:])
sys.exit(5)
"""
BENCHMARK = """
import gpuprof
print(len(gpuprof.benchmark(lambda: sum(range(1000)), iterations=50, warmup=5).samples))
"""
KINDS = """
import gpuprof, json
print(json.dumps(gpuprof.open("demo.gpuprof").sql("SELECT kind, count(*) FROM spans GROUP BY 1").fetchall()))
"""
# The example takes 10 steps and generates 32 tokens, with a model of 57 modules.
CALLS_OF_A_LAYER = 10 + 32
MODULES = 57


def test_all_that_it_depends_on_is_there_and_no_compiler(environment: Environment, tmp_path: Path) -> None:
    tools = ("c++", "g++", "cc", "cmake", "ninja", "nvcc")
    assert not [name for name in tools if shutil.which(name, path=environment.variables()["PATH"])]
    environment.run("-m", "pip", "check", cwd=tmp_path)
    where = environment.run("-c", "import gpuprof; print(gpuprof.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.folder)
    assert environment.gpuprof("--version", cwd=tmp_path).strip().endswith("0.1.0")
    assert "gpuprof run train.py" in environment.gpuprof(cwd=tmp_path, code=2)


def test_spans_and_their_page(environment: Environment, tmp_path: Path) -> None:
    assert environment.run("-c", SPANS, cwd=tmp_path).splitlines()[-1] == "[('load', 3), ('step', 3)]"
    assert "</html>" in (tmp_path / "spans.html").read_text(encoding="utf-8")


def test_a_script_is_recorded(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    printed = environment.gpuprof("run", "train.py", "--epochs", "1", cwd=tmp_path, code=5)
    assert "trained ['--epochs', '1']" in printed
    summary = json.loads(
        environment.gpuprof("summary", "train.gpuprof", "--by", "span", "--json", cwd=tmp_path)
    )
    assert summary["meta"]["complete"]
    assert ("epoch", 1) in [(row["name"], row["calls"]) for row in summary["summary"]["rows"]]
    environment.gpuprof("flamegraph", "train.gpuprof", cwd=tmp_path)
    assert "</html>" in (tmp_path / "train.html").read_text(encoding="utf-8")


def test_errors_cross_the_libraries(environment: Environment, tmp_path: Path) -> None:
    """An error that the core throws is one of Python's, with its own text."""
    refused = environment.gpuprof("summary", "missing.gpuprof", cwd=tmp_path, code=2)
    assert len(refused.strip().splitlines()) == 1
    assert "missing.gpuprof" in refused
    program = "from gpuprof import _native; _native.start_recording('no/such/folder')"
    caught = f"try:\n    {program}\nexcept FileNotFoundError as error:\n    print('refused')"
    assert environment.run("-c", caught, cwd=tmp_path).strip() == "refused"


def test_a_callable_is_measured(environment: Environment, tmp_path: Path) -> None:
    assert environment.run("-c", BENCHMARK, cwd=tmp_path).split() == ["50"]


def test_the_machine_is_shown_live(environment: Environment, tmp_path: Path) -> None:
    shown = json.loads(environment.gpuprof("top", "--once", "--json", "--interval", "0.1", cwd=tmp_path))
    assert shown["machine"]["processors"] >= 1


def test_doctor(environment: Environment, tmp_path: Path) -> None:
    assert environment.gpuprof("doctor", cwd=tmp_path).splitlines()[-1] == "gpuprof can record here."


def test_demo(environment: Environment, tmp_path: Path) -> None:
    if environment.pytorch is None:
        assert "hint: pip install torch" in environment.gpuprof("demo", cwd=tmp_path, code=2)
        return
    environment.gpuprof("demo", cwd=tmp_path)
    assert "</html>" in (tmp_path / "demo.html").read_text(encoding="utf-8")
    run = json.loads(environment.gpuprof("summary", "demo.gpuprof", "--json", cwd=tmp_path))
    assert run["meta"]["complete"]
    assert run["meta"]["versions"]["torch"].partition("+")[0] == environment.pytorch
    rows = {row["name"]: row["calls"] for row in run["summary"]["rows"]}
    assert rows["layers.0.mlp.up_proj"] == rows["lm_head"] == CALLS_OF_A_LAYER
    kinds = dict(json.loads(environment.run("-c", KINDS, cwd=tmp_path)))
    assert kinds["layer"] == MODULES * CALLS_OF_A_LAYER
    assert kinds["operator"] > 10 * kinds["layer"]
    assert kinds["backward"] > MODULES * 10
