# SPDX-License-Identifier: Apache-2.0
"""Windows of a recording in which the inputs of operators are recorded too, by PyTorch's execution trace.

Announced operators have no shapes. PyTorch's execution trace has them, and costs some 13 us an operator, so
it is on only where operators may have other inputs than before: until the first call of a model, and from a
call with another signature, or with another call before it, to the next call. Of the calls in between only
the signature is recorded.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

TRACE_FILE = "operators.json"
MOST_WINDOWS = 48
# Of calls of one kind that all differ, as the steps of a generation, the first ones and then fewer and fewer.
_FIRST_OF_A_KIND = 6
_MOST_KEYS = 10_000
# A window without an end, as around a program that makes one call and then does something else.
_LONGEST_S = 10.0
_MOST_BYTES = 32 << 20
_ALL_BYTES = 128 << 20
_POLL_S = 0.05
# After the trace is switched off, callbacks of other threads may still be in it for this long.
_GRACE_S = 0.05


class TraceState(str, Enum):
    """Whether the inputs of operators were recorded, or why not."""

    ON = "on"
    NO_TRACE = "no trace"  # in this version of torch
    NOT_QUIET = "not quiet"  # it would write to the program's standard error
    IN_USE = "in use"  # by the program


@dataclass(slots=True)
class Window:
    """A stretch of time with recorded inputs, on the monotonic clock; `root` is "" before the first call.

    `call` is the number of the call among those of the root on its thread.
    """

    root: str
    call: int
    thread_id: int
    begin_ns: int
    end_ns: int = 0


_Call = tuple[str, int]


class OperatorWindows:
    """Opens and closes windows, from `start` to `stop`. The trace is registered once, at the first window."""

    def __init__(self, segments: Path) -> None:
        self.path = segments / TRACE_FILE
        self.windows: list[Window] = []
        self.state = TraceState.ON
        self._profiler: Any = None  # torch._C._profiler while the trace is registered
        self._lock = threading.Lock()
        self._open: Window | None = None
        self._watch: _thread.LockType | None = None  # free when the open window has ended
        self._last: dict[int, _Call] = {}
        self._calls: Counter[tuple[str, int]] = Counter()
        self._seen: set[tuple[_Call | None, _Call]] = set()
        self._kinds: Counter[tuple[str | None, str]] = Counter()
        self._disabled_s = 0.0
        self._process_id = os.getpid()
        self._is_over = False

    def start(self) -> None:
        """Begin with the window before the first call."""
        _current.windows = weakref.ref(self)
        _wrap_program_traces()
        with self._lock:
            self._begin("", 0)

    def stop(self) -> None:
        """Close the open window, and the trace: its file is complete then."""
        _unwrap_program_traces()
        self._unregister()

    def give_way(self) -> None:
        """Leave the trace, of which PyTorch has one, to the program."""
        self._unregister()
        self.state = TraceState.IN_USE

    def _unregister(self) -> None:
        with self._lock:
            self._end()
            profiler, self._profiler = self._profiler, None
            self._is_over = True  # registered again, the trace would begin its file again
        if profiler is None or os.getpid() != self._process_id:
            return
        time.sleep(max(0.0, self._disabled_s + _GRACE_S - time.monotonic()))
        with _quiet():
            profiler._remove_execution_trace_observer()

    def begin_call(self, root: str, signature: int) -> None:
        """Note a call of a root that is about to begin on this thread."""
        thread = threading.get_native_id()
        call = (root, signature)
        before, self._last[thread] = self._last.get(thread), call
        number = self._calls[root, thread]
        self._calls[root, thread] = number + 1
        key = (before, call)
        is_new = key not in self._seen and len(self._seen) < _MOST_KEYS
        if self._open is None and not is_new:
            return
        # Another thread's call opens or closes a window at this moment: this one goes without.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._end()
            if is_new:
                self._seen.add(key)
                if self._is_wanted((None if before is None else before[0], root)):
                    self._begin(root, number)
        finally:
            self._lock.release()

    def close_window(self) -> None:
        """Close the open window, if there is one."""
        with self._lock:
            self._end()

    def facts(self) -> dict[str, Any]:
        """Return plain data for the run."""
        return {"state": self.state.value, "windows": [asdict(window) for window in self.windows]}

    def _is_wanted(self, kind: tuple[str | None, str]) -> bool:
        self._kinds[kind] += 1
        number = self._kinds[kind]
        return number <= _FIRST_OF_A_KIND or number & (number - 1) == 0

    def _begin(self, root: str, call: int) -> None:
        if self._is_over or len(self.windows) >= MOST_WINDOWS or os.getpid() != self._process_id:
            return
        if self.state != TraceState.ON or not self._register():
            return
        size = _size(self.path)
        if size > _ALL_BYTES:
            return
        with _quiet():
            self._profiler._enable_execution_trace_observer()
        self._open = Window(root, call, threading.get_native_id(), time.monotonic_ns())
        self._watch = _thread.allocate_lock()
        self._watch.acquire()
        # Not one of `threading`, which a program may list, wait for and trace.
        _thread.start_new_thread(self._watch_window, (self._open, self._watch, size + _MOST_BYTES))

    def _end(self) -> None:
        window, self._open = self._open, None
        if window is None:
            return
        window.end_ns = time.monotonic_ns()
        with _quiet():
            self._profiler._disable_execution_trace_observer()
        self._disabled_s = time.monotonic()
        self.windows.append(window)
        if self._watch is not None:
            self._watch.release()
            self._watch = None

    def _watch_window(self, window: Window, ended: _thread.LockType, most_bytes: int) -> None:
        """Close the window where the program does not get to the next call."""
        until_s = time.monotonic() + _LONGEST_S
        while time.monotonic() < until_s and _size(self.path) < most_bytes:
            if ended.acquire(timeout=_POLL_S):
                return
        with self._lock:
            if self._open is window:
                self._end()

    def _register(self) -> bool:
        if self._profiler is not None:
            return True
        torch = sys.modules.get("torch")
        profiler: Any = getattr(getattr(torch, "_C", None), "_profiler", None)
        if not hasattr(profiler, "_add_execution_trace_observer"):
            self.state = TraceState.NO_TRACE
        elif _log_level() is None:
            self.state = TraceState.NOT_QUIET
        else:
            with _quiet():
                is_added = profiler._add_execution_trace_observer(str(self.path))
            # Where the program's own is registered, it reports that too, and does nothing.
            if is_added and self.path.exists():
                self._profiler = profiler
            else:
                self.state = TraceState.IN_USE
        return self._profiler is not None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


# ---- forks -----------------------------------------------------------------------------------


class _Current:
    windows: weakref.ref[OperatorWindows] | None = None


_current = _Current()


def _before_fork() -> None:
    """Close the window: a forked child would write to the same file."""
    windows = None if _current.windows is None else _current.windows()
    if windows is not None:
        windows.close_window()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


# ---- traces of the program --------------------------------------------------------------------

_ADD = "_add_execution_trace_observer"


def _wrap_program_traces() -> None:
    """Have `torch.profiler.ExecutionTraceObserver` take the trace from us."""
    module = sys.modules.get("torch.profiler.profiler")
    original = getattr(module, _ADD, None)
    if original is None or hasattr(original, "original"):
        return

    def add(*args: Any, **kwargs: Any) -> Any:
        windows = None if _current.windows is None else _current.windows()
        if windows is not None:
            windows.give_way()
        return original(*args, **kwargs)

    add.original = original  # type: ignore[attr-defined]
    setattr(module, _ADD, add)


def _unwrap_program_traces() -> None:
    module = sys.modules.get("torch.profiler.profiler")
    original = getattr(getattr(module, _ADD, None), "original", None)
    if original is not None:
        setattr(module, _ADD, original)


# ---- PyTorch's log ---------------------------------------------------------------------------

# PyTorch warns on standard error whenever the trace is switched on or off.
_LOG_LEVEL = "FLAGS_caffe2_log_level"
_ERRORS_ONLY = 2


def _log_level() -> ctypes.c_int | None:
    """Return the level of PyTorch's log, to be set; None where this build of torch has none."""
    torch = sys.modules["torch"]
    folder = Path(str(torch.__file__)).parent / "lib"
    for name in ("libc10.so", "libc10.dylib"):
        if (folder / name).exists():
            try:
                return ctypes.c_int.in_dll(ctypes.CDLL(str(folder / name)), _LOG_LEVEL)
            except (OSError, ValueError):
                return None
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    level = _log_level()
    before = 0 if level is None else level.value
    if level is not None:
        level.value = max(before, _ERRORS_ONLY)
    try:
        yield
    finally:
        if level is not None:
            level.value = before
