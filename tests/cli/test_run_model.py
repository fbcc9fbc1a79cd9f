# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run --model`: a model with inputs in place of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import gpuprof
from gpuprof.errors import RunError

MODELS = Path(__file__).parents[1] / "support" / "bench_models.py"
DOUBLED = ("--model", f"{MODELS}:doubled", "--input-shape", "3")


@pytest.fixture
def run(run_with_codes: Any) -> Any:
    return lambda *words: run_with_codes("-m", "gpuprof", "run", *words)


def calls_of(folder: Path) -> dict[str, int]:
    return {row.name: row.calls for row in gpuprof.open(folder).summary("span").rows}


def test_calls_of_a_model_are_recorded_in_a_folder(run: Any, tmp_path: Path) -> None:
    done = run(*DOUBLED, "--batch-size", "4", "--calls", "7", "--save-dir", "profile_results")
    assert done.returncode == 0, done.stderr
    found = calls_of(tmp_path / "profile_results" / "doubled.gpuprof")
    assert found["call"] == 7
    assert {"load", "prepare", "warm-up"} <= set(found)
    assert "data" not in found


def test_each_call_gets_a_batch_of_a_data_set(run: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", inputs=np.zeros((6, 3), np.float32))
    done = run(*DOUBLED, "--dataset", "data.npz", "--batch-size", "2", "--calls", "5", "--out", "r.gpuprof")
    assert done.returncode == 0, done.stderr
    found = calls_of(tmp_path / "r.gpuprof")
    assert (found["call"], found["data"]) == (5, 5)


def test_the_end_of_a_loader_ends_the_calls(run: Any, tmp_path: Path) -> None:
    words = ("--dataset", f"python:{MODELS}:one_pass", "--batch-size", "2", "--out", "r.gpuprof")
    assert run(*DOUBLED, *words).returncode == 0
    assert calls_of(tmp_path / "r.gpuprof")["call"] == 11


def test_a_model_under_cprofile(run: Any, tmp_path: Path) -> None:
    done = run(*DOUBLED, "--profiler", "cProfile", "--out", "r.gpuprof")
    assert done.returncode == 0, done.stderr
    names = {row.name for row in gpuprof.open(tmp_path / "r.gpuprof").summary("python").rows}
    assert any("bench_models.py" in name for name in names)
    with refused(RunError, "no_calls", "r.gpuprof"):
        gpuprof.open(tmp_path / "r.gpuprof").findings()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--model", "missing.onnx"), "no_such_file"),
        ((*DOUBLED, "--dataset", "missing.npz"), "no_such_file"),
        ((*DOUBLED, "script.py"), "model_and_program"),
        ((*DOUBLED, "--profiler", "line"), "profiler_conflict"),
        ((*DOUBLED, "--out", "a", "--save-dir", "b"), "out_and_save_dir"),
        (("--batch-size", "2", "script.py"), "needs_model"),
        (("--dataset", "data.npz"), "needs_model"),
    ],
)
def test_what_is_refused_before_anything_runs(
    run: Any, tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert code in done.stderr
    assert not list(tmp_path.rglob("*.gpuprof"))


def test_a_model_that_fails_is_one_line_and_exit_code_2(run: Any, tmp_path: Path) -> None:
    done = run("--model", f"{MODELS}:raising", "--input-shape", "3", "--out", "r.gpuprof")
    assert done.returncode == 2
    assert "ValueError" in done.stderr
    assert "Traceback" not in done.stderr
