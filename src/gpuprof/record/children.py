# SPDX-License-Identifier: Apache-2.0
"""Python processes that a recorded program starts, and that record into the program's run.

They find our `startup` folder on their path and the run in one environment variable, which they leave to
their own children. A process that cannot join, for whatever reason, prints nothing and runs as it would have
run without us; where there is a run that is being recorded, it gets a note with the reason.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.errors import one_line
from gpuprof.record.collector import offer_collector
from gpuprof.record.environment import CHILDREN_VARIABLE, python_path
from gpuprof.record.facts import Note, NoteCode, SourceStatus, error_line, note
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording import Recording, record_program
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS, write_json

FACTS_SUFFIX = ".facts"

_HINT = "what was recorded is kept; leave Python's own functions and modules as they are to have all of it"
_HELPER = "multiprocessing.resource_tracker"


def offer_run(run: Path, options: RecordingOptions) -> None:
    """Have the Python processes that this one starts record into the run that it has begun."""
    offered = {
        "options": options.for_child().to_plain(),
        "run": str(run),
        "process_id": os.getpid(),
        "gpuprof": _native.build_info()["version"],
        "rank": _rank(),
    }
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))
    os.environ[CHILDREN_VARIABLE] = json.dumps(offered)


def join_run() -> None:
    """Record this process into the run that the environment names, if that is still being recorded."""
    offered = _open_run()
    if offered is None:
        return
    try:
        _join(offered)
    except Exception as error:
        # The program that starts here knows nothing of us, whatever it is that fails.
        not_recorded = note(NoteCode.PROCESS_NOT_RECORDED, error=error_line(error))
        _leave_note(Path(offered["run"]) / SEGMENTS, not_recorded)


def _open_run() -> dict[str, Any] | None:
    """Return the run that is offered; None where this process may not join it, or it is none, or gone."""
    try:
        offered: dict[str, Any] = json.loads(os.environ[CHILDREN_VARIABLE])
        return offered if _may_join(offered) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # and there is no run for a note


def _leave_note(segments: Path, left: Note) -> None:
    """Leave a note for the process that closes the run, though this one may have no events in it."""
    # The run may have been closed meanwhile, or its disk be full.
    with contextlib.suppress(OSError):
        facts = {"process_id": os.getpid(), "joined": False, "notes": [left.to_plain()]}
        write_json(_new_facts_file(segments), facts)


def _new_facts_file(segments: Path) -> Path:
    return segments / f"{os.getpid()}-{time.monotonic_ns()}{FACTS_SUFFIX}"


def stop_at_exit(recording: Recording) -> None:
    """Stop last of all exit handlers, after the program's threads have ended.

    A forked child that ends as its parent does stops only what PyTorch would complain of on standard error.
    """
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:
            recording.stop()
        else:
            recording.stop_announcements()

    at_exit(stop)


def at_exit(end: Callable[[], None]) -> None:
    """Have a recording end last of all exit handlers; whatever fails there is one line.

    Until then the program may have replaced any function of Python, and removed any module.
    """
    # What the report needs is taken now, while it is there.
    line_of, in_one_line, write = error_line, one_line, os.write

    def end_and_report() -> None:
        try:
            end()
        except BaseException as error:  # an interrupt, too: this is the end already
            what = f"the recording did not end in order: {in_one_line(line_of(error))}"
            try:
                write(2, f"gpuprof: {what}; hint: {_HINT}\n".encode(errors="backslashreplace"))
            except OSError:
                return  # standard error was closed

    atexit.register(end_and_report)


def _may_join(offered: dict[str, Any]) -> bool:
    is_helper = any(_HELPER in word for word in sys.orig_argv)
    if is_helper or offered["gpuprof"] != _native.build_info()["version"]:
        return False
    facts = json.loads(Path(offered["run"], RECORDING_FILE).read_bytes())
    return facts["process_id"] == offered["process_id"] and not facts["closed"]


def _join(offered: dict[str, Any]) -> None:
    options = RecordingOptions.from_plain(offered["options"])
    if options.operators:
        offer_collector()
    recording = ChildRecording(Path(offered["run"]), options, rank_around=offered["rank"])
    os.environ[CHILDREN_VARIABLE] = json.dumps({**offered, "rank": _rank()})
    record_program(recording)
    stop_at_exit(recording)


class ChildRecording(Recording):
    """This process's part of a run. Like a forked child's it leaves nothing where there were no events."""

    def __init__(self, run: Path, options: RecordingOptions, *, rank_around: int | None) -> None:
        super().__init__(run, options)
        self._rank_around = rank_around
        self._facts_file = _new_facts_file(self.path / SEGMENTS)

    def _take_folder(self) -> None:
        """Leave it to the program that holds it."""

    def _start_native(self) -> None:
        _native.start_recording(os.fsencode(self.path / SEGMENTS), joins=True)
        if self._options.python in (True, "pyinstrument"):
            # With Python's stacks in the tree, even a process without events has its place.
            _native.make_recording_files()

    def _start_samples(self) -> None:
        """Leave the devices to the program's own recording: they are the same for all processes."""

    def _torch_imported(self) -> None:
        if self.is_of_other_process:
            self._continue_in_fork()
        super()._torch_imported()

    def _continue_in_fork(self) -> None:
        # What a forkserver forks imports PyTorch for itself, so it has sources and an end of its own.
        self._process_id = os.getpid()
        self._facts = {**self._facts, "process_id": self._process_id}
        for fact in ("rank", "world_size"):
            self._facts.pop(fact, None)
        self._facts_file = _new_facts_file(self.path / SEGMENTS)
        from gpuprof.record.kernels import at_end_of_child

        at_end_of_child(self.stop)

    def _start_torch_sources(self) -> None:
        super()._start_torch_sources()
        self._make_files_for_gpu()

    def _kernels_began(self, status: SourceStatus) -> None:
        super()._kernels_began(status)
        self._make_files_for_gpu()

    def _make_files_for_gpu(self) -> None:
        # Records of the GPU may be all that there is, and they belong to a process that is in the run.
        kernels = self._statuses.get("kernels")
        if kernels is not None and kernels.is_on:
            _native.make_recording_files()

    def _save(self, *, closed: bool) -> None:
        rank = _rank()
        # A launcher gives each process its own; what a rank starts has inherited the number.
        if rank is not None and rank != self._rank_around:
            self._facts["rank"] = rank
            if (ranks := _number("WORLD_SIZE")) is not None:
                self._facts["world_size"] = ranks
        if "torch" in sys.modules or "rank" in self._facts or self._notes:
            with contextlib.suppress(OSError):
                super()._save(closed=closed)


def _rank() -> int | None:
    return _number("RANK", "LOCAL_RANK")


def _number(*variables: str) -> int | None:
    """Return the number in the first of these environment variables that is set."""
    value = next(filter(None, map(os.environ.get, variables)), "")
    return int(value) if value.isdecimal() else None
