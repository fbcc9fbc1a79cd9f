# SPDX-License-Identifier: Apache-2.0
"""Runs an experiment in a process of its own, with a deadline; Ctrl-C keeps what was measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuprof.analyze.findings.finding import RerunProblem
from gpuprof.analyze.rerun.experiment import Experiment, Pairs
from gpuprof.record.helper_process import module_command

WORKER = tuple(module_command("gpuprof.analyze.rerun.worker"))
MOST_PAIRS = 20
SECONDS = 10.0  # of measuring
DEADLINE_S = 90.0  # of the process, with the import of PyTorch
_REFUSED = {each.value: each for each in RerunProblem}


def measure(
    experiment: Experiment, *, command: Sequence[str] = WORKER, deadline_s: float = DEADLINE_S
) -> Pairs:
    """Execute an experiment. The settings of this process and its PyTorch stay as they are."""
    request = {
        "kind": experiment.kind.value,
        "threads": experiment.threads,
        "values": dict(experiment.values),
        "pairs": MOST_PAIRS,
        "seconds": SECONDS,
    }
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpuprof-rerun-") as folder:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,  # a module in the current folder is not imported
            env=_environment(),
            start_new_session=True,  # Ctrl-C interrupts this process only, which then ends the other
        )
        timer = threading.Timer(deadline_s, process.kill)
        timer.start()
        problem: RerunProblem | None = None
        try:
            _exchange(process, json.dumps(request), lines)
        except KeyboardInterrupt:
            problem = RerunProblem.INTERRUPTED
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            process.kill()
            process.wait()
    if problem is None and process.returncode:
        problem = RerunProblem.DEADLINE if is_late else RerunProblem.CRASHED
    return pairs_of(lines, problem)


def _exchange(process: subprocess.Popen[str], request: str, lines: list[dict[str, Any]]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        # A process that does not read may have written.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.close()
        for line in process.stdout:
            if line.startswith("{"):  # a library may print as well
                lines.append(json.loads(line))
    process.wait()


def pairs_of(lines: Iterable[dict[str, Any]], problem: RerunProblem | None) -> Pairs:
    """Return what the worker wrote. A problem that it reports has priority."""
    times = []
    operators: tuple[str, ...] = ()
    ordinary_ns = None
    for line in lines:
        if "pair" in line:
            times.append((float(line["pair"][0]), float(line["pair"][1])))
        operators = tuple(line.get("operators", operators))
        ordinary_ns = line.get("ordinary_ns", ordinary_ns)
        problem = _REFUSED.get(line.get("problem", ""), problem)
    return Pairs(tuple(times), problem, operators, ordinary_ns)


def _environment() -> dict[str, str]:
    """Return the environment with absolute paths, because the process is in another folder."""
    found = dict(os.environ)
    if path := found.get("PYTHONPATH"):
        absolute = (Path(each).absolute() for each in path.split(os.pathsep) if each)
        found["PYTHONPATH"] = os.pathsep.join(map(str, absolute))
    return found
