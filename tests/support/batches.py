# SPDX-License-Identifier: Apache-2.0
"""Batch sizes with known samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.bench.config import JobSettings, Settings
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.result import ProcessRunResult


def batch_of(*runs: list[float], batch_size: int = 4, **extra: Any) -> BatchResult:
    """Return a batch size with samples in milliseconds."""
    described = SystemDescription("pytorch", "m|x", "a device", "cpu", "float32", (3, 8, 8), parameters=7)
    found = BatchResult(batch_size, described, JobSettings(), {"revision": "abc"})
    for number, samples in enumerate(runs, 1):
        measured = Measurement(
            settings=Settings(),
            samples_ns=np.array([round(each * 1e6) for each in samples], dtype=np.int64),
            enqueue_ns=None,
            calls_per_sample=1,
            warmup=None,
            stopped_by="iterations",
            failure=None,
            timer_ns=40.0,
            elapsed_s=1.0,
            machine=None,
        )
        found.launches.append(ProcessRunResult(number, measured, None, extra))
    return found
