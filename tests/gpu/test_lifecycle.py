# SPDX-License-Identifier: Apache-2.0
"""GPU: recordings that begin, end, fork, are killed and last long."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import expectations
import pytest

import gpuprof

RECORDINGS = 20


def test_recordings_one_after_the_other(program: Any, tmp_path: Path) -> None:
    program("restarts", RECORDINGS)
    expectations.restarts([gpuprof.open(tmp_path / f"run-{number}") for number in range(RECORDINGS)])


def test_fork_after_cuda(program: Any) -> None:
    ran = program("forked")
    expectations.forked(ran.run, ran.facts["child"])


def test_kill_in_the_middle(program: Any) -> None:
    ran = program("killed", code=-signal.SIGKILL)
    expectations.killed(ran.run, **ran.facts)


def test_gpu_not_wanted(program: Any) -> None:
    expectations.without_gpu(program("without_gpu").run)


def test_long_run(program: Any, pytestconfig: pytest.Config) -> None:
    total = 10_000_000 if pytestconfig.getoption("long_run", default=False) else 200_000
    ran = program("long_run", total, timeout=400)
    expectations.long_run(ran.run, ran.facts["launched"], ran.facts["recording_bytes"])


def test_clock(program: Any) -> None:
    """A kernel lies between its launch and the return of its synchronization, within the stated error."""
    ran = program("bounded_launches")
    run = ran.run
    expectations.is_whole(run)
    expectations.launches_come_before_kernels(run)
    kernels = run.sql("SELECT start_ns, start_ns + duration_ns FROM kernels ORDER BY start_ns").fetchall()
    ((origin,),) = run.sql("SELECT start_ns FROM spans WHERE name = 'origin'").fetchall()
    calls = ran.facts["calls"]
    assert len(kernels) == len(calls)
    # The program read its clock before the span began, by a little.
    error = run.meta["gpu"]["clock_error_ns"] + 100_000
    for (start, end), (before, after) in zip(kernels, calls, strict=True):
        assert origin + before - error <= start <= end <= origin + after + error


def test_device_samples(program: Any) -> None:
    expectations.device_samples(program("load").run)
