# SPDX-License-Identifier: Apache-2.0
"""A whole program under torch.profiler or cProfile in place of a recording of ours.

What the profiler knows is written when the program ends in order; one that is killed leaves nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from gpuprof.record.frame_text import frame_text, is_hidden
from gpuprof.record.import_hook import ImportHook
from gpuprof.record.profiler_guard import ProfilerGuard

TORCH_RESULT = "trace.json"
CPROFILE_RESULT = "functions.json"
_LOG_LEVEL = "KINETO_LOG_LEVEL"


def begin_profiler(name: str, folder: Path) -> None:
    """Have the profiler run until this process ends, and write its result into `folder`."""
    end = _begin_torch(folder) if name == "torch" else _begin_cprofile(folder)
    owner = os.getpid()

    def finish() -> None:
        if os.getpid() != owner:
            return
        try:
            end()
        except Exception as error:
            # The program has ended in order; that its profile is lost must not change its exit code.
            line = next(iter(str(error).splitlines()), "")
            print(f"gpuprof: {name} could not write what it has: {line}", file=sys.stderr, flush=True)

    atexit.register(finish)


class _TorchProfile:
    """torch.profiler from the import of torch on; gives way to a profiler of the program for good."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TORCH_RESULT
        self._profile: Any = None
        self._guard = ProfilerGuard(self._suspend, lambda: None)

    def start(self) -> None:
        from torch import profiler

        self._profile = profiler.profile()
        self._guard.install()
        with _quiet_kineto():
            self._guard.unguarded(self._profile.start)

    def end(self) -> None:
        self._guard.remove()
        self._stop()

    def _suspend(self) -> bool:
        self._stop()
        return False

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            self._guard.unguarded(profile.stop)
            profile.export_chrome_trace(str(self._path))


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Have Kineto write no log among the program's output; it reads the level where it begins."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


def _begin_torch(folder: Path) -> Callable[[], None]:
    profile = _TorchProfile(folder)
    if "torch" in sys.modules:
        profile.start()
    else:
        ImportHook("torch", profile.start).install()
    return profile.end


def _begin_cprofile(folder: Path) -> Callable[[], None]:
    import cProfile

    profile = cProfile.Profile()

    def end() -> None:
        profile.disable()
        (folder / CPROFILE_RESULT).write_text(json.dumps(_functions(profile.getstats())), encoding="utf-8")

    profile.enable()
    return end


def _functions(entries: list[Any]) -> list[dict[str, Any]]:
    """Return for each function its calls, its times in seconds, and the same for each that it called."""
    return [
        {**_counted(entry), "callees": [_counted(callee) for callee in entry.calls or () if _is_told(callee)]}
        for entry in entries
        if _is_told(entry)
    ]


def _is_told(entry: Any) -> bool:
    return not (isinstance(entry.code, CodeType) and is_hidden(entry.code))


def _counted(entry: Any) -> dict[str, Any]:
    code = entry.code
    return {
        "function": frame_text(code) if isinstance(code, CodeType) else f"{code} (built-in)",
        "calls": entry.callcount,
        "total_s": entry.totaltime,
        "own_s": entry.inlinetime,
    }
