# SPDX-License-Identifier: Apache-2.0
"""A lock that a forked child can take, although the parent's thread that held it does not exist there."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A `threading.Lock` for `with` statements. In a forked child only the forking thread still holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()

    def begin_in_child(self) -> None:
        """Replace a lock that another thread held, or was about to take or release."""
        if self._holder != threading.get_ident():
            self._lock, self._holder = threading.Lock(), None


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _begin_in_child() -> None:
    for lock in tuple(_locks):
        lock.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
