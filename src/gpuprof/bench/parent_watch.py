# SPDX-License-Identifier: Apache-2.0
"""Ending a launch whose parent is gone, however it went: nobody would take its results, or stop it."""

from __future__ import annotations

import fcntl
import os
import signal
import threading


def end_with_parent(pipe: int) -> None:
    """Kill this process's group once the other end of `pipe` is closed; nothing may be written to it.

    On Linux the kernel does it, even while the model is in a loop that never lets Python run.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=_wait_for_the_end, args=(pipe,), daemon=True).start()
        return
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_closed(pipe):  # before the kernel was asked to look
        os.killpg(0, signal.SIGKILL)


def _is_closed(pipe: int) -> bool:
    os.set_blocking(pipe, False)
    try:
        return not os.read(pipe, 1)
    except BlockingIOError:
        return False


def _wait_for_the_end(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)
