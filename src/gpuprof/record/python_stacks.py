# SPDX-License-Identifier: Apache-2.0
"""Samples of Python's stacks, by pyinstrument's low-level sampler.

Python calls the sampler when a function is entered or left; once an interval it calls on to us. What a sample
shows was the stack from the moment when it fell due. Python has one such place for each thread, which other
profilers use too: where it is taken it is left alone, and where somebody takes it, it is given up.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpuprof._native import QuietCall
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.frame_text import CUT_OFF, OWN_FOLDER, builtin_text, frame_text, is_hidden
from gpuprof.record.new_threads import NewThreads
from gpuprof.record.stack_file import LONGEST_STACK, StackFile

INTERVAL_NS = 1_000_000
NO_PYINSTRUMENT = "pyinstrument is not installed"
INSTALL_PYINSTRUMENT = "pip install 'gpuprof-native[python]'"
MOST_KEPT = 100_000

_now: Callable[[], int] = (
    (lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)) if sys.platform == "darwin" else time.monotonic_ns
)


def has_pyinstrument() -> bool:
    """Whether stacks can be sampled here."""
    try:
        from pyinstrument.low_level import stat_profile  # noqa: F401
    except ImportError:
        return False
    return True


class PythonStackSource:
    """Samples the thread that starts it, and every thread that begins while it runs."""

    def __init__(self, folder: Path, interval_ns: int = INTERVAL_NS) -> None:
        self.notes: list[Note] = []
        self.interval_ns = interval_ns
        self.is_on = False  # whether samples are wanted still
        self._folder = str(folder.resolve())
        self._full: set[str] = set()  # why files could not be written
        self._failures: set[type[Exception]] = set()
        self._idle: list[_StackWriter] = []  # of threads that ended
        self._process_id = os.getpid()
        self._placed: object = None
        self._new_threads = NewThreads(self._thread_begins)
        self._thread = threading.get_ident()

    def start(self) -> SourceStatus:
        """Begin; returns the source's status."""
        if not has_pyinstrument():
            return SourceStatus.off(Reason.NO_PYINSTRUMENT)
        if sys.getprofile() is not None:
            return SourceStatus.off(Reason.PROFILER_TAKEN)
        self.is_on = True
        if threading.getprofile() is None:
            self._new_threads.start()
        else:
            self.notes.append(note(NoteCode.STACKS_OF_MAIN_THREAD))
        self._sample_this_thread()
        self._placed = sys.getprofile()
        return SourceStatus.on(Method.PYINSTRUMENT, interval_ns=self.interval_ns)

    def stop(self) -> None:
        """End the samples: on this thread now, on others when they would take the next one."""
        if self.is_on and threading.get_ident() == self._thread:
            if sys.getprofile() is self._placed:
                sys.setprofile(None)
            else:
                self.notes.append(note(NoteCode.STACKS_LOST_PLACE))
        self.is_on = False
        self._new_threads.stop()
        if self._new_threads.was_displaced:
            self.notes.append(note(NoteCode.STACKS_DISPLACED))
        self._placed = None
        failures = self._failures | self._new_threads.failures
        reasons = {*self._full, *(each.__name__ for each in failures)}
        if reasons:
            self.notes.append(note(NoteCode.STACKS_MISSING, reasons=sorted(reasons)))
        self._full.clear()
        self._failures.clear()

    def _thread_begins(self) -> None:
        # A function that the program has set since is already there.
        if self.is_on and sys.getprofile() is None:
            self._sample_this_thread()

    def _sample_this_thread(self) -> None:
        from pyinstrument.low_level.stat_profile import setstatprofile

        take = QuietCall(_ThreadSampler(self).take, OWN_FOLDER, self._failures)
        setstatprofile(take, self.interval_ns / 1e9, timer_type="walltime")

    def failed(self, reason: str) -> None:
        """Take in why a thread's samples could not be written."""
        self._full.add(reason)

    def writer(self) -> _StackWriter:
        """Return one that no thread uses; a forked child's part of the run is its own."""
        if os.getpid() != self._process_id:
            self._idle, self._process_id = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            path = f"{self._folder}/{self._process_id}-{time.monotonic_ns()}-{next(_numbers)}.stacks"
            return _StackWriter(StackFile(path, self._process_id, self.interval_ns), self._idle)


_numbers = itertools.count()


class _StackWriter:
    """Writes the stacks of one thread, and of others after its end; `idle` is where it waits for them."""

    def __init__(self, file: StackFile, idle: list[_StackWriter]) -> None:
        self.file = file
        self.idle = idle
        self._known: dict[int, int] = {}
        self._kept: list[CodeType] = []  # so that the ids in `_known` stay theirs

    def numbers_of(self, frame: FrameType | None) -> list[int]:
        """Return the numbers of the frames that are recorded, the innermost first."""
        known, numbers = self._known, []
        while frame is not None:
            code = frame.f_code
            number = known.get(id(code))
            if number is None:
                number = self._number_of_code(code)
            if number >= 0:
                numbers.append(number)
            frame = frame.f_back
            if len(numbers) >= LONGEST_STACK - 2:
                numbers.append(self.file.number_of(CUT_OFF))
                break
        return numbers

    def _number_of_code(self, code: CodeType) -> int:
        number = -1 if is_hidden(code) else self.file.number_of(frame_text(code))
        if len(self._kept) >= MOST_KEPT:
            # A program that makes functions without end shall not keep them all.
            self._known.clear()
            self._kept.clear()
        self._kept.append(code)
        self._known[id(code)] = number
        return number


class _ThreadSampler:
    """Takes the samples of one thread."""

    _writer: _StackWriter | None = None  # for `__del__` of one that could not be made

    def __init__(self, source: PythonStackSource) -> None:
        self._source = source
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._writer = None
        self._last_ns = _now()

    def __del__(self) -> None:
        # The thread has ended, or somebody has taken its place for profilers.
        if self._writer is not None:
            self._writer.idle.append(self._writer)

    def take(self, frame: FrameType | None, event: str, argument: Any) -> None:
        """Write down the stack, which pyinstrument asks for once an interval.

        Whatever fails here is kept from the program by QuietCall, which knows our files; so all that is
        called is theirs or native. What a signal handler of the program raises reaches the program.
        """
        now = _now()
        if not self._source.is_on:
            sys.setprofile(None)
            return
        if os.getpid() != self._process_id:
            self._begin()
            return
        writer = self._writer
        if writer is None:
            writer = self._source.writer()
            writer.file.begin_thread(threading.get_native_id())
            self._writer = writer
        if event == "call" and frame is not None:
            frame = frame.f_back  # the time was spent in the caller
        numbers = writer.numbers_of(frame)
        if event in ("c_return", "c_exception"):
            text = builtin_text(argument)
            if not text.startswith("gpuprof."):
                numbers.insert(0, writer.file.number_of(text))
        numbers.reverse()
        writer.file.add_sample(now, now - self._last_ns, numbers)
        self._last_ns = now
        if writer.file.failed is not None:
            self._source.failed(writer.file.failed)
