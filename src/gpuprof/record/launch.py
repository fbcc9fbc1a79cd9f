# SPDX-License-Identifier: Apache-2.0
"""The recording of a whole program, begun before its first line and ended after its last.

`gpuprof run` starts Python with this package's `startup` folder on its path and the options in one
environment variable. The program finds neither: both are taken back before it begins.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.record.collector import offer_collector
from gpuprof.record.other_profilers import begin_profiler
from gpuprof.record.recording import Recording, record_program

OPTIONS_VARIABLE = "GPUPROF_RUN"
STARTUP_FOLDER = Path(__file__).with_name("startup")


def environment_for(options: dict[str, Any]) -> dict[str, str]:
    """Return the environment in which a new Python process begins a recording by itself."""
    former = os.environ.get("PYTHONPATH")
    parts = [str(STARTUP_FOLDER), *([former] if former else [])]
    described = json.dumps({**options, "PYTHONPATH": former})
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts), OPTIONS_VARIABLE: described}


def begin() -> None:
    """Begin the recording that the environment describes. Says so in a line when it cannot."""
    options: dict[str, Any] = json.loads(os.environ.pop(OPTIONS_VARIABLE))
    _restore("PYTHONPATH", options["PYTHONPATH"])
    if "profiler" in options:
        begin_profiler(options["profiler"], Path(options["results"]))
        return
    if options["operators"]:
        offer_collector()
    recording = Recording(
        Path(options["out"]),
        layers=options["layers"],
        operators=options["operators"],
        gpu=options["gpu"],
        python=options["python"],
        work=options["work"],
        counters=options["counters"],
    )
    recording.command = [sys.executable, options["target"], *options["arguments"]]
    try:
        record_program(recording)
    except (GpuprofError, OSError) as error:
        # The program is worth more than its profile.
        print(f"gpuprof: {error}; the program runs without being recorded", file=sys.stderr, flush=True)
        return
    _stop_at_exit(recording)


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        del os.environ[variable]
    else:
        os.environ[variable] = value


def _stop_at_exit(recording: Recording) -> None:
    """Stop last of all exit handlers, after the program's threads have ended; in this process only."""
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:
            recording.stop()

    atexit.register(stop)
