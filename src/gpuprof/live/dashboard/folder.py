# SPDX-License-Identifier: Apache-2.0
"""Finds runs and results below a folder. Symbolic links are not followed, the depth is bounded."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.items import FileStamp, ItemKind
from gpuprof.record.recording_folder import RECORDING_FILE
from gpuprof.run.format import META_FILE

DEEPEST = 8
MOST_ENTRIES = 100_000
# A folder whose time of change is as young as this is listed again: the clock of a file system has steps.
_YOUNG_NS = 3_000_000_000
# The names of gpuprof.load.result, whose import takes 0.2 s.
LOAD_FILES = ("result.json", "requests.parquet")


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """A run or a result file in the folder."""

    path: str
    kind: ItemKind
    stamp: FileStamp
    is_closed: bool = True


@dataclass(frozen=True, slots=True)
class FolderCut:
    """A folder has more than is listed: `limit` folders and entries were, these others were not.

    `folders` counts those that were found and not listed; what is in them is unknown.
    """

    limit: int
    folders: int
    files: int


@dataclass(slots=True)
class _Listing:
    mtime_ns: int
    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


class FolderScan:
    """Lists a folder again and again. A folder below it is listed only if it has changed."""

    def __init__(self, root: Path, *, most_entries: int = MOST_ENTRIES) -> None:
        self.root = root
        self.cut: FolderCut | None = None  # of the last scan
        self._most_entries = most_entries
        self._listings: dict[str, _Listing] = {}

    def scan(self) -> list[FoundEntry]:
        """Return what is there now. Raises GpuprofError if the folder itself cannot be listed."""
        try:
            next(self.root.iterdir(), None)
        except OSError as error:
            raise GpuprofError(
                "no_such_folder",
                f"{self.root} cannot be listed: {error.strerror}",
                hint="name another folder",
            ) from None
        found: list[FoundEntry] = []
        known, self._listings = self._listings, {}
        pending = [("", 0)]
        files_left = 0
        while pending and len(self._listings) + len(found) < self._most_entries:
            folder, depth = pending.pop()
            listing = self._list(folder, known.get(folder))
            if listing is None:
                continue
            self._listings[folder] = listing
            item = self._folder_item(folder, listing)
            if item is not None:
                found.append(item)
                continue
            room = max(self._most_entries - len(self._listings) - len(found), 0)
            paths = [_joined(folder, name) for name in listing.files if name.endswith(".json")]
            found += self._result_files(paths[:room])
            files_left += len(paths[room:])
            if depth < DEEPEST:
                pending += [(_joined(folder, name), depth + 1) for name in listing.folders]
        is_cut = bool(pending or files_left)
        self.cut = FolderCut(self._most_entries, len(pending), files_left) if is_cut else None
        return found

    def _list(self, folder: str, known: _Listing | None) -> _Listing | None:
        path = self.root / folder
        # A folder that is removed while it is listed is not there.
        with contextlib.suppress(OSError):
            status = path.stat() if not folder else path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                return None
            is_old = time.time_ns() - status.st_mtime_ns > _YOUNG_NS
            if known is not None and known.mtime_ns == status.st_mtime_ns and is_old:
                return known
            listing = _Listing(status.st_mtime_ns)
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.is_symlink():
                        continue
                    names = listing.folders if entry.is_dir(follow_symlinks=False) else listing.files
                    names.append(entry.name)
            return listing
        return None

    def _folder_item(self, folder: str, listing: _Listing) -> FoundEntry | None:
        """Return the run or the load result that a folder is; None for any other folder."""
        if not folder:
            return None
        kinds = {META_FILE: ItemKind.RUN, RECORDING_FILE: ItemKind.RUN}
        if set(LOAD_FILES) <= set(listing.files):
            kinds[LOAD_FILES[0]] = ItemKind.LOAD
        for name, kind in kinds.items():
            if name not in listing.files:
                continue
            stamp = self._stamp(_joined(folder, name))
            if stamp is not None:
                return FoundEntry(folder, kind, stamp, is_closed=name != RECORDING_FILE)
        if folder.endswith(".gpuprof"):
            return FoundEntry(folder, ItemKind.RUN, FileStamp(listing.mtime_ns, 0, 0))
        return None

    def _result_files(self, paths: list[str]) -> list[FoundEntry]:
        stamps = ((path, self._stamp(path)) for path in paths)
        return [FoundEntry(path, ItemKind.RESULT, stamp) for path, stamp in stamps if stamp is not None]

    def _stamp(self, path: str) -> FileStamp | None:
        with contextlib.suppress(OSError):
            status = (self.root / path).lstat()
            if stat.S_ISREG(status.st_mode):
                return FileStamp.of(status)
        return None


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


_NO_LINKS = "copy the files into the folder"


def checked_path(root: Path, path: str) -> Path:
    """Return the path of an entry. Raises GpuprofError for one outside of the folder, or with links."""
    whole = root / path
    real = Path(os.path.realpath(whole))
    if real != root / path or not real.is_relative_to(root):
        raise GpuprofError(
            "not_in_folder",
            f"{path} is outside of the folder, or has symbolic links in it",
            hint=_NO_LINKS,
        )
    if real.is_dir():
        for folder, names, files in os.walk(real):
            if any(Path(folder, name).is_symlink() for name in (*names, *files)):
                raise GpuprofError("not_in_folder", f"{path} has symbolic links in it", hint=_NO_LINKS)
    return real
