# SPDX-License-Identifier: Apache-2.0
"""Folders that remove themselves, and paths that DuckDB takes literally.

DuckDB reads more into a path than a path: `*` and `[` are patterns, `~` a home, `name=x` a partition, and
it knows no bytes that are not UTF-8. A run may lie anywhere, so such a path is reached through a link.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from pathlib import Path


class TemporaryFolder:
    """A folder that is removed with the last reference to this object, only by the process that made it."""

    def __init__(self, prefix: str = "gpuprof-") -> None:
        import tempfile  # with it come the random numbers and OpenSSL's hashes

        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        weakref.finalize(self, _remove, os.getpid(), str(self.path))


def _remove(process_id: int, path: str) -> None:
    if os.getpid() == process_id:
        shutil.rmtree(path, ignore_errors=True)


_LITERAL = re.compile(r"[A-Za-z0-9_./ ,+@-]*")


class PlainPath:
    """`path` is the folder under a name without surprises, as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve()
        self._link: TemporaryFolder | None = None
        if not _LITERAL.fullmatch(str(self.path)):
            self._link = TemporaryFolder()
            link = self._link.path / "run"
            link.symlink_to(self.path, target_is_directory=True)
            self.path = link
