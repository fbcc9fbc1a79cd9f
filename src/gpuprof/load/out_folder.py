# SPDX-License-Identifier: Apache-2.0
"""The folder that results are written to: checked before a test that takes long."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpuprof.errors import RunError


def check_out(folder: Path, *, may_exist: bool = False) -> None:
    """Raise RunError for a folder that has files, as those of another result, or cannot be written to.

    With `may_exist`, it can have files.
    """
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise _not_writable(folder, f"{existing.name} is a file")
    try:
        if not may_exist and folder.is_dir() and any(folder.iterdir()):
            raise RunError("exists", f"{folder} exists", hint="choose another --out, or remove it")
        with tempfile.TemporaryDirectory(dir=existing, prefix=".gpuprof-"):
            pass
    except OSError as error:
        raise _not_writable(folder, error.strerror or str(error)) from None


def _not_writable(folder: Path, reason: str) -> RunError:
    return RunError("cannot_write", f"{folder}: cannot be written ({reason})", hint="choose another --out")
