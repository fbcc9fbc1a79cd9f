# SPDX-License-Identifier: Apache-2.0
"""What all launches need of a process: where it finds this package, its end, and what it died of."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpuprof.bench.failures import DoesNotFitError, tells_of_memory
from gpuprof.errors import BenchmarkError

_LONGEST_WORDS = 300
_MEND = "take smaller --batch-sizes, or set --memory-budget"


def python_path() -> str:
    """Return where a launch finds the very package that this process runs."""
    package = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def last_words(output: IO[bytes]) -> str:
    """Return the end of the last line that was written to a file, empty where there is none."""
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 4 * _LONGEST_WORDS))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1][-_LONGEST_WORDS:] if lines else ""


@dataclass(frozen=True, slots=True)
class Death:
    """How a launch ended that did not come to its end.

    `code` is None where it had to be ended, `words` what it last said, `memory_killed` whether the system
    killed a process for want of memory meanwhile, None where it does not tell.
    """

    code: int | None
    words: str
    memory_killed: bool | None

    def error(self, *, doing: str) -> BenchmarkError:
        """Return it as one line; DoesNotFitError only where it is known that memory ended."""
        if self.code == -signal.SIGKILL:
            return self._killed(doing)
        said = f"; it last said: {self.words}" if self.words else ""
        line = f"the model's process {self._how()} during {doing}{said}"
        # A C++ program that gets no memory aborts, a Python one leaves: other signals are crashes.
        by_itself = self.code is not None and (self.code > 0 or self.code == -signal.SIGABRT)
        if by_itself and tells_of_memory(self.words):
            return DoesNotFitError(f"{line}: {_MEND}")
        return BenchmarkError(line)

    def _how(self) -> str:
        if self.code is None:
            return "stopped answering"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        names = {each.value: each.name for each in signal.Signals}
        return f"crashed with signal {names.get(-self.code, -self.code)}"

    def _killed(self, doing: str) -> BenchmarkError:
        if self.memory_killed:
            return DoesNotFitError(
                f"the system killed the model's process for want of memory during {doing}: {_MEND}"
            )
        why = "not by the system for want of memory, so somebody or something else did it"
        if self.memory_killed is None:
            why = f"by somebody, or by the system, which does not tell, for want of memory: then {_MEND}"
        return BenchmarkError(f"the model's process was killed (SIGKILL) during {doing}, {why}")
