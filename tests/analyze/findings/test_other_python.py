# SPDX-License-Identifier: Apache-2.0
"""The function with most of a step's time outside of the model, in simulated programs with a known one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_training import MS, Planted, TrainingHost, settings, train_step

import gpuprof
from gpuprof.analyze.findings.other_python import OtherPython
from gpuprof.analyze.findings.text import other_python_text, short_lines

STEP_MS = 30
OWN, LIBRARY = "augment (train.py:50)", "resize (PIL/Image.py:2000)"
INNER = "_resize (PIL/Image.py:1990)"
MAIN = "main (train.py:9)"


def found(folder: Path, more: Callable[[TrainingHost], None]) -> OtherPython | None:
    host = TrainingHost(settings=settings())
    host.work(5 * MS)
    for _ in range(12):
        with host.step():
            train_step(host, Planted())
            more(host)
    return gpuprof.open(host.write(folder / "r.gpuprof")).findings().other_python


def working(ms: int, *frames: str) -> Callable[[TrainingHost], None]:
    def work(host: TrainingHost) -> None:
        with host.function(*frames):
            host.work(ms * MS)

    return work


@pytest.mark.parametrize(
    ("frames", "function", "caller"),
    [
        ((OWN,), OWN, MAIN),
        ((OWN, LIBRARY), LIBRARY, OWN),
        # What the program calls is named, not what a library does in it.
        ((OWN, LIBRARY, INNER), LIBRARY, OWN),
        ((LIBRARY, INNER), LIBRARY, MAIN),
        # A hook of the backward pass.
        (
            ("_engine_run_backward (torch/autograd/graph.py:966)", OWN),
            OWN,
            "_engine_run_backward (torch/autograd/graph.py:966)",
        ),
    ],
)
def test_the_function_is_that_which_the_program_calls(
    tmp_path: Path, frames: tuple[str, ...], function: str, caller: str
) -> None:
    other = found(tmp_path, working(20, *frames))
    assert other is not None
    assert (other.function, other.caller) == (function, caller)
    assert other.fraction == pytest.approx(20 / (STEP_MS + 20), abs=0.03)


def test_of_two_functions_with_less_than_half_their_caller_is_named(tmp_path: Path) -> None:
    def more(host: TrainingHost) -> None:
        with host.function(OWN):
            for name in ("flip", "crop", "blur"):
                with host.function(f"{name} (PIL/Image.py:10)"):
                    host.work(7 * MS)

    other = found(tmp_path, more)
    assert other is not None
    assert (other.function, other.caller) == (OWN, MAIN)


@pytest.mark.parametrize(
    "more",
    [
        # What the backward pass does between its functions.
        working(20, "backward (torch/_tensor.py:500)", "_engine_run_backward (torch/autograd/graph.py:966)"),
        working(2, OWN),  # a small part of the step
        working(20),  # in the function that does the whole step
        lambda host: host.sleep(20 * MS),  # a wait
    ],
)
def test_there_is_none(tmp_path: Path, more: Callable[[TrainingHost], None]) -> None:
    assert found(tmp_path, more) is None


def test_a_function_that_a_finding_names_is_not_repeated(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    for _ in range(12):
        with host.step():
            train_step(host, Planted(log=10, values=50))
    findings = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    named = next(str(each.values["function"]) for each in findings if "function" in each.values)
    of_comprehension = named.replace(" (", ".<locals>.<dictcomp> (")
    for function, is_repeated in ((named, True), (of_comprehension, True), (OWN, False)):
        other = replace(findings, other_python=OtherPython(function, None, 0.5))
        assert (other_python_text(other) is None) == is_repeated


@pytest.mark.texts
def test_its_line_comes_first(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    for _ in range(12):
        with host.step():
            train_step(host, Planted())
            working(20, OWN, LIBRARY)(host)
    findings = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    label, text = short_lines(findings, 3, "r")[0]
    assert label == "Python"
    assert text.endswith(f"of the mean step, outside of the model, in {LIBRARY}, called by {OWN}")
