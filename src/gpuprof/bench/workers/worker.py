# SPDX-License-Identifier: Apache-2.0
"""The process that does one job: `worker.main(FILE_DESCRIPTOR)`, with the job on its standard input.

The job is one line of JSON (`job.py`), each event that goes to the descriptor another (`events.py`): a model
may print what it likes. What the process imports, compiles and warms up is its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.errors import GpuprofError
from gpuprof.record.collector import COLLECTOR_VARIABLE, NVTX_VARIABLE, collector_path

if TYPE_CHECKING:
    from gpuprof.bench.workers.events import Event
    from gpuprof.bench.workers.job import Job


class EventPipe:
    """Events to the parent process."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "wb")
        # The encoder is not imported yet: that takes a part of what is measured as start-up.
        self._write(b'{"state":"up","t_ns":%d}\n' % time.monotonic_ns())

    def send(self, event: Event) -> None:
        """Write an event."""
        from gpuprof.bench.workers.events import encode_event

        self._write(encode_event(event))

    def _write(self, line: bytes) -> None:
        with _uninterrupted():
            self._file.write(line)
            self._file.flush()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let an interrupt wait: half a line would make the next one unreadable too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(descriptor: int) -> int:
    """Do the job on standard input; a failure that a user can change is an event, not a traceback."""
    pipe = EventPipe(descriptor)
    from gpuprof.bench.failures import Failure, FailureCode, failure_of, reason_of
    from gpuprof.bench.workers.events import Event, Failed, State
    from gpuprof.bench.workers.job import load_entry

    try:
        job = _taken_job()
        if not job.keeps_collector:
            leave_no_collector()
        load_entry(job.entry)(job, pipe.send)
        pipe.send(Event(State.DONE))
    except GpuprofError as error:
        pipe.send(Failed(failure=failure_of(error)))
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        message = f"the model's process failed: {reason_of(error)}"
        pipe.send(Failed(failure=Failure(FailureCode.FAILED, message)))
    # Frameworks may crash while they are torn down: that is of no interest.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _taken_job() -> Job:
    """Read the job; the pipe that it came by is kept to see when the other end is gone."""
    pipe = os.dup(0)
    os.set_inheritable(pipe, False)
    with os.fdopen(os.dup(pipe), "rb") as lines:
        line = lines.readline()
    # The model finds nothing on its standard input.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    end_with_parent(pipe)
    from gpuprof.bench.workers.job import decode_job

    return decode_job(line)


def leave_no_collector() -> None:
    """Take back what `import gpuprof` offers to PyTorch and NVTX: only the framework is measured here."""
    for variable in (COLLECTOR_VARIABLE, NVTX_VARIABLE):
        if os.environ.get(variable) == str(collector_path()):
            del os.environ[variable]


def end_with_parent(pipe: int) -> None:
    """Kill this process's group once the other end of `pipe` is closed; nothing may be written to it.

    On Linux the kernel does it, even while the model is in a loop that never lets Python run.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=_wait_for_the_end, args=(pipe,), daemon=True).start()
        return
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_closed(pipe):  # before the kernel was asked to look
        os.killpg(0, signal.SIGKILL)


def _is_closed(pipe: int) -> bool:
    os.set_blocking(pipe, False)
    try:
        return not os.read(pipe, 1)
    except BlockingIOError:
        return False


def _wait_for_the_end(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)
