# SPDX-License-Identifier: Apache-2.0
"""Any trace that can be imported: which format a file is of, and the run that it becomes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError

_SQLITE_MAGIC = b"SQLite format 3\x00"


def import_trace(trace: str | os.PathLike[str], out: str | os.PathLike[str]) -> dict[str, Any]:
    """Write the run folder `out` from a trace; returns the run's meta data.

    Reads Chrome's JSON format as torch.profiler writes it, plain or gzip, and the SQLite export of Nsight
    Systems. Raises RunError for a file that is neither, and RecordingError where `out` cannot be made.
    """
    from gpuprof.run.imports.chrome import read_chrome
    from gpuprof.run.imports.imported_run import imported_run
    from gpuprof.run.imports.nsys import read_nsys

    path = Path(trace)
    head = _head(path)
    read = read_nsys if head.startswith(_SQLITE_MAGIC) else read_chrome
    with imported_run(out) as run:
        return run.finish(read(path, run))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise RunError(
            "cannot_read", f"cannot read {path}: {error.strerror}", hint="specify a trace that can be read"
        ) from None
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise RunError(
            "needs_nsys_export",
            f"{path} is a report that only Nsight Systems reads",
            hint=f"run `nsys export --type sqlite {shlex.quote(str(path))}`, and import its output",
        )
    return head
