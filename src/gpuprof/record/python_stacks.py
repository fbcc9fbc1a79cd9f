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

from gpuprof.record.frame_text import builtin_text, frame_text, is_hidden
from gpuprof.record.stack_file import LONGEST_STACK, StackFile

INTERVAL_NS = 1_000_000
NO_PYINSTRUMENT = "pyinstrument is not installed: pip install 'gpuprof-native[python]'"
CUT_OFF = "(outer frames left out)"
_TAKEN = "another profiler held Python's place for one on the main thread"
_LOST = (
    "the program used Python's place for profilers itself, or raised from a signal handler: "
    "its main thread has stack samples until then"
)

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
        self.notes: list[str] = []
        self._folder = str(folder.resolve())
        self._interval_ns = interval_ns
        self._is_on = False
        self._failures: set[str] = set()
        self._placed: object = None
        self._thread = threading.get_ident()

    def start(self) -> str:
        """Begin; returns the method in use, or why there is none."""
        if not has_pyinstrument():
            return f"off: {NO_PYINSTRUMENT}"
        if sys.getprofile() is not None:
            self.notes.append(f"no stack samples: {_TAKEN}")
            return f"off: {_TAKEN}"
        self._is_on = True
        if threading.getprofile() is None:
            threading.setprofile(self._thread_begins)
        else:
            self.notes.append(
                "the program watches its threads itself: only the main thread's stacks are sampled"
            )
        self._sample_this_thread()
        self._placed = sys.getprofile()
        return f"pyinstrument, every {self._interval_ns / 1e6:g} ms"

    def stop(self) -> None:
        """End the samples: on this thread now, on others when they would take the next one."""
        was_on, self._is_on = self._is_on, False
        # Bound methods are made anew each time they are named.
        if threading.getprofile() == self._thread_begins:
            threading.setprofile(None)
        if was_on and threading.get_ident() == self._thread:
            if sys.getprofile() is self._placed:
                sys.setprofile(None)
            else:
                self.notes.append(_LOST)
        self._placed = None
        self.notes += [f"stack samples are missing: {reason}" for reason in sorted(self._failures)]
        self._failures.clear()

    def _thread_begins(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        if self._is_on:
            self._sample_this_thread()
        else:
            sys.setprofile(None)

    def _sample_this_thread(self) -> None:
        from pyinstrument.low_level.stat_profile import setstatprofile

        sampler = _ThreadSampler(self, self._folder, self._interval_ns)
        setstatprofile(sampler.take, self._interval_ns / 1e9, timer_type="walltime")

    def is_on(self) -> bool:
        """Whether samples are wanted still."""
        return self._is_on

    def failed(self, reason: str) -> None:
        """Take in why a thread's samples could not be written."""
        self._failures.add(reason)


_numbers = itertools.count()


class _ThreadSampler:
    """Takes the samples of one thread. Nothing in `take` fails by itself.

    What is raised there comes from a signal handler of the program, and goes on to the program.
    """

    def __init__(self, source: PythonStackSource, folder: str, interval_ns: int) -> None:
        self._source = source
        self._folder = folder
        self._interval_ns = interval_ns
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._file: StackFile | None = None
        self._known: dict[Any, int] = {}
        self._kept: list[CodeType] = []  # so that the ids in `_known` stay theirs
        self._last_ns = _now()

    def take(self, frame: FrameType | None, event: str, argument: Any) -> None:
        """Write down the stack, which pyinstrument asks for once an interval."""
        now = _now()
        if not self._source.is_on():
            sys.setprofile(None)
            return
        if os.getpid() != self._process_id:
            # A forked child's part of the run is its own.
            self._begin()
            return
        if event == "call" and frame is not None:
            frame = frame.f_back  # the time was spent in the caller
        numbers = self._numbers_of(frame)
        if event in ("c_return", "c_exception"):
            text = builtin_text(argument)
            if not text.startswith("gpuprof."):
                numbers.insert(0, self._number(text))
        numbers.reverse()
        if self._file is None:
            self._file = self._new_file()
        self._file.add_sample(now, now - self._last_ns, numbers)
        self._last_ns = now
        if self._file.failed is not None:
            self._source.failed(self._file.failed)

    def _numbers_of(self, frame: FrameType | None) -> list[int]:
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
                numbers.append(self._number(CUT_OFF))
                break
        return numbers

    def _number_of_code(self, code: CodeType) -> int:
        number = -1 if is_hidden(code) else self._number(frame_text(code))
        self._kept.append(code)
        self._known[id(code)] = number
        return number

    def _number(self, text: str) -> int:
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = len(self._known)
            if self._file is None:
                self._file = self._new_file()
            self._file.add_frame(number, text)
        return number

    def _new_file(self) -> StackFile:
        thread_id = threading.get_native_id()
        path = f"{self._folder}/{self._process_id}-{time.monotonic_ns()}-{next(_numbers)}.stacks"
        told = {
            "process_id": self._process_id,
            "thread_id": thread_id,
            "interval_ns": self._interval_ns,
        }
        return StackFile(path, told)
