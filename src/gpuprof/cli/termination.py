# SPDX-License-Identifier: Apache-2.0
"""Commands that measure for long keep what they have, however they are ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

EXIT_TERMINATED = 143  # what a shell reports for a program that SIGTERM ended


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[list[int]]:
    """Let SIGTERM, by which CI and `timeout` end a program, keep what was measured; yields when it came."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, note)
    except ValueError:  # not in the main thread: signals are somebody else's there
        yield came
        return
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
