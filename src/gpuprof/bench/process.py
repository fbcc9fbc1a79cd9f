# SPDX-License-Identifier: Apache-2.0
"""A launch as the parent sees it: a fresh process, its events, and a limit on how long a step may take.

A process of its own is what a launch is, and it is also what lets a model hang, crash or fill the memory
without taking with it what was measured before.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from gpuprof.bench.child_process import end_session, last_words, python_path
from gpuprof.bench.failures import DoesNotFitError, TimeLimitError
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

Event = dict[str, Any]
# Each of these begins a step that may take as long as the limit says.
_STEPS = {"up", "imported", "loaded", "preparing", "prepared", "answered", "measured", "profiled", "progress"}
_DOING = {
    "": "starting Python",
    "up": "importing the framework or calling the factory",
    "imported": "loading the model",
    "loaded": "making ready",
    "preparing": "making inputs and compiling",
    "prepared": "the first call",
    "answered": "calls",
    "progress": "calls",
    "measured": "the next step",
    "profiled": "ending",
}
# While it warms up, and while it measures energy, a launch says nothing.
_CALLING = ("answered", "progress")
QUIET_S = 15.0
LAST_WORDS_S = 5.0
_READ_BYTES = 1 << 16
_KINDS: dict[str, type[BenchmarkError] | type[UnavailableError]] = {
    "DoesNotFitError": DoesNotFitError,
    "UnavailableError": UnavailableError,
}


def run_launch(
    job: Mapping[str, Any],
    *,
    time_limit_s: float,
    on_event: Callable[[Event], None],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run one job in a fresh process and hand on its events, `started` as the first.

    Raises what the job failed with, TimeLimitError where a step took too long, DoesNotFitError where the
    system killed it for its memory.
    """
    with tempfile.TemporaryFile() as output:
        read_end, write_end = os.pipe()
        try:
            on_event({"event": "started", "t_ns": time.monotonic_ns()})
            process = _start(job, write_end, output, environment)
        except OSError as error:
            os.close(read_end)
            raise BenchmarkError(f"cannot start a process for a launch: {error.strerror}") from error
        finally:
            os.close(write_end)
        try:
            last = _follow(read_end, time_limit_s, on_event)
            _wait(process, time_limit_s)
        except KeyboardInterrupt:
            _hand_over(process, read_end, on_event)
            raise
        finally:
            os.close(read_end)
            end_session(process)
        if last.get("event") != "done":
            raise _died(process.returncode, last, output)


def _start(
    job: Mapping[str, Any], write_end: int, output: IO[bytes], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    # A session of its own: an interrupt is for the parent, which ends the launch itself.
    return subprocess.Popen(
        [sys.executable, "-m", "gpuprof.bench.worker", str(write_end), json.dumps(job)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[write_end],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": python_path(), **(environment or {})},
    )


def _follow(read_end: int, time_limit_s: float, on_event: Callable[[Event], None]) -> Event:
    """Hand on events until the other end closes; returns the last one. Raises what an error event says."""
    last: Event = {"event": ""}
    for event in _events(read_end, time_limit_s, last):
        if event["event"] == "error":
            raise _KINDS.get(event["kind"], BenchmarkError)(event["message"])
        last.clear()
        last.update(event)
        on_event(event)
        if event["event"] == "done":
            break  # what the launch has started may hold the pipe open
    return last


def _hand_over(process: subprocess.Popen[bytes], read_end: int, on_event: Callable[[Event], None]) -> None:
    """Interrupt a launch and take the samples that it has until then."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGINT)
    with contextlib.suppress(GpuprofError):
        _follow(read_end, LAST_WORDS_S, on_event)


def _events(read_end: int, time_limit_s: float, last: Event) -> Iterator[Event]:
    rest = b""
    deadline = time.monotonic() + time_limit_s
    while True:
        readable, _, _ = select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise _too_late(last, time_limit_s)
        chunk = os.read(read_end, _READ_BYTES)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            event: Event = json.loads(line)
            yield event
            if event["event"] in _STEPS:
                deadline = time.monotonic() + time_limit_s + (QUIET_S if event["event"] in _CALLING else 0)


def _too_late(last: Event, time_limit_s: float) -> TimeLimitError:
    size = f" with batch size {last['batch_size']}" if "batch_size" in last else ""
    return TimeLimitError(
        f"no answer within {time_limit_s:g} s of {_DOING.get(last['event'], 'running')}{size}: the model "
        "hangs, or it needs a longer --time-limit"
    )


def _wait(process: subprocess.Popen[bytes], time_limit_s: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(time_limit_s)


def _died(code: int, last: Event, output: IO[bytes]) -> BenchmarkError:
    size = f" with batch size {last['batch_size']}" if "batch_size" in last else ""
    doing = _DOING.get(last["event"], "running")
    if code == -signal.SIGKILL:
        return DoesNotFitError(
            f"the system killed the model's process during {doing}{size}, as it does when memory ends: "
            "take smaller --batch-sizes, or set --memory-budget"
        )
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    words = last_words(output)
    said = f"; it last said: {words}" if words else ""
    kind = DoesNotFitError if "bad_alloc" in said or "memory" in said.lower() else BenchmarkError
    return kind(f"the model's process ended with {how} during {doing}{size}{said}")
