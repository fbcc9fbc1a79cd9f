# SPDX-License-Identifier: Apache-2.0
"""The folder that results are written to: checked before a test that takes long."""

from __future__ import annotations

import os
from pathlib import Path

from gpuprof.errors import RunError


def check_writable(folder: Path) -> None:
    """Raise RunError for a folder that cannot be made or written to; makes nothing."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    reason = ""
    if not existing.is_dir():
        reason = f"{existing.name} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = "no permission"
    if reason:
        raise RunError("cannot_write", f"{folder}: cannot be written ({reason})", hint="choose another --out")
