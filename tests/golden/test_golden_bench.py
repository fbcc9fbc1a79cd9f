# SPDX-License-Identifier: Apache-2.0
"""`gpuprof bench`: the table, the CSV, JSON and Markdown files, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Run
from golden_files import GoldenFiles

pytestmark = pytest.mark.usefixtures("replay")
SHAPE = ("--input-shape", "8")


def check(golden: GoldenFiles, gpuprof: Run, name: str, *words: str, files: bool = False) -> None:
    golden.check(f"bench/{name}.txt", str(gpuprof("bench", *words, *SHAPE)))
    written = sorted(Path("results/raw").glob("*")) if Path("results").exists() else []
    assert bool(written) == files
    for path in written:
        target = f"bench/{name}{path.suffix}"
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            golden.check_json(target, json.loads(text))
        else:
            golden.check(target, text)


def test_files_and_table(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "3", "--batch-sizes", "1,8", "--iterations", "120")
    check(golden, gpuprof, "processor", "models.py:float32", *words, files=True)


def test_device_and_energy(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "2", "--batch-sizes", "1,8,32", "--slo", "p50<0.7ms")
    check(golden, gpuprof, "device", "models.py:on_gpu", *words, files=True)


def test_warnings_and_a_missed_target(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "2", "--format", "csv", "--slo", "p50<1ms", "--iterations", "120")
    check(golden, gpuprof, "noisy", "models.py:noisy", *words, files=True)


def test_one_process_run_and_an_inconclusive_target(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "1", "--format", "csv", "--slo", "p50<3.5ms", "--iterations", "20")
    check(golden, gpuprof, "one", "models.py:float32", *words, files=True)


def test_until_memory_ends(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "1", "--batch-sizes", "auto", "--format", "md")
    check(golden, gpuprof, "memory_ends", "models.py:partly", *words, files=True)


def test_a_batch_that_does_not_fit(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "2", "--batch-sizes", "1,8", "--format", "md")
    check(golden, gpuprof, "does_not_fit", "models.py:partly", *words, files=True)


def test_a_model_that_fails(golden: GoldenFiles, gpuprof: Run) -> None:
    check(golden, gpuprof, "failing", "models.py:failing", "--launches", "2")


def test_largest_batch_and_start_up(golden: GoldenFiles, gpuprof: Run) -> None:
    words = ("--launches", "1", "--find-max-batch", "--startup", "--slo", "p50<16ms", "--format", "md")
    check(golden, gpuprof, "largest_batch", "models.py:partly", *words, files=True)
