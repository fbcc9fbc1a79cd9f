# SPDX-License-Identifier: Apache-2.0
"""Paths that DuckDB takes literally.

DuckDB reads more into a path than a path: `*` and `[` are patterns, `~` a home, `name=x` a partition, and
it knows no bytes that are not UTF-8. A run may lie anywhere, so such a path is reached through a link.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpuprof.record.temporary import TemporaryFolder

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
