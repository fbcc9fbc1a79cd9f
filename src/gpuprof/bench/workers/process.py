# SPDX-License-Identifier: Apache-2.0
"""Runs one job in a fresh process: its events, its time limit, its exit.

The process isolates the measurement: a model can hang, crash or exhaust the memory without loss of what was
measured before.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpuprof.bench.failures import (
    SMALLER_OR_BUDGET,
    DoesNotFitError,
    FailedRunError,
    TimeLimitError,
    is_out_of_memory,
)
from gpuprof.bench.measure.memory import memory_kills
from gpuprof.bench.models.importing import WORKER_VARIABLE
from gpuprof.bench.workers.events import Event, Failed, State, decode_event
from gpuprof.bench.workers.job import Job, encode_job
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.record.helper_process import WITHOUT_CURRENT_FOLDER

OnEvent = Callable[[Event], None]
# What a process run does after each state, which may take as long as the limit allows.
_DOING = {
    State.STARTED: "starting Python",
    State.UP: "importing the framework or calling the factory",
    State.IMPORTED: "loading the model",
    State.LOADED: "preparing",
    State.PREPARING: "making inputs and compiling",
    State.PREPARED: "the first call",
    State.SAMPLED: "measuring energy",
    State.MEASURED: "the next step",
    State.PREDICTING: "predicting a batch",
}
# Between two of these a process run may read inputs and outputs, without a report for a while.
_CALLING = (State.DESCRIBED, State.WARMING, State.MEASURING, State.SAMPLES, State.SAMPLED)
_LAST = (State.DONE, State.FAILED)
QUIET_S = 5.0
LAST_EVENTS_S = 5.0
_CLOSING_S = 5.0
_POLL_S = 0.2
# Not by `-m`, which would look for modules in the current folder first, where a model's own files are.
WORKER_PROGRAM = (
    f"{WITHOUT_CURRENT_FOLDER}from gpuprof.bench.workers.worker import main; sys.exit(main(int(sys.argv[1])))"
)


def run_process(
    job: Job,
    *,
    time_limit_s: float,
    on_event: OnEvent,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run one job in a fresh process and hand on its events, the first of which is STARTED.

    `time_limit_s` is for each step. An interrupt is passed to the process, which hands over what it has.
    Raises GpuprofError where it fails: TimeLimitError where a step took too long, DoesNotFitError where the
    memory was exhausted.
    """
    refuse_in_worker()
    line, kills = encode_job(job), memory_kills()
    with tempfile.TemporaryFile() as output:
        read_end, write_end = os.pipe()
        try:
            on_event(Event(State.STARTED, time.monotonic_ns()))
            process = _start(write_end, output, environment)
        except OSError as error:
            os.close(read_end)
            raise BenchmarkError(
                "cannot_start",
                f"cannot start a process: {error.strerror}",
                hint="free memory, or allow more processes and files (ulimit -u, ulimit -n)",
            ) from error
        finally:
            os.close(write_end)
        listener = _Listener(process, read_end, time_limit_s)
        try:
            _hand_in(process, line)
            listener.follow(on_event)
            code = _own_end(process)
        except KeyboardInterrupt:
            listener.hand_over(on_event)
            raise
        finally:
            end_session(process)
        if listener.last.state is not State.DONE:
            death = ProcessExit(code, last_words(output), _more(kills, memory_kills()))
            raise death.error(doing=listener.doing)


def refuse_in_worker() -> None:
    """Raise BenchmarkError in a worker process: importing a script that starts processes would never end."""
    if WORKER_VARIABLE in os.environ:
        raise BenchmarkError(
            "started_by_worker",
            "a worker process may not start process runs",
            hint="call this under `if __name__ == '__main__':`, so that importing the file starts nothing",
        )


def _start(
    write_end: int, output: IO[bytes], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    # A session of its own: an interrupt is for the parent, which ends this process itself.
    return subprocess.Popen(
        [sys.executable, "-c", WORKER_PROGRAM, str(write_end)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[write_end],
        start_new_session=True,
        env={**os.environ, WORKER_VARIABLE: "1", "PYTHONPATH": python_path(), **(environment or {})},
    )


def _hand_in(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Write the job. The pipe stays open: by its end the process learns that its parent is gone."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()


def _own_end(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process that is about to end; None where it does not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_CLOSING_S)
    return None


def _more(before: int | None, after: int | None) -> bool | None:
    return None if before is None or after is None else after > before


class _Listener:
    """The events of one process. A thread reads them, since an interrupt meets the main one in any place."""

    def __init__(self, process: subprocess.Popen[bytes], read_end: int, time_limit_s: float) -> None:
        self.last = Event(State.STARTED)
        self._process = process
        self._limit_s = time_limit_s
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(read_end, self._events), daemon=True).start()

    @property
    def doing(self) -> str:
        """What the process does, by its last event."""
        size = f" with batch size {self.last.batch_size}" if self.last.batch_size is not None else ""
        return f"{_DOING.get(self.last.state, 'calls')}{size}"

    def follow(self, on_event: OnEvent) -> None:
        """Hand on events until the last one. Raises the error of a failure, and TimeLimitError."""
        while (event := self._next(time.monotonic() + self._step_limit_s())) is not None:
            if self._hand_on(event, on_event):
                return  # what the process has started may hold the pipe open

    def hand_over(self, on_event: OnEvent) -> None:
        """Interrupt the process and take the samples that it has until then."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGINT)
        deadline_s = time.monotonic() + LAST_EVENTS_S
        with contextlib.suppress(GpuprofError):
            while (event := self._next(deadline_s)) is not None and not self._hand_on(event, on_event):
                pass

    def _hand_on(self, event: Event, on_event: OnEvent) -> bool:
        """Hand on one event; returns whether it is the last."""
        if isinstance(event, Failed):
            raise event.failure.error()
        self.last = event
        on_event(event)
        return event.state in _LAST

    def _step_limit_s(self) -> float:
        return self._limit_s + (QUIET_S if self.last.state in _CALLING else 0.0)

    def _next(self, deadline_s: float) -> Event | None:
        while True:
            left_s = deadline_s - time.monotonic()
            has_ended = self._process.poll() is not None
            try:
                return self._events.get(timeout=max(0.0, min(left_s, _POLL_S)))
            except queue.Empty:
                if has_ended:
                    return None  # what it started may hold the pipe open after its end
                if left_s <= 0:
                    message = f"no response within {self._limit_s:g} s of {self.doing}"
                    hint = "the model hangs, or it needs a longer --time-limit"
                    raise TimeLimitError(message, hint=hint) from None


def _read(read_end: int, events: queue.SimpleQueue[Event | None]) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            # A process that was ended in the middle of a line leaves half of one.
            with contextlib.suppress(BenchmarkError):
                events.put(decode_event(line))
    events.put(None)


_LONGEST_WORDS = 300


def python_path() -> str:
    """Return where a worker finds the very package that this process runs."""
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
class ProcessExit:
    """How a process ended before its job was done.

    `code` is None where it had to be ended, `words` the last line that it printed, `memory_killed` whether
    the system killed a process meanwhile because memory was exhausted, None where that is unknown.
    """

    code: int | None
    words: str
    memory_killed: bool | None

    def error(self, *, doing: str) -> FailedRunError:
        """Return it as one line; DoesNotFitError only where it is known that memory was exhausted."""
        if self.code == -signal.SIGKILL:
            return self._killed(doing)
        said = f"; its last line: {self.words}" if self.words else ""
        line = f"the model's process {self._how()} during {doing}{said}"
        # A C++ program that gets no memory aborts, a Python one leaves: other signals are crashes.
        by_itself = self.code is not None and (self.code > 0 or self.code == -signal.SIGABRT)
        if by_itself and is_out_of_memory(self.words):
            return DoesNotFitError(line, hint=SMALLER_OR_BUDGET)
        return FailedRunError(line, hint="call the model once in a process of your own to see why")

    def _how(self) -> str:
        if self.code is None:
            return "stopped responding"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        names = {each.value: each.name for each in signal.Signals}
        return f"crashed with signal {names.get(-self.code, -self.code)}"

    def _killed(self, doing: str) -> FailedRunError:
        line = f"the model's process was killed (SIGKILL) during {doing}"
        if self.memory_killed:
            return DoesNotFitError(f"{line} by the system: memory was exhausted", hint=SMALLER_OR_BUDGET)
        if self.memory_killed is None:
            return FailedRunError(
                f"{line} by a user, or by the system because memory was exhausted, which is unknown here",
                hint=SMALLER_OR_BUDGET,
            )
        return FailedRunError(
            f"{line} by another program or user, not by the system for memory", hint="measure again"
        )
