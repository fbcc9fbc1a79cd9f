# SPDX-License-Identifier: Apache-2.0
"""Making room for the measured program's own profilers.

PyTorch lets one profiler be active on a thread and refuses the next with an error. That error must never
be the program's: where it begins a profiler on a thread on which ours is active, ours steps back.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

# The functions through which the profilers of PyTorch begin and end, by the modules that call them.
_BEGINNINGS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_ENDINGS = ("_disable_profiler", "_disable_profiler_legacy")
_MODULES = ("torch.autograd.profiler", "torch.autograd.profiler_legacy")


class ProfilerGuard:
    """Calls `suspend` before a profiler of the program begins, and `resume` after the last one ended.

    `suspend` tells whether ours was active on the calling thread; only then will `resume` be called,
    on that thread.
    """

    def __init__(self, suspend: Callable[[], bool], resume: Callable[[], None]) -> None:
        self._suspend = suspend
        self._resume = resume
        self._originals: list[tuple[ModuleType, str, Callable[..., Any]]] = []
        self._state = threading.local()
        self._ours = threading.local()

    def install(self) -> None:
        """Put the guard before PyTorch's functions; harmless when it is there already."""
        if self._originals:
            return
        for module in map(importlib.import_module, _MODULES):
            for name in (*_BEGINNINGS, *_ENDINGS):
                original = getattr(module, name, None)
                if original is not None:
                    self._originals.append((module, name, original))
                    setattr(module, name, self._guarded(name, original))

    def remove(self) -> None:
        """Put the functions back."""
        for module, name, original in self._originals:
            setattr(module, name, original)
        self._originals = []

    def unguarded(self, action: Callable[[], Any]) -> Any:
        """Run our own use of the guarded functions."""
        self._ours.active = True
        try:
            return action()
        finally:
            self._ours.active = False

    def _guarded(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        step = self._end if name in _ENDINGS else self._begin

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._ours, "active", False):
                return original(*args, **kwargs)
            return step(name, original, args, kwargs)

        return guarded

    def _begin(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        state = self._state.__dict__
        if self.unguarded(self._suspend):
            state["suspended"] = True
        result = original(*args, **kwargs)
        if name != "_prepare_profiler":
            state["depth"] = state.get("depth", 0) + 1
        return result

    def _end(self, _: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        state = self._state.__dict__
        state["depth"] = max(0, state.get("depth", 0) - 1)
        if state["depth"] == 0 and state.pop("suspended", False):
            self.unguarded(self._resume)
        return result
