# SPDX-License-Identifier: Apache-2.0
"""The process that loads and measures one system: `worker.main(FILE_DESCRIPTOR)`, with a job as its input.

The job is one line of JSON on standard input. What the process does it tells as lines of JSON on the
descriptor, so that its model may print what it likes. It is one launch: what it imports, compiles and warms
up is its own. `job.py` documents the lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.record.collector import COLLECTOR_VARIABLE, NVTX_VARIABLE, collector_path

_UP_NS = time.monotonic_ns()  # before anything else is imported


class Events:
    """Lines of JSON to the process that asked."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")

    def send(self, event: str, **values: Any) -> None:
        """Say what happened, and when on the clock that all processes share."""
        line = {"event": event, "t_ns": time.monotonic_ns(), **values}
        text = json.dumps(line, default=str) + "\n"
        with _uninterrupted():
            self._file.write(text)
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
    """Do the job on standard input; failures that a user can mend are an event, not a traceback."""
    events = Events(descriptor)
    events.send("up", up_ns=_UP_NS)
    try:
        _do(_taken_job(), events)
        events.send("done")
    except GpuprofError as error:
        events.send("error", kind=type(error).__name__, message=str(error))
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        message = " ".join(f"the model's process failed: {type(error).__name__}: {error}".split())
        events.send("error", kind="unexpected", message=message)
    # Frameworks may crash while they tear down: nobody waits for that.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _taken_job() -> Any:
    """Read the job; the pipe that it came by is kept to see when the other end is gone."""
    pipe = os.dup(0)
    os.set_inheritable(pipe, False)
    with os.fdopen(os.dup(pipe), "rb") as lines:
        job = json.loads(lines.readline())
    # The model finds nothing on its standard input.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    end_with_parent(pipe)
    return job


def _do(job: Any, events: Events) -> None:
    if "plan" in job:
        from gpuprof.bench.workers.job import run_plan

        leave_no_collector()
        run_plan(job["plan"], events.send)
        return
    if "traffic" in job:
        from gpuprof.bench.compare.traffic_job import run_traffic

        leave_no_collector()
        run_traffic(job["traffic"], events.send)
        return
    if "answers" in job:
        from gpuprof.bench.compare.answers_job import run_answer_job

        leave_no_collector()
        run_answer_job(job, events.send)
        return
    if "layers" in job:
        from gpuprof.bench.compare.layer_job import run_layer_job

        leave_no_collector()
        run_layer_job(job, events.send)
        return
    from gpuprof.bench.workers.job import run_job

    if job["settings"]["profile"] is None:
        leave_no_collector()
    run_job(job, events.send)


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
