# SPDX-License-Identifier: Apache-2.0
"""Writes a run for another tool, in the format of the file's extension."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gpuprof.errors import RunError
from gpuprof.render.chrome import write_chrome
from gpuprof.render.folded import write_folded
from gpuprof.render.perfetto import write_perfetto
from gpuprof.render.slices import SliceSource
from gpuprof.render.speedscope import write_speedscope
from gpuprof.render.table_file import write_parquet
from gpuprof.render.tensorboard import write_tensorboard
from gpuprof.run.folder import RunFolder

# Writes a run to a file that does not exist yet, in a folder that takes its temporary files.
Writer = Callable[[RunFolder, Path], None]


def _from_slices(write: Callable[[SliceSource, IO[bytes]], None]) -> Writer:
    def write_run(run: RunFolder, path: Path) -> None:
        source = SliceSource(run, path.parent)
        try:
            with path.open("wb") as file:
                write(source, file)
        finally:
            source.close()

    return write_run


def _from_run(write: Callable[[RunFolder, IO[bytes]], None]) -> Writer:
    def write_run(run: RunFolder, path: Path) -> None:
        with path.open("wb") as file:
            write(run, file)

    return write_run


# By extension: where several fit, the longest counts.
FORMATS: dict[str, Writer] = {
    ".pftrace": _from_slices(write_perfetto),
    ".json": _from_slices(write_chrome),
    ".pt.trace.json": _from_slices(write_tensorboard),
    ".speedscope.json": _from_slices(write_speedscope),
    ".folded": _from_run(write_folded),
    ".parquet": write_parquet,
}


def format_of(path: Path) -> str:
    """Return the extension of FORMATS that `path` has. Raises RunError where it has none."""
    fitting = [extension for extension in FORMATS if path.name.lower().endswith(extension)]
    if not fitting:
        raise RunError(
            "unknown_format", f"{path}: unknown extension", hint=f"choose one of {' '.join(FORMATS)}"
        )
    return max(fitting, key=len)


def export_run(run: RunFolder, path: Path) -> Path:
    """Write `run` to `path` and return the path; an older file is replaced once the new one is whole."""
    write = FORMATS[format_of(path)]
    import duckdb

    draft = None
    try:
        # Next to the file, since what is sorted there may be larger than a temporary folder.
        draft = Path(tempfile.mkdtemp(prefix=".gpuprof-export-", dir=path.parent))
        write(run, draft / "trace")
        (draft / "trace").replace(path)
    except OSError as error:
        raise RunError(
            "cannot_write",
            f"cannot write {path}: {error.strerror}",
            hint="specify a file that can be written",
        ) from None
    except duckdb.Error as error:
        reason, hint = run.failure_of(error)
        raise RunError("cannot_export", f"cannot export {run.path} to {path}: {reason}", hint=hint) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return path
