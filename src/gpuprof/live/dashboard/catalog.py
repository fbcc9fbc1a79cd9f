# SPDX-License-Identifier: Apache-2.0
"""The entries of the folder, kept up to date: what is new or has changed is read, the rest is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.folder import MOST_ENTRIES, FolderCut, FolderScan, FoundEntry
from gpuprof.live.dashboard.items import Item, ItemKind, ItemState, Plain, Problem, item_id
from gpuprof.live.dashboard.workers import Worker
from gpuprof.record.recording_folder import is_held

_AT_ONCE = 25  # entries in a request: a render waits for no more than these
_MOST_REMOVED = 10_000
_RECHECK_S = 10.0  # a run that is being copied into the folder is damaged until all of it is there


class Catalog:
    """Entries by id, with a version: a page asks for what has changed since the version that it has."""

    def __init__(self, root: Path, worker: Worker, *, most_entries: int = MOST_ENTRIES) -> None:
        self.root = root
        self.version = 0
        self._scan = FolderScan(root, most_entries=most_entries)
        self._cut: FolderCut | None = None
        self._worker = worker
        self._items: dict[str, Item] = {}
        self._changed: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._oldest_removed = 0
        self._checked_s = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._items.values()))

    def item(self, wanted: str) -> Item | None:
        """Return the entry with an id; None if there is none."""
        return self._items.get(wanted)

    def pending(self) -> int:
        """How many entries are found but not read."""
        return sum(each.state is ItemState.PENDING for each in self._items.values())

    def recording(self) -> list[Item]:
        """Return the runs that are being recorded."""
        return [each for each in self._items.values() if each.state is ItemState.RECORDING]

    async def refresh(self) -> None:
        """List the folder, and read what is new or has changed. Raises GpuprofError."""
        try:
            found = await asyncio.to_thread(self._scan.scan)
        except GpuprofError:
            # What is in a folder that is gone cannot be opened; one that returns is read again.
            if not await asyncio.to_thread(self.root.exists):
                for gone in list(self._items):
                    self._remove(gone)
            raise
        if self._scan.cut != self._cut:
            self._cut = self._scan.cut
            self.version += 1
        present = {item_id(each.path) for each in found}
        for gone in self._items.keys() - present:
            self._remove(gone)
        is_recheck = time.monotonic() - self._checked_s >= _RECHECK_S
        if is_recheck:
            self._checked_s = time.monotonic()
        to_read = [each for each in found if self._note(each, is_recheck=is_recheck)]
        for start in range(0, len(to_read), _AT_ONCE):
            await self._read(to_read[start : start + _AT_ONCE])

    def _note(self, found: FoundEntry, *, is_recheck: bool) -> bool:
        """Take in that an entry is there; returns whether it is to be read."""
        known = self._items.get(item_id(found.path))
        if found.kind is ItemKind.RUN and not found.is_closed:
            state = ItemState.RECORDING if is_held(self.root / found.path) else ItemState.UNCLOSED
            if known is None or known.state is not state:
                self._put(Item(found.path, found.kind, state, found.stamp))
            return False
        if known is not None and known.stamp == found.stamp and known.state is not ItemState.PENDING:
            # The stamp of a run is that of its meta data: its tables can change without it.
            return is_recheck and known.kind is ItemKind.RUN and known.state is ItemState.DAMAGED
        if known is None or known.state in (ItemState.RECORDING, ItemState.UNCLOSED):
            self._put(Item(found.path, found.kind, ItemState.PENDING, found.stamp))
        return True

    async def _read(self, entries: list[FoundEntry]) -> None:
        asked = [[each.path, each.kind.value] for each in entries]
        replies = await self._worker.call("digests", root=str(self.root), entries=asked)
        for found, reply in zip(entries, replies, strict=True):
            self._take(found, reply)

    def _take(self, found: FoundEntry, reply: Plain) -> None:
        if "problem" in reply:
            problem = Problem(*reply["problem"])
            self._put(Item(found.path, found.kind, ItemState.DAMAGED, found.stamp, problem=problem))
        elif reply["digest"] is None:
            # A file of other software: remembered, so that it is not read again, and not shown.
            self._put(Item(found.path, ItemKind.RESULT, ItemState.READY, found.stamp))
        else:
            kind = ItemKind(reply["digest"]["kind"])
            self._put(Item(found.path, kind, ItemState.READY, found.stamp, digest=reply["digest"]))

    def _put(self, item: Item) -> None:
        if self._items.get(item.item_id) == item:
            return
        self.version += 1
        self._items[item.item_id] = item
        self._changed[item.item_id] = self.version
        self._removed.pop(item.item_id, None)

    def _remove(self, gone: str) -> None:
        self.version += 1
        del self._items[gone], self._changed[gone]
        self._removed[gone] = self.version
        if len(self._removed) > _MOST_REMOVED:
            self._oldest_removed = self._removed.pop(next(iter(self._removed)))

    def since(self, version: int) -> Plain:
        """Return what has changed since a version, or everything if that is too long ago."""
        is_whole = not self._oldest_removed < version <= self.version
        items = self._items.values() if is_whole else self._newer(version)
        return {
            "version": self.version,
            "whole": is_whole,
            "items": [each.to_plain() for each in items if not each.is_foreign],
            "removed": [] if is_whole else [each for each, at in self._removed.items() if at > version],
            "pending": self.pending(),
            "cut": None if self._cut is None else asdict(self._cut),
        }

    def _newer(self, version: int) -> list[Item]:
        return [self._items[each] for each, at in self._changed.items() if at > version]
