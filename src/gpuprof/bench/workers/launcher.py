# SPDX-License-Identifier: Apache-2.0
"""Runs one job in a fresh worker process: its events, its time limit, its exit.

The process isolates the measurement: a model can hang, crash or exhaust the memory without loss of what was
measured before.
"""

from __future__ import annotations

import contextlib
import json
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
from typing import IO, Any

from gpuprof.bench.failures import DoesNotFitError, TimeLimitError, tells_of_memory
from gpuprof.bench.measure.memory import memory_kills
from gpuprof.bench.models.importing import LAUNCH_VARIABLE
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

Event = dict[str, Any]
OnEvent = Callable[[Event], None]
# What a launch does after each event, which may take as long as the limit says.
_DOING = {
    "": "starting Python",
    "up": "importing the framework or calling the factory",
    "imported": "loading the model",
    "loaded": "making ready",
    "preparing": "making inputs and compiling",
    "prepared": "the first call",
    "answered": "calls",
    "ready": "calls",
    "warming": "calls",
    "progress": "calls",
    "samples": "calls",
    "sampled": "measuring energy",
    "measured": "the next step",
    "answering": "answering a batch",
    "profiled": "ending",
}
# Between two of these a launch looks at inputs and outputs, and says nothing for a while besides its calls.
_CALLING = ("answered", "ready", "warming", "progress", "samples", "sampled")
QUIET_S = 5.0
LAST_WORDS_S = 5.0
_CLOSING_S = 5.0
_POLL_S = 0.2
_KINDS: dict[str, type[BenchmarkError] | type[UnavailableError]] = {
    "DoesNotFitError": DoesNotFitError,
    "UnavailableError": UnavailableError,
}
# Not by `-m`, which would look for modules in the current folder first, where a model's own files are.
_PROGRAM = (
    "import sys; sys.path[:] = [each for each in sys.path if each]; "
    "from gpuprof.bench.workers.worker import main; sys.exit(main(int(sys.argv[1])))"
)


def run_launch(
    job: Mapping[str, Any],
    *,
    time_limit_s: float,
    on_event: OnEvent,
    environment: Mapping[str, str] | None = None,
    limits_whole: bool = False,
) -> None:
    """Run one job in a fresh process and hand on its events, `started` as the first.

    `time_limit_s` is for each step of the launch, or with `limits_whole` for all of it. An interrupt is
    passed to the launch, which hands over what it has. Raises GpuprofError where it fails: TimeLimitError
    where it took too long, DoesNotFitError where the memory ended.
    """
    refuse_in_launch()
    kills = memory_kills()
    with tempfile.TemporaryFile() as output:
        read_end, write_end = os.pipe()
        try:
            on_event({"event": "started", "t_ns": time.monotonic_ns()})
            process = _start(write_end, output, environment)
        except OSError as error:
            os.close(read_end)
            raise BenchmarkError(f"cannot start a process for a launch: {error.strerror}") from error
        finally:
            os.close(write_end)
        listener = _Listener(process, read_end, time_limit_s, limits_whole=limits_whole)
        try:
            _hand_in(process, job)
            listener.follow(on_event)
            code = _own_end(process)
        except KeyboardInterrupt:
            listener.hand_over(on_event)
            raise
        finally:
            end_session(process)
        if listener.last.get("event") != "done":
            death = Death(code, last_words(output), _more(kills, memory_kills()))
            raise death.error(doing=listener.doing)


def refuse_in_launch() -> None:
    """Raise BenchmarkError inside a launch: importing a script that launches would never end."""
    if LAUNCH_VARIABLE in os.environ:
        raise BenchmarkError(
            "a launch may not start launches: call this under `if __name__ == '__main__':`, so that "
            "importing the file starts nothing"
        )


def _start(
    write_end: int, output: IO[bytes], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    # A session of its own: an interrupt is for the parent, which ends the launch itself.
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(write_end)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[write_end],
        start_new_session=True,
        env={**os.environ, LAUNCH_VARIABLE: "1", "PYTHONPATH": python_path(), **(environment or {})},
    )


def _hand_in(process: subprocess.Popen[bytes], job: Mapping[str, Any]) -> None:
    """Write the job. The pipe stays open: by its end the launch learns that nobody is left to listen."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()


def _own_end(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a launch that is about to end; None where it does not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_CLOSING_S)
    return None


def _more(before: int | None, after: int | None) -> bool | None:
    return None if before is None or after is None else after > before


class _Listener:
    """The events of one launch. A thread reads them, since an interrupt meets the main one in any place."""

    def __init__(
        self, process: subprocess.Popen[bytes], read_end: int, time_limit_s: float, *, limits_whole: bool
    ) -> None:
        self.last: Event = {"event": ""}
        self._process = process
        self._limit_s = time_limit_s
        self._limits_whole = limits_whole
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(read_end, self._events), daemon=True).start()

    @property
    def doing(self) -> str:
        """What the launch does, by its last event."""
        size = f" with batch size {self.last['batch_size']}" if "batch_size" in self.last else ""
        return f"{_DOING.get(self.last['event'], 'running')}{size}"

    def follow(self, on_event: OnEvent) -> None:
        """Hand on events until the last one. Raises what an error event says, and TimeLimitError."""
        self._follow(on_event, self._limit_s, is_whole=self._limits_whole)

    def hand_over(self, on_event: OnEvent) -> None:
        """Interrupt the launch and take the samples that it has until then."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGINT)
        with contextlib.suppress(GpuprofError):
            self._follow(on_event, LAST_WORDS_S, is_whole=True)

    def _follow(self, on_event: OnEvent, limit_s: float, *, is_whole: bool) -> None:
        deadline_s = time.monotonic() + limit_s
        while (event := self._next(deadline_s)) is not None:
            if event["event"] == "error":
                raise _KINDS.get(event["kind"], BenchmarkError)(event["message"])
            self.last = {key: event[key] for key in ("event", "batch_size") if key in event}
            on_event(event)
            if event["event"] == "done":
                return  # what the launch has started may hold the pipe open
            if not is_whole:
                deadline_s = time.monotonic() + limit_s + (QUIET_S if event["event"] in _CALLING else 0.0)
            elif time.monotonic() > deadline_s and event["event"] != "measured":
                raise self._too_late()

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
                    raise self._too_late() from None

    def _too_late(self) -> TimeLimitError:
        if self._limits_whole:
            return TimeLimitError(f"the launch was ended after {self._limit_s:g} s, its time limit")
        return TimeLimitError(
            f"no answer within {self._limit_s:g} s of {self.doing}: the model hangs, or it needs a longer "
            "--time-limit"
        )


def _read(read_end: int, events: queue.SimpleQueue[Event | None]) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            # A launch that was ended in the middle of a line leaves half of one.
            with contextlib.suppress(ValueError):
                events.put(json.loads(line))
    events.put(None)


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
