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
        _pauses.remove(sampler)
        if sampler.error:
            self.notes.append(note(NoteCode.STACKS_MISSING, reasons=[os.strerror(sampler.error)]))
        counts = sampler.counts
        read = counts["torn"] + counts["samples"]
        if counts["torn"] > max(MOST_TORN * read, _FEWEST_TORN):
            values = {"torn": counts["torn"], "samples": read}
            self.notes.append(Note(NoteCode.STACKS_TORN, values, (os.getpid(),)))

    def pause(self) -> None:
        """End the sampling thread until `resume`."""
        if self._sampler is not None:
            self._sampler.pause()

    def resume(self) -> None:
        """Begin again after `pause`."""
        if self._sampler is not None:
            self._sampler.resume()

    def begin_in_child(self) -> None:
        """Begin in a forked process, whose samples go into a file of its own."""
        if self._sampler is not None:
            _pauses.remove(self._sampler)
        self._sampler = None
        self._begin()

    def _begin(self) -> int:
        path = self._folder / f"{os.getpid()}-{time.monotonic_ns()}.stacks"
        sampler = _native.StackSampler(os.fsencode(path), self.interval_ns, self._naming)
        if sampler.error:
            return sampler.error
        _pauses.add(sampler)
        failed = sampler.start()
        if failed:
            _pauses.remove(sampler)
        else:
            self._sampler = sampler
        return failed


_active: set[StackSamplerSource] = set()
_pauses = _native.ForkPauses()


def _begin_in_child() -> None:
    for source in tuple(_active):
        source.begin_in_child()


os.register_at_fork(before=_pauses.pause, after_in_parent=_pauses.resume, after_in_child=_begin_in_child)
