# SPDX-License-Identifier: Apache-2.0
"""What SIGTERM, which CI and `timeout` send, does to a command."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

EXIT_TERMINATED = 143  # as a shell reports for a program killed by SIGTERM


@contextlib.contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not in the main thread, which handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt on SIGTERM; yield the received signals."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    with _handled(note):
        yield came


@contextlib.contextmanager
def exiting_when_terminated() -> Iterator[None]:
    """Exit with 143 on SIGTERM, by an exception: what is open is closed, as after Ctrl-C."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(EXIT_TERMINATED)

    with _handled(end):
        yield


@contextlib.contextmanager
def named_when_terminated(run: Path) -> Iterator[None]:
    """On SIGTERM while a run is written, print how it is completed, and end this process at once.

    Another thread does so: native code, which writes the run, lets no handler of Python run until it returns.
    """
    # One that is ignored, or handled by somebody else, stays.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(target=_end_when_terminated, args=(reader, _line(run)), daemon=True)
    watcher.start()
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler, nothing is written to the pipe
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(former)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _end_when_terminated(reader: int, line: bytes) -> None:
    while numbers := os.read(reader, 64):
        if signal.SIGTERM in numbers:
            with contextlib.suppress(OSError):
                os.write(2, line)
            os._exit(EXIT_TERMINATED)


def _line(run: Path) -> bytes:
    from gpuprof.text.sanitize import escape_text

    command = f"gpuprof summary {shlex.quote(str(run))}"
    text = f"terminated before {run} was completely written; this completes it: {command}"
    return f"gpuprof: {escape_text(text)}\n".encode(errors="replace")
