# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators: announced through Intel's ITT interface, whose collector the native core is.

Where PyTorch was imported before it could find the collector, torch.profiler records them instead.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Protocol

from gpuprof import _native
from gpuprof.record.collector import why_not_collecting
from gpuprof.record.profiler_guard import ProfilerGuard

_STEPPED_BACK = "operators were not recorded while the program used a profiler of PyTorch"


class _Method(Protocol):
    """One way to get at the operators. `begin` raises RuntimeError where another profiler is active."""

    resumable: bool

    def begin(self) -> None: ...
    def end(self) -> None: ...


class OperatorSource:
    """Records the operators of this thread, its backward passes, and threads begun later."""

    def __init__(self) -> None:
        self._method: _Method | None = None
        self._guard: ProfilerGuard | None = None
        self._thread = 0
        self.notes: list[str] = []

    def start(self) -> str:
        """Begin; torch is imported. Returns the method in use, or why there is none."""
        obstacle = why_not_collecting()
        method: _Method = _Announcements() if obstacle is None else _TorchProfiler()
        try:
            method.begin()
        except RuntimeError as error:
            return f"off: {str(error).splitlines()[0]}"
        self._method = method
        self._thread = threading.get_ident()
        self._guard = ProfilerGuard(self._step_back, method.begin if method.resumable else None)
        self._guard.install()
        return "itt" if obstacle is None else f"torch.profiler, at a higher cost: {obstacle}"

    def stop(self) -> None:
        """End. Announcements of threads that still run end with their threads."""
        if self._method is None or self._guard is None:
            return
        self._guard.remove()
        if threading.get_ident() != self._thread:
            self.notes.append("the recording ended on another thread than it began on")
        elif not self._guard.suspended:
            self._method.end()
        self._method = None

    def _step_back(self) -> None:
        if _STEPPED_BACK not in self.notes:
            self.notes.append(_STEPPED_BACK)
        if self._method is not None:
            self._method.end()


class _Announcements:
    resumable = True

    def __init__(self) -> None:
        self._active: Any = None
        self._hooked_threads = False

    def begin(self) -> None:
        self._active = _announce()
        # PyTorch announces per thread, so a new thread turns it on for itself, before its first line.
        if threading.getprofile() is None:
            threading.setprofile(_announce_in_new_thread)
            self._hooked_threads = True

    def end(self) -> None:
        if self._hooked_threads and threading.getprofile() is _announce_in_new_thread:
            threading.setprofile(None)
            self._hooked_threads = False
        self._active.__exit__(None, None, None)


def _announce() -> Any:
    from torch.autograd.profiler import emit_itt

    announcements = emit_itt()
    announcements.__enter__()
    return announcements


def _announce_in_new_thread(*_: object) -> None:
    sys.setprofile(None)
    if _native.is_recording():
        try:
            _announce()
        except RuntimeError:
            return  # the thread has a profiler of its own


class _TorchProfiler:
    resumable = False  # what it holds is handed over once

    def __init__(self) -> None:
        self._profiler: Any = None
        self._realtime_minus_monotonic_ns = 0
        self._process_id = os.getpid()

    def begin(self) -> None:
        from torch.autograd.profiler import profile
        from torch.profiler import ProfilerActivity, supported_activities

        if ProfilerActivity.CPU not in supported_activities():
            raise RuntimeError("this build of torch has no profiler for the CPU")
        clock = _native.clock_info()
        self._realtime_minus_monotonic_ns = clock["realtime_ns"] - clock["monotonic_ns"]
        profiler = profile(use_kineto=True)
        profiler.__enter__()
        self._profiler = profiler

    def end(self) -> None:
        import numpy as np

        if os.getpid() != self._process_id:
            return  # the profiler's threads did not come along into the forked child
        self._profiler.__exit__(None, None, None)
        events = [event for event in self._profiler.kineto_results.events() if _is_operator(event)]
        places: dict[str, int] = {}
        names = [places.setdefault(event.name(), len(places)) for event in events]
        starts = np.array([event.start_ns() for event in events], dtype=np.int64)
        _native.add_operators(
            np.array([event.device_resource_id() for event in events], dtype=np.uint32),
            list(places),
            np.array(names, dtype=np.int32),
            starts - self._realtime_minus_monotonic_ns,
            np.array([event.duration_ns() for event in events], dtype=np.int64),
        )
        self._profiler = None


def _is_operator(event: Any) -> bool:
    return event.device_type().name == "CPU" and event.duration_ns() >= 0 and not event.is_async()
