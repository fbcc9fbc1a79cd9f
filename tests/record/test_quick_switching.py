# SPDX-License-Identifier: Apache-2.0
"""Threads hand the interpreter lock over quickly while a run is written, and as the program wants else."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpuprof
from gpuprof.run import recorded_tables, writer
from gpuprof.run.folder import RunFolder
from gpuprof.run.quick_switching import quick_switching

QUICK_S = pytest.approx(1e-4)
OWN_S = 0.004


@pytest.fixture(autouse=True)
def own_setting() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(OWN_S)
    yield
    sys.setswitchinterval(before)


def test_the_setting_is_the_programs_again_afterwards() -> None:
    with quick_switching():
        assert sys.getswitchinterval() == QUICK_S
    assert sys.getswitchinterval() == pytest.approx(OWN_S)


def test_and_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), quick_switching():
        raise ZeroDivisionError
    assert sys.getswitchinterval() == pytest.approx(OWN_S)


def test_the_last_of_several_restores_it() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quick_switching():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with quick_switching():
        with quick_switching():
            thread.start()
            entered.wait()
        assert sys.getswitchinterval() == QUICK_S
    assert sys.getswitchinterval() == QUICK_S
    leave.set()
    thread.join()
    assert sys.getswitchinterval() == pytest.approx(OWN_S)


def test_what_the_program_sets_meanwhile_is_kept() -> None:
    with quick_switching():
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_quicker_setting_of_the_program_is_left_alone() -> None:
    sys.setswitchinterval(1e-5)
    with quick_switching():
        assert sys.getswitchinterval() == pytest.approx(1e-5)
    assert sys.getswitchinterval() == pytest.approx(1e-5)


@pytest.mark.parametrize("microseconds", [2, 101, 4_000, 25_000, 50_000, 200_000, 123_457])
def test_the_setting_is_the_same_to_the_microsecond(microseconds: int) -> None:
    sys.setswitchinterval(microseconds / 1e6 + 5e-7)
    own = sys.getswitchinterval()
    with quick_switching():
        pass
    assert sys.getswitchinterval() == own


def test_a_setting_that_python_keeps_as_none_is_left_alone() -> None:
    sys.setswitchinterval(1e-7)
    assert sys.getswitchinterval() == 0
    with quick_switching():
        assert sys.getswitchinterval() == 0
    assert sys.getswitchinterval() == 0


def test_one_that_begins_while_another_begins_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a signal's handler that opens a run."""
    change = sys.setswitchinterval

    def interrupted(interval_s: float) -> None:
        monkeypatch.setattr(sys, "setswitchinterval", change)
        with quick_switching():
            pass
        change(interval_s)
        with quick_switching():
            pass

    for _ in range(2):
        monkeypatch.setattr(sys, "setswitchinterval", interrupted)
        with quick_switching():
            assert sys.getswitchinterval() == QUICK_S
            monkeypatch.setattr(sys, "setswitchinterval", interrupted)
        assert sys.getswitchinterval() == pytest.approx(OWN_S)


# Python 3.12 and later warn of what this test is about.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_by_another_thread_has_the_programs_setting() -> None:
    read, write = os.pipe()

    def fork() -> None:
        if (child := os.fork()) == 0:
            os.write(write, f"{sys.getswitchinterval():.6f}".encode())
            os._exit(0)
        os.waitpid(child, 0)

    thread = threading.Thread(target=fork)
    with quick_switching():
        thread.start()
        thread.join()
    os.close(write)
    with os.fdopen(read) as told:
        assert float(told.read()) == pytest.approx(OWN_S)


def test_a_profile_begins_and_is_closed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def watch(module: ModuleType, name: str) -> None:
        work = getattr(module, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            seen.append(sys.getswitchinterval())
            return work(*arguments, **options)

        monkeypatch.setattr(module, name, watched)

    watch(writer, "preload")
    watch(recorded_tables, "_write_tables")
    with gpuprof.profile(out=tmp_path / "run.gpuprof") as recording:
        assert sys.getswitchinterval() == pytest.approx(OWN_S)
        assert seen == [QUICK_S]
        with gpuprof.span("work"):
            pass
    assert seen == [QUICK_S, QUICK_S]
    assert sys.getswitchinterval() == pytest.approx(OWN_S)
    assert recording.run.meta["complete"]


def test_a_run_is_read_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpuprof.profile(out=tmp_path / "run.gpuprof") as recording, gpuprof.span("work"):
        pass
    seen: list[float] = []
    connect = RunFolder.connect

    def watched(folder: RunFolder) -> Any:
        seen.append(sys.getswitchinterval())
        return connect(folder)

    monkeypatch.setattr(RunFolder, "connect", watched)
    recording.run.summary("span")
    gpuprof.open(recording.path).flamegraph(tmp_path / "flame.html")
    gpuprof.open(recording.path).export(tmp_path / "run.folded")
    assert len(seen) >= 3
    assert seen == [QUICK_S] * len(seen)
    assert sys.getswitchinterval() == pytest.approx(OWN_S)
