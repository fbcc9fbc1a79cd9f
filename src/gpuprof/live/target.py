# SPDX-License-Identifier: Apache-2.0
"""What a live view shows: a run, a process with its run, or the machine."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import GpuprofError, RunError
from gpuprof.live.feed import Feed
from gpuprof.live.processes import PROC, mapped_files, read_process
from gpuprof.live.requests import RequestFollower
from gpuprof.load.published import LIVE_FILE
from gpuprof.record.recording_folder import SEGMENTS, is_held


def open_feed(target: str | None) -> Feed:
    """Return the feed of a run's folder, of a load test's, of a process id, or of the machine (None).

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
    path = Path(target)
    if (path / LIVE_FILE).is_file():
        tester = RequestFollower(path / LIVE_FILE).process_id
        return Feed(None, () if tester is None else (tester,), load=path)
    feed = Feed(path)
    if not feed.has_live_process():
        _refuse_ended(path)
    return feed


def _refuse_ended(run: Path) -> None:
    """Raise RunError unless a program records into a run: its processes can be those of another container."""
    if not is_held(run):
        raise RunError(
            "not_recording",
            f"{run} was not closed, and its program has ended",
            hint=f"gpuprof summary {run} closes and reads it",
        )


def run_of(process_id: int, proc: Path = PROC) -> Path | None:
    """Return the run that a process records into; None if it records none, or /proc does not show it.

    A recording has its segments mapped, so they are in the process's list of mappings.
    """
    for path in mapped_files(process_id, ".segment", proc):
        if path.parent.name == SEGMENTS:
            return path.parent.parent
    return None
