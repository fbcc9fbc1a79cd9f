# SPDX-License-Identifier: Apache-2.0
"""Samples of the Python stacks of all threads, read by a native thread that never takes the interpreter lock.

It reads the interpreter's own structures, so it works with the interpreters whose structures it was built for
(CPython 3.10 to 3.13 on Linux). Before it begins, what it reads of this thread's stack is compared with what
Python says.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from gpuprof import _native
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.frame_text import frame_naming

INTERVAL_NS = 1_000_000


def why_not() -> Reason | None:
    """Return why stacks cannot be read here; None where they can."""
    if not _native.knows_interpreter:
        return Reason.INTERPRETER_UNKNOWN
    if _native.stack_memory_error():
        return Reason.MEMORY_NOT_READABLE
    frame, codes = sys._getframe(), []
    while frame is not None:
        codes.append(id(frame.f_code))
        frame = frame.f_back  # type: ignore[assignment]
    return None if _native.own_stack_codes() == codes else Reason.INTERPRETER_UNKNOWN


class StackSamplerSource:
    """Samples all threads of the interpreter, those of before its start too."""

    def __init__(self, folder: Path, interval_ns: int = INTERVAL_NS) -> None:
        self.notes: list[Note] = []
        self.interval_ns = interval_ns
        self._folder = folder.resolve()
        self._naming = frame_naming()
        self._sampler: _native.StackSampler | None = None
        self._process_id = os.getpid()

    def start(self) -> SourceStatus:
        """Begin; returns the source's status."""
        failed = self._start_here()
        if failed:
            return SourceStatus.off(Reason.FAILED, error=os.strerror(failed))
        os.register_at_fork(after_in_child=self._go_on_in_fork)
        return SourceStatus.on(Method.FRAMES, interval_ns=self.interval_ns)

    def stop(self) -> None:
        """Take the last samples and end."""
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        sampler.stop()
        if sampler.error:
            self.notes.append(note(NoteCode.STACKS_MISSING, reasons=[os.strerror(sampler.error)]))
        counts = sampler.counts
        if counts["torn"]:
            self.notes.append(
                note(NoteCode.STACKS_TORN, torn=counts["torn"], samples=counts["torn"] + counts["samples"])
            )

    def _start_here(self) -> int:
        self._process_id = os.getpid()
        path = self._folder / f"{self._process_id}-{time.monotonic_ns()}.stacks"
        sampler = _native.StackSampler(os.fspath(path), self.interval_ns, self._naming)
        failed = sampler.error or sampler.start()
        if not failed:
            self._sampler = sampler
        return failed

    def _go_on_in_fork(self) -> None:
        # The sampling thread exists in the parent alone.
        if self._sampler is None or os.getpid() == self._process_id:
            return
        self._sampler.forget()
        self._sampler = None
        with contextlib.suppress(OSError):
            self._start_here()
