# SPDX-License-Identifier: Apache-2.0
"""The Parquet files of a run, and the entry of each in `meta.json`, by which a reader recognizes it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError
from gpuprof.record.recording_folder import write_json
from gpuprof.run.format import META_FILE, TABLES

# A Parquet file begins and ends with it (parquet.apache.org/docs/file-format).
_MAGIC = b"PAR1"
_BLOCK_BYTES = 1 << 20
# Of a larger file only the size is compared with the entry: to read a gigabyte takes a second.
_MOST_BYTES = 1 << 28


def write_meta(run: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Write `meta.json` of a run whose tables are on the disk; returns all of it. Raises OSError."""
    parts = {
        part.relative_to(run).as_posix(): {"bytes": part.stat().st_size, "crc32": _checksum(part)}
        for table in sorted(TABLES)
        if (run / table).is_dir()
        for part in _parts_of(run / table)
    }
    whole = {**meta, "parts": parts}
    write_json(run / META_FILE, whole)
    return whole


def problem_of_parts(run: Path, table: str, entries: dict[str, Any], *, is_quick: bool = False) -> str | None:
    """Return in a few words what is wrong with the files of a table, None where nothing is.

    `entries` are those of the run's parts in `meta.json`; parts that were added by hand have none.
    DuckDB itself detects only a cut in the first part, and a changed byte only where its page cannot be
    unpacked. With `is_quick` only sizes, first and last bytes are read, and links are not followed.

    Raises RunError where a file may not be read.
    """
    missing = {name for name in entries if name.startswith(f"{table}/")}
    try:
        for part in _parts_of(run / table):
            name = part.relative_to(run).as_posix()
            missing.discard(name)
            if is_quick and part.is_symlink():
                continue
            if problem := _problem_of(part, entries.get(name), is_quick=is_quick):
                return f"{name} {problem}"
    except PermissionError as error:
        raise RunError(
            "not_permitted",
            f"cannot read {error.filename}: {error.strerror}",
            hint="ask its owner for permission",
        ) from None
    except OSError as error:
        name = Path(error.filename).relative_to(run).as_posix() if error.filename else table
        return f"{name}: {error.strerror}"
    return f"{min(missing)} is missing" if missing else None


def _parts_of(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    return sorted(
        Path(root, name)
        for root, folders, files in os.walk(folder, onerror=refuse)
        for name in (*folders, *files)
        if name.endswith(".parquet")
    )


def _problem_of(part: Path, entry: object, *, is_quick: bool) -> str | None:
    if not is_whole(part):
        return "is no whole Parquet file"
    if not isinstance(entry, dict):
        return None
    size = part.stat().st_size
    is_same = size == entry.get("bytes") and (
        is_quick or size > _MOST_BYTES or _checksum(part) == entry.get("crc32")
    )
    return None if is_same else "is not as it was written"


def is_whole(part: Path) -> bool:
    """Return whether a file begins and ends as Parquet does. Raises OSError."""
    with part.open("rb") as file:
        begin = file.read(len(_MAGIC))
        file.seek(0, os.SEEK_END)
        if file.tell() < 3 * len(_MAGIC):
            return False
        file.seek(-len(_MAGIC), os.SEEK_END)
        return begin == _MAGIC == file.read()


def _checksum(part: Path) -> int:
    checksum = 0
    with part.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum
