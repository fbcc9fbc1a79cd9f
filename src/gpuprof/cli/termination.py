# SPDX-License-Identifier: Apache-2.0
"""SIGTERM is handled as Ctrl-C in commands that measure for long, so that they keep their results."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

EXIT_TERMINATED = 143  # as a shell reports for a program killed by SIGTERM


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt on SIGTERM, which CI and `timeout` send; yield the received signals."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, note)
    except ValueError:  # not in the main thread, which handles signals
        yield came
        return
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
