# SPDX-License-Identifier: Apache-2.0
"""One launch: `python -m gpuprof.bench.launch` reads a plan from standard input and measures it.

Results go out as lines of JSON on what was standard output; what the measured program prints goes to
standard error. Samples are sent as they come, so that a launch that hangs leaves what it had measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import IO, Any

from gpuprof.bench.callable_system import CallableSystem
from gpuprof.bench.environment import describe_environment
from gpuprof.bench.measure import measure
from gpuprof.bench.plan import find_named
from gpuprof.bench.settings import Settings
from gpuprof.errors import GpuprofError
from gpuprof.record.collector import COLLECTOR_VARIABLE, NVTX_VARIABLE, collector_path

_SEND_EVERY_S = 1.0


def main() -> None:
    """Measure the plan on standard input."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    leave_no_collector()
    plan = json.loads(sys.stdin.readline())
    sys.path[:] = plan["path"]
    try:
        _launch(plan, channel)
    except Exception as error:
        _send(channel, event="failed", reason=_one_line(error))
    channel.flush()


def make_callable(target: str, inputs: str | None, name: str | None) -> CallableSystem:
    """Return the system of a named function, whose inputs another named function makes."""
    made = None if inputs is None else find_named(inputs)
    return CallableSystem(find_named(target), made, name=name)


def _launch(plan: dict[str, Any], channel: IO[str]) -> None:
    factory = find_named(plan["factory"])
    began = time.perf_counter()
    system = factory(**plan["arguments"])
    system.load()
    loaded = time.perf_counter()
    system.prepare(plan["batch_size"] or 1)
    prepared = time.perf_counter()
    extra = {"load_s": loaded - began, "prepare_s": prepared - loaded, "process_id": os.getpid()}
    description = asdict(system.describe())
    _send(channel, event="ready", extra=extra, description=description, environment=describe_environment())
    measured = measure(system, Settings.from_dict(plan["settings"]), progress=_Sender(channel).progress)
    memory = asdict(system.memory())
    _send(channel, event="done", measurement=measured.to_dict(), extra={**extra, "memory": memory})
    system.close()


class _Sender:
    """Sends samples about once a second, outside the timed part."""

    def __init__(self, channel: IO[str]) -> None:
        self._channel = channel
        self._wall: list[int] = []
        self._enqueue: list[int] | None = []
        self._sent = time.monotonic()

    def progress(self, wall: list[int], enqueue: list[int] | None, calls: int) -> None:
        self._wall += wall
        if enqueue is None:
            self._enqueue = None
        elif self._enqueue is not None:
            self._enqueue += enqueue
        now = time.monotonic()
        if now - self._sent < _SEND_EVERY_S:
            return
        _send(self._channel, event="samples", wall_ns=self._wall, enqueue_ns=self._enqueue, calls=calls)
        self._wall, self._enqueue, self._sent = [], None if self._enqueue is None else [], now


def _send(channel: IO[str], **message: Any) -> None:
    channel.write(json.dumps(message, default=str) + "\n")
    channel.flush()


def leave_no_collector() -> None:
    """Take back what `import gpuprof` offers to PyTorch and NVTX: only the framework is measured here."""
    for variable in (COLLECTOR_VARIABLE, NVTX_VARIABLE):
        if os.environ.get(variable) == str(collector_path()):
            del os.environ[variable]


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    what = lines[0] if lines else "no message"
    return what if isinstance(error, GpuprofError) else f"{type(error).__name__}: {what}"


if __name__ == "__main__":
    main()
