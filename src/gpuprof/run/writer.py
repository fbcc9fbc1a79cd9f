# SPDX-License-Identifier: Apache-2.0
"""Closing a run: the segments of a recording become Parquet tables and `meta.json`."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gpuprof.errors import MEMORY_HINT, RunError
from gpuprof.record.recording_folder import LOCK_FILE, RECORDING_FILE, SEGMENTS, exclusive
from gpuprof.run.database import check_memory, enough_memory
from gpuprof.run.facts import current_format
from gpuprof.run.format import META_FILE, TABLES, read_json
from gpuprof.run.meta import meta_of
from gpuprof.run.parts import write_meta
from gpuprof.run.quick_switching import quick_switching
from gpuprof.run.samples import SampledDevices
from gpuprof.run.spanless import write_spanless


def preload() -> None:
    """Import what `close_run` needs."""
    import duckdb  # noqa: F401

    from gpuprof.run import recorded_tables  # noqa: F401


@quick_switching()
def close_run(path: Path, into: Path | None = None) -> dict[str, Any]:
    """Write the tables and `meta.json` of a recording that has ended; returns the meta data.

    The recording's own files are removed once everything else is on disk. With `into`, they are left
    alone and the run is written to that folder. Raises RunError with a hint.
    """
    with exclusive(path) as free, _enough_memory(path):
        if not free:
            raise RunError(
                "still_recording",
                f"{path} is still being recorded",
                hint=f"gpuprof top {path} follows it; other commands open it once its program has ended",
            )
        if (path / META_FILE).exists() and not (path / RECORDING_FILE).exists():
            return read_json(path / META_FILE)  # another thread or process was faster
        facts = current_format(read_json(path / RECORDING_FILE), path)
        if not _has_events(path / SEGMENTS):
            raise RunError(
                "damaged",
                f"the files of the recording in {path / SEGMENTS} are gone",
                hint="restore them from a copy, or record again and leave them until the program has ended",
            )
        target = path if into is None else into
        try:
            _remove_tables(target)
            decoded, sampled = write_spanless(path / SEGMENTS, target), SampledDevices()
            if decoded is None:
                check_memory()
                from gpuprof.run.recorded_tables import write_recorded

                decoded, sampled, facts = write_recorded(path, target, facts)
            meta = write_meta(target, meta_of(facts, decoded, sampled, path))
        except OSError as error:
            raise RunError(
                "cannot_write",
                f"cannot write the tables of {path}: {error.strerror}; what was recorded is kept",
                hint="free disk space or make the folder writable, then open it again",
            ) from None
        if into is None:
            _remove_recording(path)
    return meta


def _has_events(segments: Path) -> bool:
    """Whether a recording has files of its begin. Those that are gone are made again at its end, empty."""
    files = (file for suffix in ("names", "segment") for file in segments.glob(f"*.{suffix}"))
    return any(file.stat().st_size for file in files)


def _enough_memory(path: Path) -> AbstractContextManager[None]:
    return enough_memory(
        f"to write the tables of {path}; what was recorded is kept", hint=f"{MEMORY_HINT}, then open it again"
    )


def _remove_tables(target: Path) -> None:
    """Remove parts of an earlier attempt that was interrupted: they would count twice."""
    for table in TABLES:
        shutil.rmtree(target / table, ignore_errors=True)


def _remove_recording(path: Path) -> None:
    shutil.rmtree(path / SEGMENTS, ignore_errors=True)
    for name in (RECORDING_FILE, LOCK_FILE):
        (path / name).unlink(missing_ok=True)
