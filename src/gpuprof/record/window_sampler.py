# SPDX-License-Identifier: Apache-2.0
"""Windows of a long program: short recordings in it, one at a time, that another process closes.

A window begins and ends between two steps, on their thread. If a program has no steps, it begins on the main
thread between two instructions of Python. The program only maps files; tables are written elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from gpuprof import _native
from gpuprof.errors import GpuprofError
from gpuprof.record.import_hook import is_importing
from gpuprof.record.options import RecordingOptions
from gpuprof.record.pauses import own_work
from gpuprof.record.recording import Recording, end_program, record_program
from gpuprof.record.recording_folder import SEGMENTS, FolderLock, create_folder, write_json
from gpuprof.record.step_watch import StepWatch
from gpuprof.record.window_options import StepHistory, Trigger, WindowOptions

WINDOW_FILE = "window.json"
PROGRAM_FILE = "program.json"  # what the program left out, and how long it ran
WINDOW_SUFFIX = ".gpuprof"
LEAST_FREE_BYTES = 32_000_000
_MOST_UNCLOSED = 2
_GRACE_NS = 1_000_000_000  # for a step to end, before a window begins or ends without one
_MAIN_GRACE_NS = 1_000_000_000  # for the main thread to run an instruction
# Packages of which a recording imports modules or changes functions.
_INSTRUMENTED = frozenset({"torch", "triton", "numpy", "nvtx", "pynvml"})
Reason = Literal["interval", "trigger"]
# Why a window does not begin.
SkipReason = Literal["recording_active", "unclosed", "disk_full", "failed"]


def has_room(folder: Path) -> bool:
    """Whether the disk of a folder has room for a window. Raises OSError."""
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize >= LEAST_FREE_BYTES


class WindowSampler:
    """Records windows into `folder`, from `start` to `stop`. `step_ended` and `poll` drive it.

    `clock` is in nanoseconds. Failures never reach the program: the first one is a line on standard error.
    """

    def __init__(
        self,
        folder: Path,
        options: WindowOptions,
        recording_options: RecordingOptions,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        self._options = options
        self._recording_options = recording_options
        self._clock = clock
        self._warn = warn or _print_warning
        self._trigger = None if options.when is None else Trigger(options.when)
        self._history = StepHistory()
        self._lock: FolderLock | None = None
        self._process_id = os.getpid()
        self._busy = threading.Lock()  # taken without waiting: the second caller has nothing to do
        self._recording: Recording | None = None
        self._facts: dict[str, Any] = {}
        self._number = 0
        self._due_ns = 0
        self._trigger_from_ns = 0
        self._until_ns = 0
        self._slow: tuple[int, int] | None = None  # a triggering step and the limit
        self._has_warned = False
        self._is_stopped = False
        self._skipped: Counter[SkipReason] = Counter()
        self._last_failure: str | None = None
        self._started_ns = 0
        self.command: list[str] | None = None

    def start(self) -> None:
        """Take the folder. Raises OSError where it cannot be written."""
        self._lock = FolderLock(self.folder)
        self._started_ns = self._clock()
        self._due_ns = self._started_ns + int(self._options.every_s * 1e9)

    def stop(self) -> None:
        """End an open window and let go of the folder. In a forked child, do nothing."""
        if os.getpid() != self._process_id:
            return
        with self._busy:
            self._is_stopped = True
            if self._recording is not None:
                self._end_window("program")
            self._write_facts(ran_s=(self._clock() - self._started_ns) / 1e9)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def skipped(self) -> int:
        """How many windows were left out."""
        return self._skipped.total()

    @property
    def is_recording(self) -> bool:
        """Whether a window is open."""
        return self._recording is not None

    def step_ended(self, begin_ns: int, end_ns: int) -> None:
        """Take note of a step, and begin or end a window after it."""
        if os.getpid() != self._process_id or not self._busy.acquire(blocking=False):
            return
        try:
            if not self._is_stopped:
                self._take_step(end_ns - begin_ns)
                self._advance(grace_ns=0)
        finally:
            self._busy.release()

    def poll(self, *, grace_ns: int = _GRACE_NS) -> None:
        """Begin or end a window that has been due for `grace_ns`, since no step has ended meanwhile.

        While PyTorch is being imported it remains due: an import of its modules in between would fail, or
        make the program's own fail.
        """
        if os.getpid() != self._process_id or not self._busy.acquire(blocking=False):
            return
        try:
            if not self._is_stopped and self.overdue_ns() >= grace_ns and not is_importing(_INSTRUMENTED):
                self._advance(grace_ns=grace_ns)
        finally:
            self._busy.release()

    def overdue_ns(self) -> int:
        """Return for how long a window has been due to begin or end; negative before."""
        return self._clock() - (self._due_ns if self._recording is None else self._until_ns)

    def check_size(self) -> None:
        """Have a window end that has become too large for the disk budget.

        The recorder drops events above it meanwhile: a step may end much later.
        """
        recording = self._recording
        if recording is None:
            return
        if (
            _native.limit_reached()
            or _bytes_of(recording.path / SEGMENTS) > self._options.largest_window_bytes
        ):
            self._facts["too_large"] = True
            self._until_ns = min(self._until_ns, self._clock())

    def _take_step(self, duration_ns: int) -> None:
        if self._trigger is not None:
            limit_ns = self._trigger.limit_ns(self._history)
            if limit_ns is not None and duration_ns > limit_ns:
                self._slow = (duration_ns, int(limit_ns))
        if self._recording is not None:
            self._facts["steps"] += 1
            self._facts["slowest_step_ns"] = max(self._facts["slowest_step_ns"] or 0, duration_ns)
            return
        # Steps of a window are slower by what recording costs.
        self._history.add(duration_ns)

    def _advance(self, *, grace_ns: int) -> None:
        now_ns = self._clock()
        if self._recording is not None:
            self._slow = None  # the window has it already
            if now_ns >= self._until_ns + grace_ns:
                self._end_window("duration")
            return
        slow, self._slow = self._slow, None
        if slow is not None and now_ns >= self._trigger_from_ns:
            self._trigger_from_ns = now_ns + int(self._options.every_s * 1e9)
            self._begin_window("trigger", slow)
        elif now_ns >= self._due_ns + grace_ns:
            self._due_ns = now_ns + int(self._options.every_s * 1e9)
            self._begin_window("interval", None)

    @own_work()
    def _begin_window(self, reason: Reason, slow: tuple[int, int] | None) -> None:
        began_ns = time.monotonic_ns()
        if self._unclosed() >= _MOST_UNCLOSED:
            self._skip("unclosed")
            return
        self._number += 1
        path = self.folder / f"w{self._number:06d}{WINDOW_SUFFIX}"
        recording: Recording | None = None
        try:
            if not has_room(self.folder):
                self._fail(f"no room on the disk of {self.folder}")
                self._skip("disk_full")
                return
            create_folder(path)
            recording = Recording(
                path, self._recording_options, limit_bytes=self._options.largest_window_bytes
            )
            if self.command is not None:
                recording.command = self.command
            record_program(recording)
        except Exception as error:
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, GpuprofError) and error.code == "recording_active":
                self._skip("recording_active")
                return
            self._fail(str(error))
            self._skip("failed")
            return
        except BaseException:
            # An interrupt of the program: what has begun must not continue unseen.
            if recording is not None:
                end_program(recording, wait=False)
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._facts = {
            "number": self._number,
            "reason": reason,
            "trigger": None
            if slow is None
            else {"when": self._options.when, "step_ns": slow[0], "limit_ns": slow[1]},
            "begin_unix_ns": time.time_ns(),
            "steps": 0,
            "slowest_step_ns": None,
            "too_large": False,
            "begin_cost_ns": time.monotonic_ns() - began_ns,
        }
        self._until_ns = self._clock() + int(self._options.duration_s * 1e9)
        self._recording = recording

    @own_work()
    def _end_window(self, ended_by: str) -> None:
        recording = self._recording
        assert recording is not None
        began_ns = time.monotonic_ns()
        try:
            if not end_program(recording, wait=ended_by == "duration"):
                return  # the program's own recording is active: this one continues after it
            self._recording = None
            self._facts |= {
                "ended_by": ended_by,
                "end_unix_ns": time.time_ns(),
                "end_cost_ns": time.monotonic_ns() - began_ns,
                "skipped_before": self.skipped,
            }
            write_json(recording.path / WINDOW_FILE, self._facts)
        except Exception as error:
            self._recording = None
            self._fail(str(error))

    def _unclosed(self) -> int:
        with contextlib.suppress(OSError):
            return sum(
                (each / SEGMENTS).is_dir() for each in self.folder.iterdir() if each.suffix == WINDOW_SUFFIX
            )
        return 0

    def _skip(self, reason: SkipReason) -> None:
        self._skipped[reason] += 1
        self._write_facts(ran_s=None)

    def _write_facts(self, *, ran_s: float | None) -> None:
        """Leave for the keeper's index what is known here; a killed program has no duration."""
        facts = {"skipped": dict(self._skipped), "last_failure": self._last_failure, "ran_s": ran_s}
        # On a full disk, or where the folder is gone, the index has no such facts.
        with contextlib.suppress(OSError):
            write_json(self.folder / PROGRAM_FILE, facts)

    def _fail(self, message: str) -> None:
        self._last_failure = message
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{message}; the program continues, and windows without room are left out")


def _print_warning(message: str) -> None:
    from gpuprof.text.sanitize import print_warning  # seldom needed, and not by other recordings

    print_warning(message)


def _bytes_of(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                total += entry.stat().st_blocks * 512
    return total


class WindowTimer:
    """A thread that has windows begin and end where no step does it, preferably on the main thread."""

    _PERIOD_S = 0.25

    def __init__(self, sampler: WindowSampler) -> None:
        self._sampler = sampler
        self._ended = threading.Event()
        # Kept as long as this object: the interpreter may call it later.
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run_pending)
        self._thread = threading.Thread(target=self._run, name="gpuprof windows", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._PERIOD_S):
            self._sampler.check_size()
            overdue_ns = self._sampler.overdue_ns()
            if overdue_ns >= _GRACE_NS + _MAIN_GRACE_NS:
                # The main thread waits for something: then layers are recorded, and operators of new threads.
                self._sampler.poll()
            elif overdue_ns >= _GRACE_NS:
                ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _run_pending(self, _: object) -> int:
        if not self._ended.is_set():
            with contextlib.suppress(Exception):
                self._sampler.poll()
        return 0


class WindowRecorder:
    """The sampler of a program with what drives it: steps and a timer."""

    def __init__(self, folder: Path, options: WindowOptions, recording_options: RecordingOptions) -> None:
        self.sampler = WindowSampler(folder, options, recording_options)
        self._steps = StepWatch(self.sampler.step_ended)
        self._timer = WindowTimer(self.sampler)
        self._process_id = os.getpid()

    def start(self) -> None:
        """Begin. Raises OSError where the folder cannot be written."""
        self.sampler.start()
        self._steps.start()
        self._timer.start()

    def stop(self) -> None:
        """End an open window. In a forked child, do nothing."""
        if os.getpid() != self._process_id:
            return
        self._timer.stop()
        self._steps.stop()
        self.sampler.stop()
