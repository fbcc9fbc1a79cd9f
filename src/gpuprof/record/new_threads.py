# SPDX-License-Identifier: Apache-2.0
"""What threads do for us at their beginning, before their first line.

Python has one place for that, `threading.setprofile`, which belongs to the program: what the program had put
there is set in each new thread as if nothing else were there, and comes back at the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from gpuprof._native import QuietCall
from gpuprof.record.frame_text import OWN_FOLDER
from gpuprof.record.pauses import own_work


class NewThreads:
    """Has each thread that begins from `start` to `stop` call `action`, which may set its profiler."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.was_displaced = False  # threads may have begun without the action
        self.failures: set[type[Exception]] = set()
        self._action = action

    def start(self) -> None:
        """Begin, whatever function is set."""
        self.was_displaced = False
        self.failures.clear()
        _place.take()
        _place.users = (*_place.users, self)

    def stop(self) -> None:
        """End; harmless where it has not begun."""
        if self in _place.users:
            self.was_displaced |= _place.is_lost()
            self.failures |= _place.failures
            _place.users = tuple(user for user in _place.users if user is not self)
            _place.leave_if_unused()

    def begin_thread(self) -> None:
        """Call the action in a new thread, which its failures do not reach."""
        try:
            with own_work():
                self._action()
        except Exception as error:
            self.failures.add(type(error))


class _Hook:
    """What Python calls at the first event of a thread: us, and the function that held the place before."""

    def __init__(self, former: Any) -> None:
        self._former = former
        self._function_id = 0

    def function(self, failures: set[type[Exception]]) -> QuietCall:
        """Return what takes the place."""
        made = QuietCall(self._call, OWN_FOLDER, failures)
        # Not the function itself: the two would keep each other alive.
        self._function_id = id(made)
        return made

    def _call(self, frame: FrameType, event: str, argument: Any) -> None:
        # A function that the program puts in our place may pass its own events on to us.
        if id(sys.getprofile()) == self._function_id:
            self._begin_thread()
        if self._former is not None:
            self._former(frame, event, argument)

    def _begin_thread(self) -> None:
        sys.setprofile(self._former)
        # The program may have put back what it once found, after our time.
        if id(_place.function) == self._function_id:
            for user in _place.users:
                user.begin_thread()


class _Place:
    """`threading.setprofile`, as far as it is ours."""

    def __init__(self) -> None:
        self.users: tuple[NewThreads, ...] = ()
        self.function: QuietCall | None = None
        self.failures: set[type[Exception]] = set()
        self._former: Any = None

    def is_lost(self) -> bool:
        """Whether the program has put something else in our place."""
        return threading.getprofile() is not self.function

    def take(self) -> None:
        """Have our function in the place."""
        if self.function is not None and not self.is_lost():
            return
        for user in self.users:
            user.was_displaced = True
        self._former = threading.getprofile()
        self.failures = set()
        self.function = _Hook(self._former).function(self.failures)
        threading.setprofile(self.function)

    def leave_if_unused(self) -> None:
        """Give back what was found, unless the program has put something else there."""
        if self.users:
            return
        if not self.is_lost():
            threading.setprofile(self._former)
        self.function = self._former = None


_place = _Place()
