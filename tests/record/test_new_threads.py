# SPDX-License-Identifier: Apache-2.0
"""Operators of threads that begin during a recording, next to stack samples and hooks of the program."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
from run_codes import note_codes

import gpuprof

# isort: split
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_work import BUSY
from torch_models import announced, record

from gpuprof.record import operators
from gpuprof.record.new_threads import NewThreads

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

IN_THREADS = (
    BUSY
    + """
import os, threading
import torch
def work():
    torch.zeros(1).cos()
    busy(0.2)
def in_thread():
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
"""
)

Event = tuple[str, str]


@pytest.fixture(autouse=True)
def free_place() -> Iterator[None]:
    yield
    threading.setprofile(None)


def in_thread(target: Callable[[], Any]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def cosine() -> None:
    torch.zeros(1).cos()


def nothing(*_: object) -> None:
    """Profile nothing."""


def operators_of(run: gpuprof.Run) -> list[tuple[int, int]]:
    """Return how many threads called the operator, and how often, process by process."""
    return run.sql(
        "SELECT count(DISTINCT thread_id), count(*) FROM spans WHERE name = 'aten::cos' "
        "GROUP BY process_id ORDER BY 1, 2"
    ).fetchall()


class TestBesideStackSamples:
    @pytest.fixture(autouse=True)
    def pyinstrument(self) -> None:
        pytest.importorskip("pyinstrument")

    def test_in_a_block(self) -> None:
        run = record(lambda: in_thread(cosine), python=True)
        assert announced(run)["aten::cos"] == 1
        assert threading.getprofile() is None

    @pytest.mark.slow
    def test_in_a_program(self, tmp_path: Path, run_python: Callable[..., Any]) -> None:
        (tmp_path / "program.py").write_text(IN_THREADS + "for _ in range(3): in_thread()\n")
        ended = run_python("-m", "gpuprof", "run", "--python", "--out", "r.gpuprof", "program.py")
        assert ended.returncode == 0, ended.stderr
        run = gpuprof.open(tmp_path / "r.gpuprof")
        assert [calls for _, calls in operators_of(run)] == [3]
        assert run.meta["stacks"]["threads"] >= 2

    def test_in_a_forked_child(self, tmp_path: Path, run_python: Callable[..., Any]) -> None:
        (tmp_path / "program.py").write_text(
            IN_THREADS
            + "child = os.fork()\nin_thread()\nif child == 0: os._exit(0)\n"
            + "assert os.waitpid(child, 0)[1] == 0\n"
        )
        ended = run_python("-m", "gpuprof", "run", "--python", "--out", "r.gpuprof", "program.py")
        assert ended.returncode == 0, ended.stderr
        assert operators_of(gpuprof.open(tmp_path / "r.gpuprof")) == [(1, 1), (1, 1)]

    def test_in_one_recording_after_the_other(self) -> None:
        for options in ({"python": True}, {}, {"python": True}):
            run = record(lambda: in_thread(cosine), **options)
            assert announced(run)["aten::cos"] == 1
            assert run.meta.get("notes", []) == []

    def test_where_the_program_takes_the_place_before_it_imports_torch(
        self, tmp_path: Path, run_python: Callable[..., Any]
    ) -> None:
        (tmp_path / "program.py").write_text(
            "import threading\nseen = []\n"
            + "def hook(*event): seen.append(event[1])\nthreading.setprofile(hook)\n"
            + IN_THREADS
            + "in_thread()\nassert len(seen) > 1000\n"
        )
        ended = run_python("-m", "gpuprof", "run", "--python", "--out", "r.gpuprof", "program.py")
        assert ended.returncode == 0, ended.stderr
        run = gpuprof.open(tmp_path / "r.gpuprof")
        assert operators_of(run) == [(1, 1)]


# Where another thread was profiled a moment ago, CPython from 3.12 on calls the function of a new one of the
# end of the call that set it, or from 3.14 on of the next one.
FIRST_EVENTS = ("call",) if sys.version_info < (3, 12) else ("call", "c_return")
if sys.version_info >= (3, 14):
    FIRST_EVENTS += ("c_call",)


def without_late_returns(events: list[Event]) -> list[Event]:
    return list(itertools.dropwhile(lambda event: event[0] == "c_return" in FIRST_EVENTS, events))


class TestBesideAFunctionOfTheProgram:
    def test_both_work(self) -> None:
        def seen_by(watch: Callable[[Callable[[], None]], Any]) -> list[Event]:
            seen: list[Event] = []
            placed: list[object] = []

            def own(frame: Any, event: str, _: Any) -> None:
                seen.append((event, frame.f_code.co_name))
                placed.append(sys.getprofile())

            threading.setprofile(own)
            watch(lambda: in_thread(cosine))
            assert threading.getprofile() is own
            assert all(each is own for each in placed)
            return seen

        runs: list[gpuprof.Run] = []
        in_recording = seen_by(lambda program: runs.append(record(program)))
        alone = seen_by(lambda program: program())
        # Turning the announcements off at the end of the thread is not for the program's function.
        assert without_late_returns(in_recording) == without_late_returns(alone)
        assert ("call", "cosine") in in_recording
        assert announced(runs[0])["aten::cos"] == 1
        assert runs[0].meta.get("notes", []) == []

    def test_one_that_refuses_foreign_code(self, capfd: pytest.CaptureFixture[str]) -> None:
        def strict(frame: Any, _: str, __: Any) -> None:
            file = Path(frame.f_code.co_filename)
            assert file.parent.name not in ("profiler", "autograd")
            assert file.parent != Path(gpuprof.__file__).parent / "record"

        threading.setprofile(strict)
        threading.settrace(strict)  # type: ignore[arg-type]
        try:
            run = record(lambda: in_thread(lambda: None))
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        assert capfd.readouterr().err == ""
        assert run.meta.get("notes", []) == []

    def test_it_may_end_itself(self) -> None:
        calls: list[str] = []

        def once(_: Any, event: str, __: Any) -> None:
            sys.setprofile(None)
            calls.append(event)

        def program() -> None:
            in_thread(cosine)
            assert len(calls) == 1
            assert calls[0] in FIRST_EVENTS

        threading.setprofile(once)
        assert announced(record(program))["aten::cos"] == 1

    def test_one_set_meanwhile_is_left_and_reported(self) -> None:
        def program() -> None:
            in_thread(cosine)
            threading.setprofile(nothing)
            in_thread(cosine)

        run = record(program)
        assert threading.getprofile() is nothing
        assert announced(run)["aten::cos"] == 1
        assert note_codes(run.meta) == ["operators_displaced"]

    def test_one_that_passes_its_events_on_to_ours(self) -> None:
        seen: list[str] = []

        def program() -> None:
            found: Any = threading.getprofile()

            def own(frame: Any, event: str, argument: Any) -> None:
                seen.append(event)
                found(frame, event, argument)

            threading.setprofile(own)
            in_thread(cosine)

        record(program)
        assert len(seen) > 1
        in_thread(cosine)
        assert announced(record(lambda: in_thread(cosine)))["aten::cos"] == 1

    def test_ours_put_back_after_our_time_does_nothing(self) -> None:
        found: list[Any] = []
        record(lambda: found.append(threading.getprofile()))
        threading.setprofile(found[0])
        placed: list[object] = []
        in_thread(lambda: placed.append(sys.getprofile()))
        assert placed == [None]
        assert announced(record(lambda: in_thread(cosine)))["aten::cos"] == 1
        assert threading.getprofile() is found[0]


class TestNewThreads:
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_users_end_in_any_order(self, order: tuple[int, int]) -> None:
        called: list[int] = []
        users = [NewThreads(lambda number=number: called.append(number)) for number in (0, 1)]  # type: ignore[misc]
        threading.setprofile(nothing)
        for user in users:
            user.start()
        in_thread(cosine)
        assert called == [0, 1]
        users[order[0]].stop()
        in_thread(cosine)
        assert called == [0, 1, order[1]]
        users[order[1]].stop()
        assert threading.getprofile() is nothing
        assert not any(user.was_displaced for user in users)

    def test_a_failure_is_not_the_threads(self) -> None:
        def fail() -> None:
            raise OSError

        called: list[str] = []
        users = [NewThreads(fail), NewThreads(lambda: called.append("other"))]
        for user in users:
            user.start()
        in_thread(lambda: called.append("program"))
        for user in users:
            user.stop()
        assert called == ["other", "program"]
        assert [user.failures for user in users] == [{OSError}, set()]

    def test_what_the_programs_function_raises_reaches_the_thread(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def own(_: Any, event: str, __: Any) -> None:
            if event == "call":
                raise KeyError

        raised: list[type[BaseException]] = []
        called: list[str] = []
        monkeypatch.setattr(threading, "excepthook", lambda told: raised.append(told.exc_type))
        threading.setprofile(own)
        threads = NewThreads(lambda: called.append("ours"))
        threads.start()
        in_thread(lambda: called.append("program"))
        threads.stop()
        assert called == ["ours"]
        assert raised == [KeyError]

    def test_a_failure_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        announce = operators._announce

        def fail() -> None:
            if threading.current_thread() is not threading.main_thread():
                raise OSError
            announce()

        ran: list[bool] = []
        monkeypatch.setattr(operators, "_announce", fail)
        run = record(lambda: in_thread(lambda: ran.append(True)))
        assert ran == [True]
        assert [note.values for note in run.notes] == [{"errors": ["OSError"]}]

    def test_what_takes_the_place_comes_into_it_once_more(self) -> None:
        called: list[str] = []
        early, late = NewThreads(lambda: called.append("early")), NewThreads(lambda: called.append("late"))
        early.start()
        threading.setprofile(nothing)
        late.start()
        in_thread(cosine)
        late.stop()
        early.stop()
        assert called == ["early", "late"]
        assert (early.was_displaced, late.was_displaced) == (True, False)
        assert threading.getprofile() is nothing

    def test_stop_without_start(self) -> None:
        threading.setprofile(nothing)
        NewThreads(cosine).stop()
        assert threading.getprofile() is nothing

    def test_nothing_is_kept(self) -> None:
        class Action:
            def __call__(self) -> None:
                """Do nothing."""

        def own(*_: object) -> None:
            """Profile nothing."""

        action = Action()
        kept = [weakref.ref(action), weakref.ref(own)]
        threading.setprofile(own)
        threads = NewThreads(action)
        threads.start()
        in_thread(cosine)
        threads.stop()
        threading.setprofile(None)
        del action, own, threads
        gc.collect()
        assert [each() for each in kept] == [None, None]
