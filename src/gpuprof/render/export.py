# SPDX-License-Identifier: Apache-2.0
"""Writing a run for another tool: the ending of the file names the format."""

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

_FROM_SLICES: dict[str, Callable[[SliceSource, IO[bytes]], None]] = {
    ".pftrace": write_perfetto,
    ".speedscope.json": write_speedscope,
    ".pt.trace.json": write_tensorboard,
    ".json": write_chrome,
}
# The first that fits counts.
FORMATS = (".pftrace", ".speedscope.json", ".pt.trace.json", ".json", ".folded", ".parquet")


def format_of(path: Path) -> str:
    """Return the ending of FORMATS that `path` has. Raises RunError where it has none."""
    for ending in FORMATS:
        if path.name.lower().endswith(ending):
            return ending
    raise RunError(f"{path}: its ending names no format; choose one of {' '.join(FORMATS)}")


def export_run(run: RunFolder, path: Path) -> Path:
    """Write `run` to `path` and return the path; an older file is replaced once the new one is whole."""
    ending = format_of(path)
    import duckdb

    draft = None
    try:
        # Beside the file, since what is sorted there may be larger than a temporary folder.
        draft = Path(tempfile.mkdtemp(prefix=".gpuprof-export-", dir=path.parent))
        _write(run, ending, draft)
        (draft / "trace").replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; name a file that can be written") from None
    except duckdb.Error as error:
        raise RunError(f"cannot export {run.path} to {path}: {run.failure_of(error)}") from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return path


def _write(run: RunFolder, ending: str, draft: Path) -> None:
    if ending == ".parquet":
        return write_parquet(run, draft / "trace")
    with (draft / "trace").open("wb") as file:
        if ending == ".folded":
            return write_folded(run, file)
        source = SliceSource(run, draft)
        try:
            _FROM_SLICES[ending](source, file)
        finally:
            source.close()
    return None
