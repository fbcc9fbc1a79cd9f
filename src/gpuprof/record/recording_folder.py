# SPDX-License-Identifier: Apache-2.0
"""The folder of a run while it is recorded: its creation, its files, and the lock of its owner."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuprof.errors import RecordingError
from gpuprof.record.fork_safe_lock import ForkSafeLock

RECORDING_FILE = "recording.json"
LOCK_FILE = "recording.lock"
SEGMENTS = "segments"


class DiskFullError(RecordingError):
    """The disk has no room for a folder. A program can run without a recording."""


def disk_full(path: Path, error: BaseException) -> DiskFullError | None:
    """Return the error of a folder on a disk, or in a quota, without room; None for other causes."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return DiskFullError("cannot_write", f"cannot make {path}: {error.strerror}", hint="free disk space")


def create_folder(path: Path) -> None:
    """Make the run's folder.

    Raises RecordingError with a hint when it exists or cannot be made, DiskFullError on a full disk.
    """
    try:
        path.mkdir(parents=False)
        (path / SEGMENTS).mkdir()
    except FileExistsError:
        raise RecordingError(
            "exists", f"{path} exists", hint="specify another folder, or remove it"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            raise RecordingError(
                "no_such_folder",
                f"{path.parent} does not exist",
                hint="make it, or specify another folder",
            ) from None
        if (full := disk_full(path, error)) is not None:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise full from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordingError(
            "cannot_write",
            f"cannot make {str(path)!r}: {reason}",
            hint="specify a folder that can be written",
        ) from None


def mark_refused(path: Path) -> None:
    """Mark that the recording reported why it could not begin; on a full disk nothing can be written."""
    with contextlib.suppress(OSError):
        (path / RECORDING_FILE).unlink()
    import shutil  # delays no program that is recorded

    shutil.rmtree(path / SEGMENTS, ignore_errors=True)


def is_marked_refused(path: Path) -> bool:
    """Whether the recording reported why it could not begin."""
    return path.is_dir() and not (path / RECORDING_FILE).exists() and not (path / SEGMENTS).exists()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file in one step, so that a reader sees the old content or the new."""
    draft = path.with_name(path.name + ".new")
    try:
        draft.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


# A lock of the kind used does not exclude its own process, and is lost when any copy is closed.
_recorded_here: set[Path] = set()
_closing = ForkSafeLock()


class FolderLock:
    """Holds a folder until this process ends, however it ends, so that a reader knows whether to wait."""

    def __init__(self, path: Path) -> None:
        self._folder = path.resolve()
        self._file = os.open(path / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._identity = identity_of(self._file)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _recorded_here.add(self._folder)

    def release(self) -> None:
        """Let go of the folder."""
        _recorded_here.discard(self._folder)
        # A program may have closed every file that it finds, and opened others under their numbers.
        if identity_of(self._file) == self._identity:
            os.close(self._file)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Hold a folder's lock for the time of a reading; yields False where its recorder still runs."""
    if path.resolve() in _recorded_here:
        yield False
        return
    with _closing, contextlib.ExitStack() as held:
        try:
            lock = held.enter_context((path / LOCK_FILE).open("ab"))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOENT):
                raise
            yield True
            return
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


_IS_LINUX = sys.platform == "linux"
# struct flock of fcntl(2): type, origin, start, length, process; other systems have the first two last.
_FLOCK = struct.Struct("hhqqi4x" if _IS_LINUX else "qqihh")


def is_held(run: Path) -> bool:
    """Whether a program records into a run. No lock is taken: it could keep a program from its own."""
    try:
        with (run / LOCK_FILE).open("rb") as lock:
            kind = fcntl.F_RDLCK, os.SEEK_SET
            asked = _FLOCK.pack(*kind, 0, 0, 0) if _IS_LINUX else _FLOCK.pack(0, 0, 0, *kind)
            answer = _FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    except OSError:
        return False
    return bool(answer[0 if _IS_LINUX else 3] != fcntl.F_UNLCK)


def identity_of(file: int) -> tuple[int, int] | None:
    """Return device and inode of an open file, None where the number is that of none.

    A program may close any file, and get its number again for another one.
    """
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino
