# SPDX-License-Identifier: Apache-2.0
"""Stub: the programs and expectations of tests/gpu, rehearsed against stub libraries.

The stubs behave as a driver does where it matters: threads begin without a context, and a capture is preceded
by kernels of PyTorch's own. Nothing here runs on a GPU, so a pass is no evidence about a real one.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the programs run PyTorch modules")

import gpuprof

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "gpu"))
pytest.register_assert_rewrite("expectations")

import expectations  # noqa: E402
import second_opinion  # noqa: E402
from known_layers import LAYERS  # noqa: E402
from start_program import Ran, start_program  # noqa: E402


@pytest.fixture
def rehearse(stubs: Path, tmp_path: Path) -> Callable[..., Ran]:
    """`rehearse(name, *arguments)` runs a program of tests/gpu/programs.py against the stubs."""

    def rehearse(name: str, *arguments: object, **options: Any) -> Ran:
        variables = {
            "GPUPROF_REHEARSAL": "1",
            "LD_LIBRARY_PATH": str(stubs),
            "GPUPROF_CUPTI_LIBRARY": str(stubs / "libcupti.so.13"),
            "STUB_CUDA_WITHOUT_CONTEXT": "1",
        }
        return start_program(name, tmp_path, *arguments, **options, **variables)

    return rehearse


def test_forward(rehearse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rehearse("forward").run
    expectations.forward(run)
    # A wrong layer and a missing kernel are noticed.
    with pytest.raises(AssertionError):
        expectations.forward(run, passes=3)
    monkeypatch.setitem(LAYERS, "a", "body.0")
    with pytest.raises(AssertionError):
        expectations.forward(run)


def test_graph(rehearse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rehearse("graph").run
    expectations.graph(run)
    monkeypatch.setitem(LAYERS, "b", "body.1")
    with pytest.raises(AssertionError):
        expectations.graph(run)


def test_graph_from_before_the_recording(rehearse: Any) -> None:
    run = rehearse("graph_from_before").run
    expectations.graph_from_before(run)
    with pytest.raises(AssertionError):
        expectations.graph(run)


def test_backward(rehearse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rehearse("backward").run
    expectations.backward(run)
    monkeypatch.setitem(LAYERS, "c", "body.0")
    with pytest.raises(AssertionError):
        expectations.backward(run)


def test_restarts(rehearse: Any, tmp_path: Path) -> None:
    rehearse("restarts", 4)
    runs = [gpuprof.open(tmp_path / f"run-{number}") for number in range(4)]
    expectations.restarts(runs)
    with pytest.raises(AssertionError):
        expectations.restarts(runs[::-1])


def test_fork(rehearse: Any) -> None:
    ran = rehearse("forked")
    expectations.forked(ran.run, ran.facts["child"])


def test_kill(rehearse: Any) -> None:
    ran = rehearse("killed", code=-signal.SIGKILL)
    expectations.killed(ran.run, **ran.facts)
    with pytest.raises(AssertionError):
        expectations.killed(ran.run, launched=ran.facts["launched"], early=10**9)


def test_gpu_not_wanted(rehearse: Any) -> None:
    expectations.without_gpu(rehearse("without_gpu").run)


def test_streams(rehearse: Any) -> None:
    expectations.streams(rehearse("streams").run)


def test_threads(rehearse: Any) -> None:
    expectations.threads(rehearse("threads").run)


def test_long_run(rehearse: Any) -> None:
    ran = rehearse("long_run", 5000)
    expectations.long_run(ran.run, ran.facts["launched"], ran.facts["recording_bytes"])
    with pytest.raises(AssertionError):
        expectations.long_run(ran.run, ran.facts["launched"] + 1, ran.facts["recording_bytes"])


def test_names_of_the_second_opinion_are_demangled() -> None:
    assert second_opinion.demangled("_Z4fillPi") == "fill(int*)"
    assert second_opinion.demangled("forward_a") == "forward_a"


def test_programs_that_only_a_gpu_can_run_are_known() -> None:
    """Each program of the folder is run by a test there or here, so none is forgotten."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    source = (ROOT / "tests" / "gpu" / "programs.py").read_text("utf-8")
    names = source.partition("for program in (")[2].partition(")")[0].replace("\n", " ").split(",")
    assert len(names) > 15
    missing = [name.strip() for name in names if name.strip() and f'"{name.strip()}"' not in text]
    assert not missing
