# SPDX-License-Identifier: Apache-2.0
"""Running a program of programs.py in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gpuprof

HERE = Path(__file__).resolve().parent


class Ran(NamedTuple):
    """A program that ran: the facts that it printed, and the folder with its runs."""

    facts: dict[str, Any]
    folder: Path
    code: int

    @property
    def run(self) -> gpuprof.Run:
        return gpuprof.open(self.folder / "run")


def start_program(
    name: str, folder: Path, *arguments: object, code: int = 0, timeout: float = 120, **variables: str
) -> Ran:
    """Run a program of programs.py, here or against stubs."""
    package = str(Path(gpuprof.__file__).parents[1])
    path = os.pathsep.join(filter(None, (str(HERE), package, os.environ.get("PYTHONPATH"))))
    words = [sys.executable, str(HERE / "programs.py"), name, str(folder), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == code, f"{name} ended with {done.returncode}: {done.stderr[-3000:]}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return Ran(json.loads(lines[-1]) if lines else {}, folder, done.returncode)
