# SPDX-License-Identifier: Apache-2.0
"""Work that releases the interpreter lock often, next to threads of the program that never wait."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

_QUICK_S = 1e-4


class _Switching:
    """Who wants it at the moment, and the program's own setting."""

    lock = threading.RLock()  # a signal handler may open a run during `_begin`
    wanted = 0
    own_s = 0.0


@contextlib.contextmanager
def quick_switching() -> Iterator[None]:
    """Have threads that compute give the interpreter lock up after 0.1 ms while the block runs.

    Importing what writes a run, writing a small one, or drawing it lets go of the lock some hundred times, in
    calls of DuckDB and of the file system. To get it back from a thread that computes takes
    `sys.getswitchinterval()` each time, by default 5 ms: seconds in all. The program finds its own setting
    again afterwards, and keeps one that it makes meanwhile.
    """
    try:
        _begin()
        yield
    finally:
        _end()


def _begin() -> None:
    # Counted first: what a signal's handler opens in between finds itself the second, and changes nothing.
    with _Switching.lock:
        _Switching.wanted += 1
        if _Switching.wanted == 1:
            _Switching.own_s = sys.getswitchinterval()
            if _Switching.own_s > _QUICK_S:
                sys.setswitchinterval(_QUICK_S)


def _end() -> None:
    with _Switching.lock:
        if _Switching.wanted == 1:
            _restore()
        _Switching.wanted = max(0, _Switching.wanted - 1)


def _restore() -> None:
    # Kept in whole microseconds, of which Python cuts the rest off.
    if _Switching.own_s > _QUICK_S and abs(sys.getswitchinterval() - _QUICK_S) < 1e-6:
        sys.setswitchinterval(_Switching.own_s + 5e-7)


def _restore_in_child() -> None:
    # The thread that would end the block is not in a process that another one forks.
    _Switching.lock = threading.RLock()
    if _Switching.wanted:
        _restore()
        _Switching.wanted = 0


os.register_at_fork(after_in_child=_restore_in_child)
