# SPDX-License-Identifier: Apache-2.0
"""What launches find by name: systems that work, fail, hang and talk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from gpuprof.bench.frameworks.protocol import MemoryReading, System, SystemDescription

_calls = 0


def quick() -> int:
    return sum(range(100))


def add(left: int, right: int) -> int:
    return left + right


def two_numbers() -> tuple[int, int]:
    return 3, 4


def fail_late() -> None:
    global _calls
    _calls += 1
    if _calls > 60:
        raise ValueError("no more")


class Launched(System):
    """A system around one function; `load` and `prepare` print a line to standard output, as models do."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.run = call

    def load(self) -> None:
        print("loading: this line must not end up among the results")

    def prepare(self, batch_size: int) -> None:
        os.write(1, f"batch size {batch_size}\n".encode())

    def describe(self) -> SystemDescription:
        collector = os.environ.get("INTEL_LIBITTNOTIFY64", "none")
        return SystemDescription(
            "test", "launched", "cpu", "cpu", "float32", details={"collector": collector}
        )

    def memory(self) -> MemoryReading:
        return MemoryReading(host_resident_bytes=12_345)


def talking() -> Launched:
    return Launched(quick)


def failing(message: str) -> Launched:
    raise RuntimeError(message)


def dying() -> Launched:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def hanging(fifo: str) -> Launched:
    """Work for a while, start a child that holds `fifo` open, then never return."""
    began = time.monotonic()

    def call() -> None:
        if time.monotonic() - began < 2.5:
            sum(range(20_000))
            return
        holder = subprocess.Popen(["sh", "-c", 'exec 3>"$0"; printf alive >&3; exec sleep 300', fifo])
        assert holder.poll() is None
        threading.Event().wait()

    return Launched(call)


def interrupting() -> Launched:
    """Send Ctrl-C to the parent process, as a terminal would, and never return."""
    import signal

    def call() -> None:
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait()

    return Launched(call)
