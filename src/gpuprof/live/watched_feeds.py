# SPDX-License-Identifier: Apache-2.0
"""The feeds of a view: one run, process or machine; or all runs in a folder, as they appear."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from gpuprof.errors import GpuprofError
from gpuprof.live.feed import Feed
from gpuprof.live.snapshot import Snapshot
from gpuprof.live.target import open_feed
from gpuprof.load.published import LIVE_FILE
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS
from gpuprof.run.format import META_FILE

MOST_RUNS = 32
# A run that has ended is followed for a while, so that its last figures are seen.
LINGER_S = 60.0
MOST_TRIES = 5  # to open a run, one in each interval
MACHINE = ""
_RUN_FILES = (META_FILE, RECORDING_FILE, LIVE_FILE)
_Identity: TypeAlias = tuple[str, int, int]


class WatchedFeeds:
    """One feed, or those of a folder; a `poll` yields the snapshots of all with their names."""

    def __init__(self, target: str | None, *, open_run: Callable[[Path], Feed] = Feed) -> None:
        self._folder = _folder_of_runs(target)
        self._feeds = {MACHINE: open_feed(None if self._folder is not None else target)}
        self._open_run = open_run
        self._over_s: dict[str, float] = {}
        self._tries: dict[_Identity, int] = {}
        self.ended: list[str] = []  # sources that have nothing to report any more, since the last poll

    def poll(self) -> Iterator[tuple[str, Snapshot]]:
        """Yield the name of each source with its snapshot."""
        self.ended = []
        if self._folder is not None:
            self._look_for_runs(self._folder)
        for name, feed in list(self._feeds.items()):
            try:
                snapshot = feed.poll()
            except (GpuprofError, OSError, ValueError):
                if name == MACHINE:
                    raise
                self._end(name)  # damaged while it was read
                continue
            yield name, snapshot
            self._count_down(name, feed, snapshot)

    def close(self) -> None:
        """End what the feeds started."""
        for feed in self._feeds.values():
            feed.close()

    @property
    def is_folder(self) -> bool:
        """Whether these are the runs of a folder, and the machine."""
        return self._folder is not None

    @property
    def is_over(self) -> bool:
        """Whether the only source has ended; a folder or a machine does not."""
        return self._folder is None and self._feeds[MACHINE].is_over

    def _count_down(self, name: str, feed: Feed, snapshot: Snapshot) -> None:
        if name == MACHINE or not feed.is_over:
            return
        self._over_s[name] = self._over_s.get(name, 0.0) + snapshot.interval_ns / 1e9
        if self._over_s[name] > LINGER_S:
            self._end(name)

    def _end(self, name: str) -> None:
        self._feeds.pop(name).close()
        self._over_s.pop(name, None)
        self.ended.append(name)

    def _look_for_runs(self, folder: Path) -> None:
        found = _recordings(folder)
        self._tries = {each: self._tries[each] for each in found if each in self._tries}
        for identity in found:
            name = identity[0]
            if len(self._feeds) > MOST_RUNS or self._tries.get(identity, 0) >= MOST_TRIES:
                continue
            if name in self._feeds:
                self._end(name)  # a later run of the same name begins with the next poll
                continue
            # One that is being set up cannot be read yet; one that is damaged has no metrics.
            self._tries[identity] = self._tries.get(identity, 0) + 1
            with contextlib.suppress(GpuprofError, OSError, ValueError):
                self._feeds[name] = self._open_run(folder / name)
                self._tries[identity] = MOST_TRIES


def _recordings(folder: Path) -> list[_Identity]:
    """Return the runs in a folder that were not closed, the newest first; links are not followed."""
    found = []
    try:
        with os.scandir(folder) as entries:
            candidates = [each for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    for each in candidates:
        path = Path(each.path)
        try:
            # The recording replaces this file; the folder of segments remains until the run is closed.
            begin_ns = (path / RECORDING_FILE).lstat().st_mtime_ns
            found.append((begin_ns, (each.name, each.inode(), (path / SEGMENTS).lstat().st_ino)))
        except OSError:
            continue
    return [identity for _, identity in sorted(found, reverse=True)]


def _folder_of_runs(target: str | None) -> Path | None:
    """Return the target if it is a folder of runs, which may have none yet."""
    if target is None or not Path(target).is_dir():
        return None
    path = Path(target)
    is_other = path.suffix == ".gpuprof" or any((path / each).exists() for each in _RUN_FILES)
    return None if is_other else path
