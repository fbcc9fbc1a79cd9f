# SPDX-License-Identifier: Apache-2.0
"""What the main thread waits for in steps: kinds of waits with a name of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_program import PROCESS
from simulated_training import MS, TrainingHost, settings

import gpuprof
from gpuprof.analyze.phases import WAIT_FOR_BACKWARD, WAIT_IN_BACKWARD

RUN_BACKWARD = "Variable._execution_engine.run_backward (built-in)"


def waits_of(host: TrainingHost, folder: Path) -> dict[str, float]:
    phases = gpuprof.open(host.write(folder / "r.gpuprof")).phases()
    assert phases is not None
    assert phases.steps is not None
    assert phases.steps.waits is not None
    return phases.steps.waits


def recorded(*, on_another_thread: bool) -> TrainingHost:
    """In a step of 40 ms, wait for 20 ms in the backward pass, with a node of 15 ms, and 10 ms elsewhere."""
    host = TrainingHost(settings=settings())
    for _ in range(6):
        with host.step():
            host.work(10 * MS)
            with (
                host.span("node", "backward"),
                host.function("_engine_run_backward (torch/autograd/graph.py:1)"),
                host.function(RUN_BACKWARD),
            ):
                host._pass(20 * MS, on_processor=False)
            node = host.spans[-1]
            node["duration_ns"] = 15 * MS
            if on_another_thread:
                node["thread_id"] = PROCESS + 1
            host.sleep(10 * MS)
    return host


def test_a_backward_pass_on_another_thread_is_a_wait_of_its_own(tmp_path: Path) -> None:
    assert waits_of(recorded(on_another_thread=True), tmp_path) == {
        WAIT_FOR_BACKWARD: pytest.approx(0.5),
        "time.sleep (built-in)": pytest.approx(0.25),
    }


def test_waits_inside_the_backward_pass_are_another_kind(tmp_path: Path) -> None:
    assert waits_of(recorded(on_another_thread=False), tmp_path) == {
        WAIT_IN_BACKWARD: pytest.approx(0.5),
        "time.sleep (built-in)": pytest.approx(0.25),
    }


def test_what_is_read_after_a_step_is_no_wait_of_it(tmp_path: Path) -> None:
    """Steps that are shorter than a sample, with a sleep between them."""
    host = TrainingHost(settings=settings())
    for _ in range(6):
        with host.step(), host.span("step"):
            host.work(MS // 2)
        host.sleep(2 * MS)
        host.work(MS // 2)
    for sample in host.samples:
        sample["queued_ns"] = sample["duration_ns"] // 4
    phases = gpuprof.open(host.write(tmp_path / "r.gpuprof")).phases()
    assert phases is not None
    assert phases.steps is not None
    assert phases.steps.waits == {}
    assert phases.processor_waits is None
