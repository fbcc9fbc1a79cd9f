# SPDX-License-Identifier: Apache-2.0
"""Making room for the measured program's own profiler.

PyTorch lets one profiler be active on a thread and refuses the next with an error. That error must never
be the program's: when it begins a profiler of its own, ours steps back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


class ProfilerGuard:
    """Calls `suspend` before the program's profiler begins and `resume` after it ended.

    Both happen on the thread that installed the guard; profilers of other threads do not meet ours.
    """

    def __init__(self, suspend: Callable[[], None], resume: Callable[[], None] | None) -> None:
        self.suspended = False
        self._suspend = suspend
        self._resume = resume
        self._originals: dict[str, Callable[..., Any]] = {}
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Put the guard before the functions through which every profiler of PyTorch begins and ends."""
        from torch.autograd import profiler

        self._originals = {name: getattr(profiler, name) for name in _NAMES if hasattr(profiler, name)}
        for name in self._originals:
            setattr(profiler, name, self._ending if name == "_disable_profiler" else self._beginning(name))

    def remove(self) -> None:
        """Put the functions back."""
        from torch.autograd import profiler

        for name, original in self._originals.items():
            setattr(profiler, name, original)
        self._originals = {}

    def _beginning(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]

        def begin(*args: Any, **kwargs: Any) -> Any:
            if not self.suspended and threading.get_ident() == self._thread:
                self.suspended = True
                self._unguarded(self._suspend)
            return original(*args, **kwargs)

        return begin

    def _ending(self, *args: Any, **kwargs: Any) -> Any:
        result = self._originals["_disable_profiler"](*args, **kwargs)
        if self.suspended and self._resume is not None and threading.get_ident() == self._thread:
            self._unguarded(self._resume)
            self.suspended = False
        return result

    def _unguarded(self, action: Callable[[], None]) -> None:
        """Run our own use of the guarded functions."""
        from torch.autograd import profiler

        guarded = {name: getattr(profiler, name) for name in self._originals}
        for name, original in self._originals.items():
            setattr(profiler, name, original)
        try:
            action()
        finally:
            for name, guard in guarded.items():
                setattr(profiler, name, guard)
