# SPDX-License-Identifier: Apache-2.0
"""A folder of windows: its index, which windows are retained, and the process that closes them.

The keeper runs next to the program at the lowest priority. It is the only writer of the index. If it was
killed, the next reader of the folder does what it left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError
from gpuprof.record.helper_process import WITHOUT_CURRENT_FOLDER
from gpuprof.record.recording_folder import (
    LOCK_FILE,
    RECORDING_FILE,
    disk_full,
    exclusive,
    write_json,
)
from gpuprof.record.window_options import WindowOptions
from gpuprof.record.window_sampler import PROGRAM_FILE, WINDOW_FILE, WINDOW_SUFFIX
from gpuprof.run.writer import close_run, preload

INDEX_FILE = "windows.json"
FOLDER_SUFFIX = ".windows"
_KEEPER_LOCK = "keeper.lock"
_PERIOD_S = 0.5
_LONGEST_START_S = 30.0
_MOST_TRIES = 3  # to close a window; a full disk may have room later


@dataclass
class ClosedWindow:
    """A closed window: `facts` are those of `window.json`; `kept_as` has why it is retained."""

    name: str
    facts: dict[str, Any]
    bytes: int
    kept_as: list[str] = field(default_factory=list)

    @property
    def slowest_step_ns(self) -> int:
        """The slowest step in the window, or the one that triggered it; 0 if it has no steps."""
        trigger = self.facts.get("trigger") or {}
        return max(self.facts.get("slowest_step_ns") or 0, trigger.get("step_ns") or 0)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"run": self.name, "kept_as": self.kept_as, "bytes": self.bytes, **self.facts}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ClosedWindow:
        """Read what `to_plain` wrote."""
        facts = {name: value for name, value in plain.items() if name not in ("run", "kept_as", "bytes")}
        return cls(plain["run"], facts, plain["bytes"], list(plain["kept_as"]))


class Retention:
    """Half of the windows are those with the slowest steps, half a sample that moves with time.

    Each new window enters the sample, in place of a random one of it if it is full, so ages in the sample are
    distributed geometrically (C. Aggarwal, On biased reservoir sampling, VLDB 2006).
    """

    def __init__(self, keep: int, disk_bytes: int, *, seed: int = 0) -> None:
        self._most_slow = keep // 2
        self._keep = keep
        self._disk_bytes = disk_bytes
        self._random = random.Random(seed)  # noqa: S311 - a sample, no secret
        self.windows: list[ClosedWindow] = []

    def add(self, window: ClosedWindow) -> list[ClosedWindow]:
        """Add a window; returns those to remove."""
        self.windows.append(window)
        with_steps = [each for each in self.windows if each.slowest_step_ns > 0]
        slow = sorted(with_steps, key=lambda each: -each.slowest_step_ns)[: self._most_slow]
        for each in self.windows:
            each.kept_as = ["slowest" if any(each is other for other in slow) else "sample"]
        removed: list[ClosedWindow] = []
        if len(self.windows) > self._keep:
            sampled = [each for each in self.windows[:-1] if "sample" in each.kept_as]
            removed.append(self._random.choice(sampled))
            self.windows.remove(removed[0])
        while len(self.windows) > 1 and self.total_bytes > self._disk_bytes:
            removed.append(self._least())
            self.windows.remove(removed[-1])
        return removed

    @property
    def total_bytes(self) -> int:
        """The size of all retained windows."""
        return sum(each.bytes for each in self.windows)

    def _least(self) -> ClosedWindow:
        """Return the oldest window of the sample, else the least slow one."""
        only_sampled = [each for each in self.windows[:-1] if "sample" in each.kept_as]
        if only_sampled:
            return only_sampled[0]
        return min(self.windows, key=lambda each: each.slowest_step_ns)


class Keeper:
    """Closes the windows of a folder and keeps its index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = read_index(folder)
        self._index = index
        self._tries: dict[str, int] = {}
        options = WindowOptions.from_plain(index["options"])
        self._retention = Retention(options.keep, options.disk_bytes // 2, seed=index["removed"])
        self._retention.windows = [
            each for each in map(ClosedWindow.from_plain, index["windows"]) if (folder / each.name).is_dir()
        ]

    def close_ended(self) -> int:
        """Close the windows that have ended; returns how many there were."""
        known = {each.name for each in self._retention.windows}
        closed = 0
        for path in sorted(self.folder.glob(f"*{WINDOW_SUFFIX}")):
            if path.name in known or not self._has_ended(path):
                continue
            self._take(path)
            closed += 1
        self._take_program_facts()
        return closed

    def _take_program_facts(self) -> None:
        """Enter in the index which windows the program left out, and for how long it ran."""
        try:
            facts: dict[str, Any] = json.loads((self.folder / PROGRAM_FILE).read_bytes())
            found = {"skipped": dict(facts["skipped"]), "ran_s": facts["ran_s"]}
            failure = facts["last_failure"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # a program that was killed before, or one of an earlier version
        if failure is not None:
            found["last_failure"] = failure
        if any(self._index.get(name) != value for name, value in found.items()):
            self._index |= found
            self._save()

    def _has_ended(self, path: Path) -> bool:
        if (path / WINDOW_FILE).exists() or not (path / RECORDING_FILE).exists():
            return (path / WINDOW_FILE).exists()
        # Of a program that was killed: its lock is free, and the rest of it, too.
        with exclusive(self.folder) as is_over:
            return is_over

    def _take(self, path: Path) -> None:
        try:
            close_run(path)
        except (RunError, OSError) as error:
            self._index["last_failure"] = str(error)
            self._tries[path.name] = self._tries.get(path.name, 0) + 1
            if self._tries[path.name] >= _MOST_TRIES:
                # Unclosed windows keep new ones from beginning.
                shutil.rmtree(path, ignore_errors=True)
                self._index["failed"] += 1
            self._save()
            return
        window = ClosedWindow(path.name, _facts_of(path), _size_of(path))
        removed = self._retention.add(window)
        for each in removed:
            shutil.rmtree(self.folder / each.name, ignore_errors=True)
        self._index["removed"] += len(removed)
        self._save()

    def _save(self) -> None:
        self._index["windows"] = [each.to_plain() for each in self._retention.windows]
        # On a full disk the former index remains; the windows themselves are found without it.
        with contextlib.suppress(OSError):
            write_json(self.folder / INDEX_FILE, self._index)


def _facts_of(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        facts: dict[str, Any] = json.loads((path / WINDOW_FILE).read_bytes())
        return facts
    unknown = dict.fromkeys(("trigger", "steps", "slowest_step_ns"))
    return {"reason": "unknown", "ended_by": "killed", **unknown}


def _size_of(path: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).stat().st_blocks * 512
    return total


# ---- the folder --------------------------------------------------------------------------------------------


def create_windows(folder: Path, options: WindowOptions, command: list[str]) -> None:
    """Make the folder of windows with an empty index. Raises RunError, DiskFullError on a full disk."""
    index = {
        "format_version": 1,
        "options": options.to_plain(),
        "command": command,
        "created_unix_ns": time.time_ns(),
        "removed": 0,
        "failed": 0,
        "skipped": {},
        "ran_s": None,
        "windows": [],
    }
    try:
        folder.mkdir()
        write_json(folder / INDEX_FILE, index)
    except FileExistsError:
        raise RunError("exists", f"{folder} exists", hint="specify another folder, or remove it") from None
    except OSError as error:
        with contextlib.suppress(OSError):
            (folder / INDEX_FILE).unlink(missing_ok=True)
            folder.rmdir()
        if (full := disk_full(folder, error)) is not None:
            raise full from None
        raise RunError(
            "cannot_write",
            f"cannot make {folder}: {error.strerror}",
            hint="specify a folder that can be written",
        ) from None


def free_windows_name(stem: str, folder: Path = Path()) -> Path:
    """Return the first of STEM.windows, STEM-2.windows, ... that does not exist."""
    path, count = folder / f"{stem}{FOLDER_SUFFIX}", 1
    while path.exists():
        count += 1
        path = folder / f"{stem}-{count}{FOLDER_SUFFIX}"
    return path


def is_windows_folder(path: Path) -> bool:
    """Whether a folder is one of windows."""
    return (path / INDEX_FILE).is_file()


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a folder of windows. Raises RunError."""
    try:
        index: dict[str, Any] = json.loads((folder / INDEX_FILE).read_bytes())
        WindowOptions.from_plain(index["options"])
        index["windows"], index["removed"], index["failed"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        path = folder / INDEX_FILE
        raise RunError("damaged", f"{path} cannot be read ({error})", hint="restore it from a copy") from None
    return index


def open_windows(folder: Path) -> dict[str, Any]:
    """Return the index, after what a killed program or keeper left has been closed."""
    with _keeping(folder, wait=False) as is_keeper:
        if is_keeper and os.access(folder, os.W_OK):
            Keeper(folder).close_ended()
    return read_index(folder)


def finish(folder: Path) -> dict[str, Any]:
    """Wait for the keeper of a program that has ended, close what it left, and return the index."""
    with _keeping(folder, wait=True):
        Keeper(folder).close_ended()
    for name in (LOCK_FILE, _KEEPER_LOCK, PROGRAM_FILE):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    return read_index(folder)


@contextlib.contextmanager
def _keeping(folder: Path, *, wait: bool) -> Iterator[bool]:
    try:
        file = (folder / _KEEPER_LOCK).open("ab")
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield False
            return
        yield True


def keep_windows(folder: Path) -> None:
    """Close windows until the program has ended. This is a process's main function."""
    _lower_priority()
    preload()
    with _keeping(folder, wait=False) as is_keeper:
        if not is_keeper:
            return
        keeper = Keeper(folder)
        _await_program(folder)
        while folder.is_dir():
            with exclusive(folder) as is_over:
                pass
            keeper.close_ended()
            if is_over:
                return
            time.sleep(_PERIOD_S)


def _await_program(folder: Path) -> None:
    """Wait until the program has taken its folder, or for as long as an interpreter may need to start."""
    deadline_s = time.monotonic() + _LONGEST_START_S
    while time.monotonic() < deadline_s and not (folder / LOCK_FILE).exists():
        time.sleep(_PERIOD_S / 10)
    # The file exists a moment before it is locked.
    time.sleep(_PERIOD_S / 10)


def _lower_priority() -> None:
    with contextlib.suppress(OSError, AttributeError):
        # One processor, so that a program with a thread for each is disturbed on one of them at most.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        if os.getsid(0) == threading.get_native_id():
            # Sessions share a processor equally, whatever the priorities of their threads (sched_autogroup).
            Path("/proc/self/autogroup").write_text("19")


def keeper_command(folder: Path) -> list[str]:
    """Return the words that start a keeper as a process of its own."""
    import sys

    program = "from pathlib import Path; from gpuprof.run.windows import keep_windows; "
    program = f"{WITHOUT_CURRENT_FOLDER}{program}keep_windows(Path(sys.argv[1]))"
    return [sys.executable, "-c", program, str(folder.resolve())]
