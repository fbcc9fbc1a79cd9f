# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators: announced through Intel's ITT interface, whose collector the native core is.

Where PyTorch was imported before it could find the collector, torch.profiler records them instead.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuprof import _native
from gpuprof.record.collector import COLLECTOR_VARIABLE, is_collecting, other_collector
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceState, SourceStatus, note
from gpuprof.record.new_threads import NewThreads
from gpuprof.record.profiler_guard import ProfilerGuard, quiet_kineto

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_ENGINE_PREFIX = "autograd::engine::evaluate_function: "


# The announcements of each thread on which we turned them on, and on which they still are.
_of_thread = threading.local()
# Threads that may have them on: the guard stays as long as one of them lives, even after a recording.
_announcing: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class _Method(Protocol):
    """One way to get at the operators. `begin` raises RuntimeError where another profiler is active."""

    def begin(self) -> None: ...
    def end(self) -> bool: ...
    def resume(self) -> None: ...


class OperatorSource:
    """Records the operators of this thread, its backward passes, and threads begun later."""

    def __init__(self) -> None:
        self._method: _Method | None = None
        self._thread = 0
        # PyTorch announces per thread, so a new thread turns it on for itself, before its first line.
        self._new_threads = NewThreads(_announce_in_new_thread)
        self.notes: list[Note] = []

    def start(self) -> SourceStatus:
        """Begin; torch is imported. Returns the source's status."""
        is_announced = is_collecting()
        method: _Method = _Announcements() if is_announced else _TorchProfiler()
        try:
            _guard.unguarded(method.begin)
        except RuntimeError as error:
            if is_announced and _program_announces():
                return SourceStatus.on(Method.ITT_OF_PROGRAM)
            return SourceStatus.off(Reason.FAILED, error=str(error).splitlines()[0])
        self._method = method
        self._thread = threading.get_ident()
        _current.source = self
        _guard.install()
        if is_announced:
            self._new_threads.start()
        return SourceStatus.on(Method.ITT) if is_announced else _on_profiler()

    def stop(self) -> None:
        """End. Announcements of other threads that still run end with them, or with their next profiler."""
        method, self._method = self._method, None
        if method is None:
            return
        self._stop_new_threads()
        if threading.get_ident() == self._thread:
            _guard.unguarded(method.end)
        else:
            self.notes.append(note(NoteCode.OTHER_THREAD))
        _current.source = None
        _remove_guard_if_idle()

    def step_back(self) -> bool:
        """Make room on this thread; returns whether there was anything to take away."""
        if self._method is None or not self._method.end():
            return False
        if (stepped_back := note(NoteCode.OPERATORS_STEPPED_BACK)) not in self.notes:
            self.notes.append(stepped_back)
        return True

    def resume(self) -> None:
        """Continue after the program's profiler ended."""
        if self._method is not None:
            self._method.resume()

    def _stop_new_threads(self) -> None:
        self._new_threads.stop()
        if self._new_threads.was_displaced:
            self.notes.append(note(NoteCode.OPERATORS_DISPLACED))
        if self._new_threads.failures:
            errors = sorted(each.__name__ for each in list(self._new_threads.failures))
            self.notes.append(note(NoteCode.OPERATORS_FAILED, errors=errors))


def _on_profiler() -> SourceStatus:
    path = other_collector()
    if path is None:
        return SourceStatus.on(Method.TORCH_PROFILER, Reason.TORCH_IMPORTED_FIRST)
    named = {"variable": COLLECTOR_VARIABLE, "path": path}
    return SourceStatus(SourceState.ON, Method.TORCH_PROFILER, Reason.OTHER_COLLECTOR, named)


class _ActiveOperators:
    """The source of the recording that is active, if any."""

    source: OperatorSource | None = None


_current = _ActiveOperators()


def _suspend() -> bool:
    source = _current.source
    if source is not None:
        return source.step_back()
    _silence_thread()
    _remove_guard_if_idle()
    return False


def _resume() -> None:
    if _current.source is not None:
        _current.source.resume()


_guard = ProfilerGuard(_suspend, _resume)


def _program_announces() -> bool:
    from torch._C._autograd import _profiler_type
    from torch._C._profiler import ActiveProfilerType

    return bool(_profiler_type() == ActiveProfilerType.ITT)


def _remove_guard_if_idle() -> None:
    if not any(thread.is_alive() for thread in _announcing):
        _guard.remove()


class _Announcements:
    def begin(self) -> None:
        _silence_thread()  # what a recording that ended elsewhere left on
        _announce()

    def end(self) -> bool:
        return _silence_thread()

    def resume(self) -> None:
        _announce()


@functools.cache
def _c10() -> str:
    """Return the path of the library that PyTorch's profiler keeps the state of a thread in."""
    import torch

    suffix = "dylib" if sys.platform == "darwin" else "so"
    return str(Path(torch.__file__).parent / "lib" / f"libc10.{suffix}")


class _ThreadAnnouncements:
    """What makes PyTorch announce on one thread; ended with the thread at the latest.

    A thread's local objects go while it can still run Python. PyTorch looks later whether anything was
    left on, and would complain on the program's standard error.
    """

    def __init__(self) -> None:
        from torch.autograd.profiler import emit_itt

        self._emit = emit_itt()
        self._emit.__enter__()
        # A daemon thread ends with the process, and with them on.
        self._state = _native.HeldProfilerState(_c10())
        self._is_on = True
        self._thread = threading.get_ident()

    def end(self) -> None:
        # A forked child clears what the threads left that did not come along.
        if self._is_on and threading.get_ident() == self._thread:
            self._is_on = False
            self._emit.__exit__(None, None, None)
            self._state.release()

    def __del__(self) -> None:
        # The interpreter may be ending, and PyTorch with it: then an error cannot be reported.
        with contextlib.suppress(Exception):
            self.end()


def _announce() -> None:
    _of_thread.announcements = _ThreadAnnouncements()
    _announcing.add(threading.current_thread())


def _silence_thread() -> bool:
    """End our announcements on this thread; returns whether there were any."""
    announcements = _of_thread.__dict__.pop("announcements", None)
    if announcements is None:
        return False
    announcements.end()
    _announcing.discard(threading.current_thread())
    return True


class _EndOfProfiling:
    """Where the local objects of a thread go, the program's functions for its threads have seen all of it."""

    __del__ = staticmethod(functools.partial(sys.setprofile, None))


class _EndOfTracing:
    """As `_EndOfProfiling`. Neither runs a line of Python, which those functions would see."""

    __del__ = staticmethod(functools.partial(sys.settrace, None))


def _announce_in_new_thread() -> None:
    if _native.is_recording():
        # They go in this order, and ahead of the announcements.
        _of_thread.ends = (_EndOfProfiling(), _EndOfTracing())
        try:
            _guard.unguarded(_announce)
        except RuntimeError:
            return  # the thread has a profiler of its own


class _TorchProfiler:
    def __init__(self) -> None:
        self._profiler: Any = None
        self._realtime_minus_monotonic_ns = 0
        self._marks = ClockMarks()
        self._process_id = os.getpid()
        self._thread = threading.get_ident()

    def begin(self) -> None:
        from torch.autograd.profiler import profile
        from torch.profiler import ProfilerActivity, supported_activities

        if ProfilerActivity.CPU not in supported_activities():
            raise RuntimeError("this build of torch has no profiler for the CPU")
        clock = _native.clock_info()
        self._realtime_minus_monotonic_ns = clock["realtime_ns"] - clock["monotonic_ns"]
        profiler = profile(use_kineto=True)
        with quiet_kineto():
            profiler.__enter__()
        self._profiler = profiler
        self._marks.take()

    def resume(self) -> None:
        """Stay off: what was recorded is handed over once."""

    def end(self) -> bool:
        import numpy as np

        if self._profiler is None or threading.get_ident() != self._thread or os.getpid() != self._process_id:
            return False  # also in a forked child, where the profiler's own threads did not come along
        self._marks.take()
        self._profiler.__exit__(None, None, None)
        announced = [event for event in self._profiler.kineto_results.events() if _is_operator(event)]
        events = [event for event in announced if event.name() != MARK]
        places: dict[str, int] = {}
        names = [places.setdefault(event.name(), len(places)) for event in events]
        to_monotonic = -self._realtime_minus_monotonic_ns
        starts = to_monotonic + np.array([event.start_ns() for event in events], dtype=np.int64)
        marks = [_bounds(event, to_monotonic) for event in announced if event.name() == MARK]
        _native.add_operators(
            np.array([event.device_resource_id() for event in events], dtype=np.uint32),
            list(places),
            np.array(names, dtype=np.int32),
            starts + self._marks.shifts_ns(starts, marks),
            np.array([event.duration_ns() for event in events], dtype=np.int64),
            np.array([max(0, event.sequence_nr()) for event in events], dtype=np.uint64),
            np.array([_forward_thread(event) for event in events], dtype=np.uint64),
        )
        self._profiler = None
        return True


def _bounds(event: Any, shift_ns: int) -> tuple[int, int]:
    start_ns = event.start_ns() + shift_ns
    return start_ns, start_ns + event.duration_ns()


def _is_operator(event: Any) -> bool:
    return event.device_type().name == "CPU" and event.duration_ns() >= 0 and not event.is_async()


def _forward_thread(event: Any) -> int:
    """Return the number of the thread that made the node which the engine evaluates; 0 for other events."""
    if event.sequence_nr() < 0 or not event.name().startswith(_ENGINE_PREFIX):
        return 0
    return int(event.fwd_thread_id())


# ---- the clock of PyTorch's profiler --------------------------------------------------------

# Both it and the monotonic clock count the processor's ticks, but PyTorch ties its count to the time of day
# once, which may be off by some microseconds: more than a small operator takes, which would then be in the
# layer next to its own.

MARK = "gpuprof: clock mark"
_COUNT = 20


class ClockMarks:
    """Ranges of PyTorch's, each between two readings of the monotonic clock, at both ends of a recording."""

    def __init__(self) -> None:
        self._read_ns: list[tuple[int, int]] = []

    def take(self) -> None:
        """Make some, while the profiler is active on this thread; a few microseconds in all."""
        from torch._C._profiler import _RecordFunctionFast

        mark = _RecordFunctionFast(MARK)
        for _ in range(_COUNT):
            before_ns = time.monotonic_ns()
            with mark:
                pass
            self._read_ns.append((before_ns, time.monotonic_ns()))

    def shifts_ns(
        self, starts_ns: npt.NDArray[np.int64], marks_ns: Sequence[tuple[int, int]]
    ) -> npt.NDArray[np.int64]:
        """Return what to add to each of the profiler's instants, to a few hundred nanoseconds.

        `marks_ns` are the beginnings and ends that the profiler has of the marks. Where they are not as many
        as were made nothing is known, and all is zero.
        """
        import numpy as np

        if len(marks_ns) != len(self._read_ns) or not marks_ns:
            return np.zeros(len(starts_ns), dtype=np.int64)
        pairs = list(zip(self._read_ns, sorted(marks_ns), strict=True))
        ends = pairs[:_COUNT], pairs[-_COUNT:]
        instants = [float(of_end[0][1][0]) for of_end in ends]
        found = np.interp(starts_ns, instants, [_offset_ns(of_end) for of_end in ends])
        return np.rint(found).astype(np.int64)


def _offset_ns(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float:
    """Return the middle of the offsets with which every mark lies between its two readings."""
    least = max(read[0] - mark[0] for read, mark in pairs)
    most = min(read[1] - mark[1] for read, mark in pairs)
    return (least + most) / 2
