# SPDX-License-Identifier: Apache-2.0
"""The recording of a whole program, begun before its first line and ended after its last.

`gpuprof run` starts Python with this package's `startup` folder on its path and the options in one
environment variable. The program finds neither: both are taken back before it begins. With `--children`
the folder stays, and another variable has Python processes that the program starts join the run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.record.children import at_exit, offer_run, stop_at_exit
from gpuprof.record.collector import offer_collector
from gpuprof.record.environment import OPTIONS_VARIABLE
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording import Recording, record_program
from gpuprof.record.recording_folder import mark_refused


def begin() -> None:
    """Begin the recording that the environment describes. Prints a line when it cannot."""
    described: dict[str, Any] = json.loads(os.environ.pop(OPTIONS_VARIABLE))
    _restore("PYTHONPATH", described["PYTHONPATH"])
    # What few programs need is imported by these alone: each module delays the start of the program.
    if "profiler" in described:
        from gpuprof.record.other_profilers import begin_profiler

        begin_profiler(described["profiler"], Path(described["results"]))
        return
    if "windows" in described:
        _begin_windows(described)
        return
    options = RecordingOptions.from_plain(described["options"])
    if options.operators:
        offer_collector()
    recording = Recording(Path(described["out"]), options)
    recording.command = [sys.executable, described["target"], *described["arguments"]]
    try:
        record_program(recording)
    except (GpuprofError, OSError) as error:
        # The program is worth more than its profile.
        line = f"gpuprof: the program runs without being recorded: {_with_hint(error)}"
        print(line, file=sys.stderr, flush=True)
        mark_refused(recording.path)
        return
    stop_at_exit(recording)
    if options.children:
        offer_run(recording.path, options)


def _begin_windows(described: dict[str, Any]) -> None:
    """Begin to record windows, to the end of the program. Prints a line when it cannot."""
    from gpuprof.record.window_options import WindowOptions
    from gpuprof.record.window_sampler import WindowRecorder

    options = RecordingOptions.from_plain(described["options"])
    if options.operators:
        offer_collector()
    recorder = WindowRecorder(Path(described["out"]), WindowOptions.from_plain(described["windows"]), options)
    recorder.sampler.command = [sys.executable, described["target"], *described["arguments"]]
    try:
        recorder.start()
    except (GpuprofError, OSError) as error:
        line = f"gpuprof: the program runs without windows: {_with_hint(error)}"
        print(line, file=sys.stderr, flush=True)
        return
    at_exit(recorder.stop)


def _with_hint(error: GpuprofError | OSError) -> str:
    """Return the text of an error; the system's own errors have no hint."""
    if isinstance(error, GpuprofError):
        return str(error)
    return f"{error}; hint: free disk space, or specify another folder"


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        del os.environ[variable]
    else:
        os.environ[variable] = value
