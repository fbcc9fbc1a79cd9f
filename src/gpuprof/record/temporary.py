# SPDX-License-Identifier: Apache-2.0
"""Folders that go by themselves, quietly."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryFolder:
    """A folder that is removed when nobody holds this object, by the process that made it only."""

    def __init__(self, prefix: str = "gpuprof-") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        weakref.finalize(self, _remove, os.getpid(), str(self.path))


def _remove(process_id: int, path: str) -> None:
    if os.getpid() == process_id:
        shutil.rmtree(path, ignore_errors=True)
