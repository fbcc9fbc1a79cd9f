# SPDX-License-Identifier: Apache-2.0
"""Where the inputs of operators are recorded, and that it leaves the program as it is."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof  # noqa: F401

# isort: split
import torch

from gpuprof.record import operator_windows
from gpuprof.record.first_calls import CallsGiven, signature_of
from gpuprof.record.operator_windows import OperatorWindows, TraceState
from gpuprof.record.work.traced_operators import read_trace


@pytest.fixture
def windows(tmp_path: Path) -> OperatorWindows:
    return OperatorWindows(tmp_path)


def roots(windows: OperatorWindows) -> list[str]:
    return [window.root for window in windows.windows]


def test_equal_steps_are_recorded_twice(windows: OperatorWindows) -> None:
    windows.start()
    for _ in range(9):
        windows.begin_call("Net", 0)
        windows.begin_call("Loss", 0)
    windows.stop()
    # The first step, and the second, which had a call before it.
    assert roots(windows) == ["", "Net", "Loss", "Net"]
    assert all(window.begin_ns <= window.end_ns for window in windows.windows)


def test_another_signature_is_recorded_once(windows: OperatorWindows) -> None:
    windows.start()
    for signature in (0, 0, 0, 1, 0, 0, 1):
        windows.begin_call("Net", signature)
    windows.stop()
    # None-0, 0-0, 0-1, 1-0; the rest are known.
    assert roots(windows) == ["", "Net", "Net", "Net", "Net"]


def test_of_calls_that_all_differ_fewer_and_fewer_are_recorded(windows: OperatorWindows) -> None:
    windows.start()
    for signature in range(1000):
        windows.begin_call("Net", signature)
    windows.stop()
    # After the first call: the first six pairs, then those whose number is a power of two.
    assert len(windows.windows) == 1 + 1 + 6 + len((8, 16, 32, 64, 128, 256, 512))


def test_there_is_a_most(windows: OperatorWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_windows, "MOST_WINDOWS", 3)
    windows.start()
    for signature in range(9):
        windows.begin_call("Net", signature)
    windows.stop()
    assert len(windows.windows) == 3


def test_operators_outside_of_windows_are_not_recorded(windows: OperatorWindows) -> None:
    windows.start()
    torch.zeros(1)
    windows.begin_call("Net", 0)
    torch.zeros(2)
    windows.begin_call("Net", 0)
    torch.zeros(3)
    windows.begin_call("Net", 0)
    torch.zeros(4)
    windows.stop()
    torch.zeros(5)
    sizes = [each.inputs.values[0] for each in read_trace(windows.path) if each.name == "aten::zeros"]
    assert sizes == [[1], [2], [3]]


def test_a_window_without_an_end_is_closed(windows: OperatorWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_windows, "_LONGEST_S", 0.0)
    ended: list[None] = []
    end = windows._end
    monkeypatch.setattr(windows, "_end", lambda: (end(), ended.append(None)))
    windows.start()
    while not ended:
        torch.zeros(1)
    assert len(windows.windows) == 1
    windows.stop()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_writes_nothing_into_the_trace(windows: OperatorWindows) -> None:
    windows.start()
    torch.zeros(1)
    child = os.fork()
    if child == 0:
        torch.zeros(2)
        windows.begin_call("Net", 0)
        windows.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    windows.begin_call("Net", 0)
    torch.zeros(3)
    windows.stop()
    sizes = [each.inputs.values[0] for each in read_trace(windows.path) if each.name == "aten::zeros"]
    assert sizes == [[1], [3]]


def test_where_the_program_records_a_trace_itself(windows: OperatorWindows, tmp_path: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "own.json"))
    try:
        windows.start()
        windows.stop()
    finally:
        observer.unregister_callback()
    assert windows.state == TraceState.IN_USE
    assert not windows.windows


def test_a_program_that_begins_a_trace_of_its_own_gets_it(windows: OperatorWindows, tmp_path: Path) -> None:
    windows.start()
    torch.zeros(1)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "own.json"))
    observer.start()
    torch.zeros(2)
    windows.begin_call("Net", 0)
    torch.zeros(3)
    observer.stop()
    observer.unregister_callback()
    windows.stop()
    of_program, of_windows = (
        [each.inputs.values[0] for each in read_trace(path) if each.name == "aten::zeros"]
        for path in (tmp_path / "own.json", windows.path)
    )
    assert (of_program, of_windows) == ([[2], [3]], [[1]])
    assert windows.state == TraceState.IN_USE
    assert not hasattr(torch.profiler.profiler._add_execution_trace_observer, "original")


def test_the_program_is_left_as_it_is(windows: OperatorWindows, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    windows.start()
    windows.begin_call("Net", 0)
    tensor = torch.ones(4, requires_grad=True)
    (tensor * 2).sum().backward()
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None
    windows.stop()
    assert torch.equal(torch.rand(2), expected)
    assert capfd.readouterr() == ("", "")


# ---- signatures ------------------------------------------------------------------------------


class Cache:
    """Keys and values, as a model library has them."""

    def __init__(self, tokens: int) -> None:
        self.seen = tokens
        self.layers = [torch.zeros(1, 2, tokens, 4) for _ in range(2)]


def test_a_cache_is_part_of_the_inputs() -> None:
    given = CallsGiven()
    token = torch.zeros(1, 1)
    numbers = [given.note("Net", signature_of(torch, (token, Cache(each)), {})) for each in (3, 4, 4, 5, 3)]
    assert numbers == [0, 1, 1, 2, 0]
    structures, elements = zip(*given.signatures()["Net"], strict=True)
    assert len(set(structures)) == 1
    assert elements == tuple(1 + 2 * 2 * each * 4 for each in (3, 4, 5))
    (row,) = given.as_rows()
    assert row["runs"] == [0, 1, 1, 2, 2, 1, 0, 1]
    assert row["stretches"] == [1, 3, 1]


def test_other_types_are_another_structure() -> None:
    given = CallsGiven()
    for dtype in (torch.float32, torch.float64):
        given.note("Net", signature_of(torch, (torch.zeros(2, dtype=dtype),), {"train": True}))
    first, second = given.signatures()["Net"]
    assert first[0] != second[0]
    assert first[1] == second[1] == 2
