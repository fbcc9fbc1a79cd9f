# SPDX-License-Identifier: Apache-2.0
"""Samples of the Python stacks of all threads, read by a native thread that never takes the interpreter lock.

It reads the interpreter's own structures, so it works with the interpreters whose structures it was built for
(CPython 3.10 to 3.14 on Linux). Before it begins, what it reads of this thread's stack is compared with
Python's own view.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from gpuprof import _native
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.frame_text import frame_naming

INTERVAL_NS = 1_000_000
MOST_TORN = 0.02  # of the samples; more is a note of the run
_FEWEST_TORN = 20  # the fraction of fewer is chance


def why_not() -> Reason | None:
    """Return why stacks cannot be read here; None where they can."""
    if not _native.knows_interpreter():
        return Reason.INTERPRETER_UNKNOWN
    if _native.stack_memory_error():
        return Reason.MEMORY_NOT_READABLE
    frame: FrameType | None = sys._getframe()
    codes = []
    while frame is not None:
        codes.append(id(frame.f_code))
        frame = frame.f_back
    return None if _native.own_stack_codes() == codes else Reason.INTERPRETER_UNKNOWN


class StackSamplerSource:
    """Samples all threads of the interpreter, those of before its start too."""

    def __init__(self, folder: Path, interval_ns: int = INTERVAL_NS) -> None:
        self.notes: list[Note] = []
        self.interval_ns = interval_ns
        self._folder = folder.resolve()
        self._naming = frame_naming()
        self._sampler: _native.StackSampler | None = None

    def start(self) -> SourceStatus:
        """Begin; returns the source's status."""
        failed = self._begin()
        if failed:
            return SourceStatus.off(Reason.FAILED, error=os.strerror(failed))
        _active.add(self)
        return SourceStatus.on(Method.FRAMES, interval_ns=self.interval_ns)

    def stop(self) -> None:
        """Take the last samples and end."""
        _active.discard(self)
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        sampler.stop()
        if sampler.error:
            self.notes.append(note(NoteCode.STACKS_MISSING, reasons=[os.strerror(sampler.error)]))
        counts = sampler.counts
        read = counts["torn"] + counts["samples"]
        if counts["torn"] > max(MOST_TORN * read, _FEWEST_TORN):
            values = {"torn": counts["torn"], "samples": read}
            self.notes.append(Note(NoteCode.STACKS_TORN, values, (os.getpid(),)))

    def pause(self) -> None:
        """End the sampling thread until all that have called it have called `resume`."""
        if self._sampler is not None:
            self._sampler.pause()

    def resume(self) -> None:
        """Begin again after `pause`."""
        if self._sampler is not None:
            self._sampler.resume()

    def begin_in_child(self) -> None:
        """Begin in a forked process, whose samples go into a file of its own."""
        self._sampler = None
        self._begin()

    def _begin(self) -> int:
        path = self._folder / f"{os.getpid()}-{time.monotonic_ns()}.stacks"
        sampler = _native.StackSampler(os.fsencode(path), self.interval_ns, self._naming)
        failed = sampler.error or sampler.start()
        if not failed:
            self._sampler = sampler
        return failed


_active: set[StackSamplerSource] = set()


def _for_each(action: Callable[[StackSamplerSource], None]) -> Callable[[], None]:
    def call() -> None:
        for source in tuple(_active):
            action(source)

    return call


# A fork during a sample would leave the child what its parent's thread held, and Python warns of
# forks in programs with several threads.
os.register_at_fork(
    before=_for_each(StackSamplerSource.pause),
    after_in_parent=_for_each(StackSamplerSource.resume),
    after_in_child=_for_each(StackSamplerSource.begin_in_child),
)
