# SPDX-License-Identifier: Apache-2.0
"""Folders for the dashboard: runs and results of a known history."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
from batches import batch_of
from queues import served

import gpuprof
from gpuprof.bench.results.batch import Stamp
from gpuprof.bench.results.files import document_of, to_json
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings

FIRST_DAY = datetime(2026, 2, 1, tzinfo=timezone.utc)
LEVEL_MS = 10.0


def record_run(path: Path, spans: int = 20) -> Path:
    """Record a small run of spans."""
    with gpuprof.profile(out=path, python=False):
        for _ in range(spans):
            with gpuprof.span("step"), gpuprof.span("work"):
                pass
    return path


def result_text(
    day: float,
    median_ms: float,
    seed: int,
    *,
    model: str = "net",
    framework: str = "pytorch",
    samples: int = 40,
) -> str:
    """Return the JSON of a benchmark with three process runs around a median."""
    random = np.random.default_rng(seed)
    level = median_ms * np.exp(random.normal(0, 0.004))
    runs = [list(level * np.exp(random.normal(0, 0.003) + random.normal(0, 0.01, samples))) for _ in range(3)]
    batch = batch_of(*runs)
    batch.description = dataclasses.replace(batch.description, model=model, framework=framework)
    stamp = Stamp((FIRST_DAY + timedelta(days=day)).isoformat(), f"{seed:040x}")
    return to_json(document_of([batch], stamp))


def write_history(
    folder: Path, files: int, *, change_at: int | None = None, change: float = 0.1, **more: str
) -> list[Path]:
    """Write results of consecutive days; from `change_at` on they are slower by `change`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(files):
        is_slow = change_at is not None and number >= change_at
        path = folder / f"benchmark_results_{number:04}.json"
        path.write_text(
            result_text(number, LEVEL_MS * (1 + change * is_slow), number, **more), encoding="utf-8"
        )
        paths.append(path)
    return paths


def write_load(
    folder: Path, service_ms: float, seed: int, *, rate: float = 100.0, count: int = 6_000
) -> Path:
    """Write the load test of a server with exponential services."""
    generator = np.random.default_rng(seed)
    planned = np.cumsum(generator.exponential(1e9 / rate, count)).astype(np.int64)
    rows = served(planned, (generator.exponential(1e6, count) * service_ms).astype(np.int64))
    settings = LoadSettings("m.py:build", "server", "poisson", rate=rate, seed=seed)
    LoadResult(settings, LoadRun(10**9, int(rows["end_ns"].max()), environment={}), rows).save(folder)
    return folder


def write_many(folder: Path, runs: int, results: int) -> None:
    """Write a folder of many runs, which are copies of one, and results of several models and techniques."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    first = record_run(folder / "runs" / "run-0000.gpuprof") if runs else None
    meta = {} if first is None else json.loads((first / "meta.json").read_text(encoding="utf-8"))
    for number in range(1, runs):
        copy = folder / "runs" / f"run-{number:04}.gpuprof"
        shutil.copytree(first, copy)
        meta["origin_unix_ns"] = str(int(FIRST_DAY.timestamp() * 1e9) + number * 3_600_000_000_000)
        (copy / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    kinds = [(model, framework) for model in ("resnet50", "bert") for framework in ("pytorch", "onnxruntime")]
    for place, (model, framework) in enumerate(kinds):
        share = results // len(kinds)
        write_history(
            folder / f"{model}-{framework}",
            share,
            change_at=share * (place + 1) // 6,
            change=0.08 * (1 if place % 2 else -1),
            model=model,
            framework=framework,
        )
