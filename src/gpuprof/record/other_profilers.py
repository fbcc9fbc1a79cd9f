# SPDX-License-Identifier: Apache-2.0
"""A whole program under torch.profiler or cProfile in place of a recording of ours.

What the profiler knows is written when the program ends in order; one that is killed leaves nothing.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from gpuprof.record.facts import Note, NoteCode, note
from gpuprof.record.frame_text import frame_text, is_hidden
from gpuprof.record.import_hook import ImportHook
from gpuprof.record.profiler_guard import ProfilerGuard, quiet_kineto

TORCH_RESULT = "trace.json"
CPROFILE_RESULT = "functions.json"
NOTES_RESULT = "notes.json"
# From 3.12 on cProfile has a place of its own, for all threads; before, one that all profilers share.
_ONE_PLACE = sys.version_info >= (3, 12)


def begin_profiler(name: str, folder: Path) -> None:
    """Have the profiler run until this process ends, and write its result into `folder`."""
    try:
        end = _begin_torch(folder) if name == "torch" else _begin_cprofile(folder)
    except Exception as error:
        _print_line(f"{name} could not begin: {_line(error)}; the program runs without it")
        return
    owner = os.getpid()

    def finish() -> None:
        if os.getpid() != owner:
            return
        try:
            if notes := end():
                (folder / NOTES_RESULT).write_text(
                    json.dumps([each.to_plain() for each in notes]), encoding="utf-8"
                )
        except Exception as error:
            # The program has ended in order; that its profile is lost must not change its exit code.
            _print_line(f"{name} could not write what it has: {_line(error)}")

    atexit.register(finish)


def _print_line(line: str) -> None:
    print(f"gpuprof: {line}", file=sys.stderr, flush=True)


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _TorchProfile:
    """torch.profiler from the import of torch on; gives way to a profiler of the program for good."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TORCH_RESULT
        self._profile: Any = None
        self._guard = ProfilerGuard(self._suspend, lambda: None)
        self._process_id = os.getpid()
        self._notes: list[Note] = []

    def start(self) -> None:
        from torch import profiler

        self._profile = profiler.profile()
        self._guard.install()
        with quiet_kineto():
            self._guard.unguarded(self._profile.start)

    def end(self) -> list[Note]:
        self._guard.remove()
        self._stop()
        return self._notes

    def _suspend(self) -> bool:
        if self._profile is not None:
            self._notes.append(note(NoteCode.PROGRAM_USED_PROFILER, profiler="torch.profiler"))
        try:
            self._stop()
        except Exception as error:
            # The program is about to use its own.
            self._notes.append(note(NoteCode.PROFILER_COULD_NOT_WRITE, error=_line(error)))
        return False

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        self._guard.unguarded(profile.stop)
        # What a forked child inherited is in the way of its own profiler, and its parent's to write.
        if os.getpid() == self._process_id:
            profile.export_chrome_trace(str(self._path))


def _begin_torch(folder: Path) -> Callable[[], list[Note]]:
    profile = _TorchProfile(folder)
    if "torch" in sys.modules:
        profile.start()
    else:
        ImportHook("torch", profile.start).install()
    return profile.end


class _FunctionProfile:
    """cProfile over the whole program. Python has one place for it, which the program is given for good."""

    def __init__(self, folder: Path) -> None:
        import cProfile

        self._path = folder / CPROFILE_RESULT
        self._class: Any = cProfile.Profile
        self._profile: Any = cProfile.Profile()
        self._placed: object = None
        self._thread = threading.get_ident()
        self._is_on = False
        self._notes: list[Note] = []

    def start(self) -> None:
        own, enable = self._profile, self._class.enable

        def enabled(profile: Any, *args: Any, **kwargs: Any) -> Any:
            # Until 3.11 each thread has a place of its own, from 3.12 on there is one for all.
            if profile is not own and (_ONE_PLACE or threading.get_ident() == self._thread):
                self._give_way("cProfile")
            return enable(profile, *args, **kwargs)

        own.enable()
        self._is_on = True
        self._class.enable = self._placed = functools.update_wrapper(enabled, enable)

    def end(self) -> list[Note]:
        if self._is_on and not _ONE_PLACE and sys.getprofile() is not self._profile:
            self._give_way("another profiler", is_lost=True)
        self._stop()
        entries = self._profile.getstats()
        self._path.write_text(json.dumps(_functions(entries)), encoding="utf-8")
        return self._notes

    def _give_way(self, to: str, *, is_lost: bool = False) -> None:
        if self._is_on:
            self._notes.append(note(NoteCode.PROGRAM_USED_PROFILER, profiler=to))
        self._is_on = self._is_on and not is_lost
        self._stop()

    def _stop(self) -> None:
        if self._is_on:
            self._is_on = False
            self._profile.disable()
        if vars(self._class).get("enable") is self._placed is not None:
            del self._class.enable  # what is inherited is found again


def _begin_cprofile(folder: Path) -> Callable[[], list[Note]]:
    profile = _FunctionProfile(folder)
    profile.start()
    return profile.end


def _functions(entries: list[Any]) -> list[dict[str, Any]]:
    """Return for each function its calls, its times in seconds, and the same for each that it called."""
    return [
        {
            **_counted(entry),
            "callees": [_counted(callee) for callee in entry.calls or () if _is_shown(callee)],
        }
        for entry in entries
        if _is_shown(entry)
    ]


def _is_shown(entry: Any) -> bool:
    return not (isinstance(entry.code, CodeType) and is_hidden(entry.code))


def _counted(entry: Any) -> dict[str, Any]:
    code = entry.code
    return {
        "function": frame_text(code) if isinstance(code, CodeType) else f"{code} (built-in)",
        "calls": entry.callcount,
        "total_s": entry.totaltime,
        "own_s": entry.inlinetime,
    }
