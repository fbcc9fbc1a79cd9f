# SPDX-License-Identifier: Apache-2.0
"""Pages that were asked for, in a temporary folder of the server: rendered once, the oldest removed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import html
import os
import re
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.catalog import Catalog
from gpuprof.live.dashboard.items import Item, ItemKind, ItemState
from gpuprof.live.dashboard.rendering import PAGES
from gpuprof.live.dashboard.workers import Worker

MOST_PAGES = 40
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_PREFIX = "gpuprof-dashboard-"
_LEFT_NAME = re.compile(_PREFIX + r"(\d{1,10})-[a-z0-9_]+")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HEAD_BYTES = 64 << 10
# No page of a run can ask this server for anything, or read what others show.
_MORE_POLICY = "; frame-ancestors 'none'; sandbox allow-scripts allow-downloads allow-modals allow-popups"


def no_such_item() -> GpuprofError:
    """Return the error of an entry that is not in the folder, or not any more."""
    return GpuprofError("no_such_item", "there is no such entry any more", hint="go back to the list")


class RenderedPages:
    """Renders pages of entries in a worker of its own, one after the other."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._worker = Worker()
        self._folder = PageFolder()
        self._pages: OrderedDict[str, Path] = OrderedDict()
        self._rendering: dict[str, asyncio.Task[Path]] = {}

    def ready(self, wanted: str) -> Item:
        """Return an entry that can be read. Raises GpuprofError."""
        item = self._catalog.item(wanted)
        if item is None:
            raise no_such_item()
        if item.state is not ItemState.READY:
            raise item.refusal()
        return item

    async def page(self, wanted: str, name: str) -> Path:
        """Return the file with a page of an entry. Raises GpuprofError."""
        item = self.ready(wanted)
        if name not in PAGES.get(item.kind, ()):
            raise GpuprofError(
                "no_such_page", f"a {item.kind.value} has no page {name}", hint="use a page of its list"
            )
        key = f"{wanted}-{name}-{_stamp_text(item)}"
        arguments = {"path": item.path, "kind": item.kind.value, "page": name}
        return await self._rendered("render", key, **arguments)

    async def difference(self, old: str, new: str) -> Path:
        """Return the flame graph of two runs, or the report of two load tests. Raises GpuprofError."""
        items = self.ready(old), self.ready(new)
        kinds = {each.kind for each in items}
        if kinds not in ({ItemKind.RUN}, {ItemKind.LOAD}):
            raise GpuprofError(
                "no_such_page",
                "only two runs or two load tests have a page of their difference",
                hint="choose two of one kind",
            )
        key = "-against-".join(f"{each.item_id}-{_stamp_text(each)}" for each in items)
        sides = {"old": items[0].path, "new": items[1].path}
        return await self._rendered("difference", key, **sides, kind=items[0].kind.value)

    async def compare(self, old: str, new: str) -> dict[str, object]:
        """Return the comparison of two entries. Raises GpuprofError."""
        pair = {name: self.ready(each) for name, each in (("old", old), ("new", new))}
        sides = {name: [each.path, each.kind.value] for name, each in pair.items()}
        found: dict[str, object] = await self._worker.call("compare", root=str(self._catalog.root), **sides)
        return found

    async def _rendered(self, call: str, key: str, **arguments: str) -> Path:
        name = hashlib.blake2s(key.encode("ascii"), digest_size=16).hexdigest()
        if name in self._pages:
            self._pages.move_to_end(name)
            return self._pages[name]
        task = self._rendering.get(name)
        if task is None:
            task = self._rendering[name] = asyncio.create_task(self._render(call, name, arguments))
            task.add_done_callback(lambda done: self._has_rendered(name, done))
        # Others may wait for the same page, so one that is closed meanwhile does not end it.
        return await asyncio.shield(task)

    def _has_rendered(self, name: str, task: asyncio.Task[Path]) -> None:
        del self._rendering[name]
        if not task.cancelled():
            task.exception()  # for those that wait; if there are none any more, it is not reported

    async def _render(self, call: str, name: str, arguments: dict[str, str]) -> Path:
        path = self._folder.path / f"{name}.html"
        await self._worker.call(call, root=str(self._catalog.root), out=str(path), **arguments)
        self._pages[name] = path
        while len(self._pages) > MOST_PAGES:
            _, old = self._pages.popitem(last=False)
            old.unlink(missing_ok=True)
        return path

    async def close(self) -> None:
        """End the worker and remove the pages."""
        for task in self._rendering.values():
            task.cancel()
        await asyncio.gather(*self._rendering.values(), return_exceptions=True)
        await self._worker.close()
        self._folder.close()


class PageFolder:
    """The temporary folder of a server. It is locked as long as its process lives.

    Folders of processes that were killed are removed: those of this user, whose lock is free, and whose
    process is gone. The lock is visible in containers that have the same folder and other ids of processes.
    """

    def __init__(self) -> None:
        _remove_left_folders(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._lock = os.open(self.path, _OPEN_FOLDER)
        with contextlib.suppress(OSError):  # a file system without locks: the process id is left
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left_folders(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            found = _LEFT_NAME.fullmatch(folder.name)
            if found is not None and not _is_running(int(found[1])) and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _is_left(folder: Path) -> bool:
    """Whether a folder is this user's, and no process has locked it. A link is not."""
    try:
        opened = os.open(folder, _OPEN_FOLDER)
    except OSError:
        return False
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            return False
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(opened)
    return True


def _stamp_text(item: Item) -> str:
    return f"{item.stamp.mtime_ns}-{item.stamp.size}-{item.stamp.inode}"


def policy_of_page(path: Path) -> str:
    """Return the policy that a rendered page has itself, with what only a header can add."""
    with path.open("rb") as file:
        found = _POLICY.search(file.read(_HEAD_BYTES))
    own = "default-src 'none'" if found is None else html.unescape(found[1].decode("utf-8"))
    return own + _MORE_POLICY
