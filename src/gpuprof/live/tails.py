# SPDX-License-Identifier: Apache-2.0
"""Files of a recording that grow: found as they appear, and read from where the last reading ended.

A file stays open until the end, so that what a program wrote last can still be read when its run was closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar


class Tail:
    """One file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._file).st_size

    def read(self, offset: int, count: int) -> bytes:
        """Return what is there, at most `count` bytes."""
        return os.pread(self._file, count, offset)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


_LONGEST_LINE = 4096
Reader = TypeVar("Reader")


class GrowingFolder(Generic[Reader]):
    """The readers of all files of one pattern in a folder, made as the files appear."""

    def __init__(self, folder: Path, suffix: str, make: Callable[[Tail], Reader]) -> None:
        self._folder = folder
        self._suffix = suffix
        self._make = make
        self._readers: dict[str, Reader] = {}
        self._folder_mtime_ns = -1

    def readers(self) -> list[Reader]:
        """Return the readers of the files that have been found until now."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
            if changed_ns != self._folder_mtime_ns:
                self._find()
                self._folder_mtime_ns = changed_ns
        except OSError:
            pass  # removed or moved: what is open is still read
        return list(self._readers.values())

    def _find(self) -> None:
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208 - names are compared, not paths
            if name.endswith(self._suffix) and name not in self._readers:
                self._readers[name] = self._make(Tail(self._folder / name))


def last_line(path: Path) -> str:
    """Return the last line of a text file that grows; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _LONGEST_LINE, 0))
            content = file.read(_LONGEST_LINE)
    except OSError:
        return ""
    # A progress bar writes over its line.
    lines = content.replace(b"\r", b"\n").split(b"\n")
    return next((line.decode("utf-8", "replace") for line in reversed(lines) if line.strip()), "")
