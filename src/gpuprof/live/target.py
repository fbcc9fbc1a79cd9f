# SPDX-License-Identifier: Apache-2.0
"""What a live view shows: a run, a process with its run, or the machine."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.live.feed import Feed
from gpuprof.live.processes import PROC, read_process
from gpuprof.record.recording_folder import SEGMENTS


def open_feed(target: str | None) -> Feed:
    """Return the feed of a run's folder, of a process id, or of the machine (None).

    Raises RunError or GpuprofError for a target that does not exist.
    """
    if target is None:
        return Feed()
    if target.isdecimal() and not Path(target).exists():
        process_id = int(target)
        if read_process(process_id) is None:
            raise GpuprofError(
                "no_such_process", f"there is no process {process_id}", hint="ps shows the ids"
            )
        return Feed(run_of(process_id), (process_id,))
    return Feed(Path(target))


def run_of(process_id: int, proc: Path = PROC) -> Path | None:
    """Return the run that a process records into; None if it records none, or /proc does not show it.

    A recording has its segments mapped, so they are in the process's list of mappings.
    """
    try:
        lines = (proc / str(process_id) / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if path.suffix == ".segment" and path.parent.name == SEGMENTS and path.exists():
            return path.parent.parent
    return None
