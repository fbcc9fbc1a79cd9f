# SPDX-License-Identifier: Apache-2.0
"""Making room for the measured program's own profilers.

PyTorch lets one profiler be active on a thread and refuses the next with an error, and CUPTI lets one tool
trace a process. Neither must ever be the program's trouble: where it begins a profiler, ours steps back.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# The functions through which the profilers of PyTorch begin and end, by the modules that call them.
_BEGINNINGS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_ENDINGS = ("_disable_profiler", "_disable_profiler_legacy")
_MODULES = ("torch.autograd.profiler", "torch.autograd.profiler_legacy")


class ProfilerGuard:
    """Calls `suspend` before a profiler of the program begins, and `resume` after the last one ended.

    `suspend` returns whether ours was active; only then will `resume` be called, on the same thread. All
    guards share one set of wrapped functions, so that they can come and go in any order.
    """

    def __init__(self, suspend: Callable[[], bool], resume: Callable[[], None]) -> None:
        self._suspend = suspend
        self._resume = resume
        self._state = threading.local()

    def install(self) -> None:
        """Put the guard before PyTorch's functions; harmless when it is there already."""
        if self not in _installed:
            # A profiler that was counted as it began may have ended while no guard was installed.
            self._state = threading.local()
            _installed.append(self)
            _wrap_functions()

    def remove(self) -> None:
        """Put the functions back, unless another guard is there."""
        if self in _installed:
            _installed.remove(self)
        if not _installed:
            _unwrap_functions()

    def unguarded(self, action: Callable[[], Any]) -> Any:
        """Run our own use of the guarded functions."""
        _ours.active = True
        try:
            return action()
        finally:
            _ours.active = False

    def begins(self) -> None:
        """Step back before a profiler begins."""
        if self.unguarded(self._suspend):
            self._state.suspended = True

    def has_begun(self, name: str) -> None:
        """Count a profiler that began."""
        if name != "_prepare_profiler":
            self._state.depth = getattr(self._state, "depth", 0) + 1

    def has_ended(self) -> None:
        """Continue after the last profiler of this thread ended."""
        state = self._state.__dict__
        state["depth"] = max(0, state.get("depth", 0) - 1)
        if state["depth"] == 0 and state.pop("suspended", False):
            self.unguarded(self._resume)

    def has_failed(self) -> None:
        """Continue after a start or a stop that raised, unless a profiler is still active here."""
        from torch.autograd import _profiler_enabled

        if not _profiler_enabled():
            self._state.depth = 1
            self.has_ended()


_installed: list[ProfilerGuard] = []
_originals: list[tuple[ModuleType, str, Callable[..., Any]]] = []
_ours = threading.local()


def _wrap_functions() -> None:
    if _originals:
        return
    for module in map(importlib.import_module, _MODULES):
        for name in (*_BEGINNINGS, *_ENDINGS):
            original = getattr(module, name, None)
            if original is not None:
                _originals.append((module, name, original))
                setattr(module, name, _guarded(name, original))


def _unwrap_functions() -> None:
    for module, name, original in _originals:
        setattr(module, name, original)
    _originals.clear()


def _guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if getattr(_ours, "active", False):
            return original(*args, **kwargs)
        guards = list(_installed)
        for guard in guards if name not in _ENDINGS else ():
            guard.begins()
        try:
            result = original(*args, **kwargs)
        except BaseException:
            for guard in guards:
                guard.has_failed()
            raise
        for guard in guards:
            if name in _ENDINGS:
                guard.has_ended()
            else:
                guard.has_begun(name)
        return result

    return guarded


# ---- Kineto, the library of torch.profiler ----------------------------------------------

_LOG_LEVEL = "KINETO_LOG_LEVEL"


@contextlib.contextmanager
def quiet_kineto() -> Iterator[None]:
    """Have Kineto write no log among the program's output; it reads the level where it begins."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)
