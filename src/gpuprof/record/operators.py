# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators, through Intel's ITT interface, whose collector the native core is."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof import _native

COLLECTOR_VARIABLE = "INTEL_LIBITTNOTIFY64"


def collector_path() -> Path:
    """Return the shared library that PyTorch's ITT loader is to open."""
    suffix = ".dylib" if sys.platform == "darwin" else ".so"
    return Path(_native.__file__).with_name(f"libgpuprof_core{suffix}")


def offer_collector() -> None:
    """Name our library to PyTorch, which reads the variable while it is imported.

    Nothing is changed where torch was imported before, or where another tool, such as VTune, is named.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault(COLLECTOR_VARIABLE, str(collector_path()))
        if _is_ours(os.environ[COLLECTOR_VARIABLE]):
            _offered.set()


# Whether torch was imported with our library named to it.
_offered = threading.Event()


def _is_ours(path: str) -> bool:
    return Path(path) == collector_path()


class OperatorSource:
    """Has PyTorch announce the operators of this thread, its backward passes, and threads begun later."""

    def __init__(self) -> None:
        self._announcements: Any = None
        self._thread = 0
        self._guard: _ProfilerGuard | None = None
        self._hooked_threads = False
        self.notes: list[str] = []

    def start(self) -> str:
        """Begin; torch is imported. Returns the method in use, or why there is none."""
        reason = self._why_not()
        if reason is not None:
            return f"off: {reason}"
        try:
            self._announcements = _announce()
        except RuntimeError as error:
            return f"off: {str(error).splitlines()[0]}"
        self._thread = threading.get_ident()
        self._guard = _ProfilerGuard()
        self._guard.install()
        self._hook_new_threads()
        return "itt"

    def stop(self) -> None:
        """End the announcements. Those of threads that still run end with their threads."""
        if self._announcements is None:
            return
        if self._hooked_threads and threading.getprofile() is _announce_in_new_thread:
            threading.setprofile(None)  # type: ignore[arg-type]
        guard = self._guard
        if guard is not None:
            guard.remove()
            self.notes += guard.notes
        if threading.get_ident() != self._thread:
            self.notes.append("the recording ended on another thread than it began on: PyTorch goes on announcing there")
        elif guard is None or not guard.suspended:
            self._announcements.__exit__(None, None, None)
        self._announcements = None

    def _why_not(self) -> str | None:
        if _offered.is_set():
            return None
        other = os.environ.get(COLLECTOR_VARIABLE)
        if other is not None and not _is_ours(other):
            return f"another ITT collector is named by {COLLECTOR_VARIABLE}: {other}"
        return "torch was imported before gpuprof"

    def _hook_new_threads(self) -> None:
        if threading.getprofile() is None:
            threading.setprofile(_announce_in_new_thread)
            self._hooked_threads = True


def _announce() -> Any:
    from torch.autograd.profiler import emit_itt

    announcements = emit_itt()
    announcements.__enter__()
    return announcements


def _announce_in_new_thread(*_: object) -> None:
    """Run as the first profiled event of a new thread: PyTorch announces per thread."""
    sys.setprofile(None)
    if _native.is_recording():
        try:
            _announce()
        except RuntimeError:
            return  # the thread has a profiler of its own


class _ProfilerGuard:
    """Lets the measured program use torch.profiler, which refuses to start beside announcements.

    While it does, operators of that thread are left to it.
    """

    _NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")

    def __init__(self) -> None:
        self.suspended = False
        self.notes: list[str] = []
        self._originals: dict[str, Callable[..., Any]] = {}
        self._thread = threading.get_ident()

    def install(self) -> None:
        from torch.autograd import profiler

        self._originals = {name: getattr(profiler, name) for name in self._NAMES if hasattr(profiler, name)}
        for name in self._originals:
            setattr(profiler, name, self._disabling if name == "_disable_profiler" else self._enabling(name))

    def remove(self) -> None:
        from torch.autograd import profiler

        for name, original in self._originals.items():
            setattr(profiler, name, original)

    def _enabling(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]

        def enable(*args: Any, **kwargs: Any) -> Any:
            if not self.suspended and threading.get_ident() == self._thread:
                self._originals["_disable_profiler"]()
                self.suspended = True
                self.notes.append("operators were not recorded while the program used a profiler of PyTorch")
            return original(*args, **kwargs)

        return enable

    def _disabling(self, *args: Any, **kwargs: Any) -> Any:
        result = self._originals["_disable_profiler"](*args, **kwargs)
        if self.suspended and threading.get_ident() == self._thread:
            _announce_with(self._originals["_enable_profiler"])
            self.suspended = False
        return result


def _announce_with(enable_profiler: Callable[..., Any]) -> None:
    from torch.autograd import profiler

    config = profiler.ProfilerConfig(
        profiler.ProfilerState.ITT, False, False, False, False, False, profiler._ExperimentalConfig()
    )
    enable_profiler(config, set())
