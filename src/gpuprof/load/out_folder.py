# SPDX-License-Identifier: Apache-2.0
"""The folder that results are written to: checked before a test that takes long."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuprof.errors import RunError

# What `gpuprof load` writes to --out, with the options that write it.
SINGLE_RESULT = "result.json"
SOAK_RESULT, SWEEP_RESULT = "soak.json", "sweep.json"
RATE_RESULT, MLPERF_RESULT = "max_rate.json", "mlperf.json"
SEVERAL_RESULTS = {
    SOAK_RESULT: "--scenario soak",
    SWEEP_RESULT: "several numbers for --concurrency",
    RATE_RESULT: "--find-max-rate",
    MLPERF_RESULT: "--mlperf",
}


def check_out(folder: Path, *, may_exist: bool = False) -> None:
    """Raise RunError for a folder that has files, as those of another result, or cannot be written to.

    With `may_exist`, it can have files, but no result.
    """
    existing = folder.absolute()
    while not existing.exists() and not existing.is_symlink() and existing != existing.parent:
        existing = existing.parent
    if existing.is_symlink() and not existing.exists():
        raise _not_writable(folder, f"{existing.name} is a symbolic link to nothing")
    if not existing.is_dir():
        raise _not_writable(folder, f"{existing.name} is a file")
    try:
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        if any(name == SINGLE_RESULT or name in SEVERAL_RESULTS for name in names) or (
            names and not may_exist
        ):
            raise RunError("exists", f"{folder} exists", hint="choose another --out, or remove it")
        with tempfile.TemporaryDirectory(dir=existing, prefix=".gpuprof-"):
            pass
    except OSError as error:
        raise _not_writable(folder, error.strerror or str(error)) from None


@contextlib.contextmanager
def new_folder(first: Path) -> Iterator[Path]:
    """Make a folder for a test: the first of NAME, NAME-2, ... that is free. It is removed if it stays empty.

    It is made at once, so that a test that runs next to this one takes another. Raises RunError.
    """
    from gpuprof.record.supervise import numbered_names

    for folder in numbered_names(first.name, first.parent, suffix=""):
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_writable(folder, error.strerror or str(error)) from None
        break
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # it has files
            folder.rmdir()


def _not_writable(folder: Path, reason: str) -> RunError:
    return RunError("cannot_write", f"{folder}: cannot be written ({reason})", hint="choose another --out")
