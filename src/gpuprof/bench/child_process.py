# SPDX-License-Identifier: Apache-2.0
"""What all launches need of a process: where it finds this package, its last words, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import IO

_LONGEST_WORDS = 300


def python_path() -> str:
    """Return where a launch finds the very package that this process runs."""
    package = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_words(output: IO[bytes]) -> str:
    """Return the end of the last line that was written to a file, empty where there is none."""
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 4 * _LONGEST_WORDS))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1][-_LONGEST_WORDS:] if lines else ""
