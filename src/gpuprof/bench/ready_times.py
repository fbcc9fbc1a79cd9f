# SPDX-License-Identifier: Apache-2.0
"""How long a program takes from its start until it is ready to serve, over several process runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuprof.bench.measure.readiness import PrintedText, Readiness, parse_readiness
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.text.sanitize import visible_text
from gpuprof.text.units import format_duration

POLL_S = 0.005
_END_S = 10.0
_TAIL_BYTES = 2_000
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # that a whole process group gets


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Seconds from the start of a program until it was ready, one for each process run.

    `median_s` has a 95% interval from ranks, which needs six process runs; its ends are None with fewer.
    `container_s` is the time from the start of process 1, which is that of the container, to readiness; None
    outside of a container.
    """

    command: tuple[str, ...]
    readiness: str
    ready_s: tuple[float, ...]
    median_s: float
    low_s: float | None
    high_s: float | None
    container_s: float | None = None

    def verdict(self, limit_s: float) -> TargetVerdict:
        """Return whether the median is below a limit: by its interval, or by all of too few process runs."""
        return verdict_of(self.ready_s, limit_s)

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {
            "command": list(self.command),
            "readiness": self.readiness,
            "ready_s": list(self.ready_s),
            "median_s": self.median_s,
            "interval_s": None if self.low_s is None else [self.low_s, self.high_s],
            "container_s": self.container_s,
        }

    def __str__(self) -> str:
        count = len(self.ready_s)
        runs = "1 process run" if count == 1 else f"median of {count} process runs"
        text = f"ready after {format_duration(self.median_s * 1e9)} ({runs}"
        if self.low_s is not None and self.high_s is not None:
            text += f", 95% CI {format_duration(self.low_s * 1e9)} to {format_duration(self.high_s * 1e9)}"
        elif count > 1:
            low, high = min(self.ready_s), max(self.ready_s)
            text += f", {format_duration(low * 1e9)} to {format_duration(high * 1e9)}"
        text += f"): {self.readiness}"
        if self.container_s is not None:
            text += f"\nready after the start of the container: {format_duration(self.container_s * 1e9)}"
        return visible_text(text, kept="\n")


def time_to_ready(
    command: Sequence[str],
    ready: str,
    *,
    runs: int = 6,
    time_limit_s: float = 60.0,
    on_run: Callable[[float], None] | None = None,
) -> ReadyTimes:
    """Start a command several times, and measure until it is ready; then it is ended.

    `ready` is `http://HOST:PORT/PATH` (a status of 2xx), `tcp://HOST:PORT`, `file:PATH` or `output:TEXT`. It
    is asked every 5 ms, which is the resolution. A file is removed before the next process run. The program
    is ended by SIGTERM, and after 10 s by SIGKILL, with all processes of its group. `on_run` gets the seconds
    of each process run. Raises BenchmarkError if the program ends, or is not ready within `time_limit_s`.
    """
    readiness = parse_readiness(ready)
    readiness.refuse_if_met_before()
    found: list[float] = []
    for _ in range(runs):
        with StartedProgram(command) as program:
            found.append(program.wait_until_ready(readiness, time_limit_s))
        _remove_file_of(readiness)
        if on_run is not None:
            on_run(found[-1])
    return _times(command, readiness, found)


def run_once_ready(
    command: Sequence[str],
    ready: str,
    *,
    time_limit_s: float = 60.0,
    on_ready: Callable[[ReadyTimes], None],
) -> int:
    """Start a command, report when it is ready, let it run to its end, and return its exit code.

    SIGTERM is passed on to the program, and what a terminal sends to its whole process group: the program has
    a session of its own. Raises BenchmarkError for `output:TEXT`, as its output is not captured, and if the
    program is not ready within `time_limit_s`; then it was ended with all processes of its group.
    """
    readiness = parse_readiness(ready)
    if isinstance(readiness, PrintedText):
        raise BenchmarkError(
            "output_not_captured",
            "the output of a program that stays is not captured",
            hint="use http://, tcp:// or file: as its condition",
        )
    readiness.refuse_if_met_before()
    program = StartedProgram(command, captures=False)
    with program.signals_passed_on(), program:
        ready_s = program.wait_until_ready(readiness, time_limit_s)
        on_ready(_times(command, readiness, [ready_s], container_s=seconds_since_container_start()))
        return program.wait()


def verdict_of(times_s: Sequence[float], limit_s: float) -> TargetVerdict:
    """Return whether the median of process runs is below a limit.

    The interval of the median decides; with fewer than six process runs, all of them do.
    """
    import numpy as np

    from gpuprof.stats.quantiles import quantile_of

    estimate = quantile_of(np.array(times_s), 0.5)
    low, high = (estimate.low, estimate.high) if estimate is not None else (None, None)
    if (max(times_s) if high is None else high) <= limit_s:
        return TargetVerdict.MET
    is_above = (min(times_s) if low is None else low) > limit_s
    return TargetVerdict.MISSED if is_above else TargetVerdict.INCONCLUSIVE


class StartedProgram:
    """A program in a process group of its own; at the end of the block, the whole group is ended.

    One that keeps its output is ended only if the block fails: what it has started may outlive it.
    """

    def __init__(self, command: Sequence[str], *, captures: bool = True) -> None:
        self._command = list(command)
        self._captures = captures
        self._output: IO[bytes] | None = None
        self.start_ns = 0
        self._is_started = False
        self._early_signals: list[int] = []

    def __enter__(self) -> StartedProgram:
        if self._captures:
            self._output = tempfile.TemporaryFile()
        self.start_ns = time.monotonic_ns()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL if self._output else None,
                stdout=self._output,
                stderr=subprocess.STDOUT if self._output else None,
                start_new_session=True,
            )
        except OSError as error:
            if self._output is not None:
                self._output.close()
            raise BenchmarkError(
                "cannot_start",
                f"{self._command[0]} cannot be started: {error.strerror}",
                hint="write the command after --, as in: gpuprof startup --ready URL -- python serve.py",
            ) from error
        self._is_started = True
        for number in self._early_signals:
            self._pass_on(number)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None or self._captures:
            self._end()
        if self._output is not None:
            self._output.close()

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        # Children that outlive the program would respond in place of the next one.
        self._signal(signal.SIGKILL)

    def wait_until_ready(self, readiness: Readiness, time_limit_s: float) -> float:
        """Return the seconds from the start to readiness. Raises BenchmarkError."""
        deadline_ns = self.start_ns + round(time_limit_s * 1e9)
        while True:
            is_met = readiness.is_met(self._printed() if isinstance(readiness, PrintedText) else b"")
            now_ns = time.monotonic_ns()
            code = self._process.poll()
            if is_met and code is None:
                return (now_ns - self.start_ns) / 1e9
            if code is not None:
                raise self._failure("ended_before_ready", f"ended with exit code {code} before it was ready")
            if now_ns >= deadline_ns:
                limit = format_duration(time_limit_s * 1e9)
                raise self._failure("not_ready", f"was not ready after {limit}: {readiness} was not met")
            time.sleep(POLL_S)

    def wait(self) -> int:
        """Return the exit code of the program, 128 and its number for a signal."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    @contextlib.contextmanager
    def signals_passed_on(self) -> Any:
        """Pass signals on: the program decides what they mean. Ignored ones, as of nohup, remain ignored."""
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, *_OF_TERMINALS)}
        left = (None, signal.SIG_IGN)  # None: not set from Python
        handlers = {number: handler for number, handler in handlers.items() if handler not in left}
        for number in handlers:
            signal.signal(number, lambda number, _frame: self._pass_on(number))
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int) -> None:
        if not self._is_started:
            self._early_signals.append(number)
        elif number in _OF_TERMINALS:
            self._signal(number)
        else:
            self._process.send_signal(number)

    def _printed(self) -> bytes:
        if self._output is None:
            return b""
        return os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0)

    def _failure(self, code: str, what: str) -> BenchmarkError:
        lines = self._printed()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        last = f"; its last line is {lines[-1]!r}" if lines else ""
        return BenchmarkError(
            code,
            f"{self._command[0]} {what}{last}",
            hint="run the command by itself, or give it more time with --time-limit",
        )

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def seconds_since_container_start(
    procfs: Path = Path("/proc"), *, clock: Callable[[int], float] = time.clock_gettime
) -> float | None:
    """Return the age of process 1 in a container; None if this process is in none, or it cannot be read.

    Process 1 is that of a container if this process is not in the initial PID namespace. Source: field
    `starttime` of proc_pid_stat(5).
    """
    try:
        # The initial PID namespace has this fixed inode (PROC_PID_INIT_INO in the kernel's proc_ns.h).
        if os.stat(procfs / "self" / "ns" / "pid").st_ino == 0xEFFFFFFC:  # noqa: PTH116
            return None
        fields = (procfs / "1" / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return clock(time.CLOCK_BOOTTIME) - started_s


def _remove_file_of(readiness: Readiness) -> None:
    path = getattr(readiness, "path", None)
    if isinstance(path, Path):
        path.unlink(missing_ok=True)


def _times(
    command: Sequence[str], readiness: Readiness, ready_s: Sequence[float], container_s: float | None = None
) -> ReadyTimes:
    import numpy as np

    from gpuprof.stats.quantiles import quantile_of

    samples = np.array(ready_s)
    estimate = quantile_of(samples, 0.5)
    return ReadyTimes(
        tuple(command),
        str(readiness),
        tuple(ready_s),
        float(np.median(samples)),
        estimate.low if estimate is not None else None,
        estimate.high if estimate is not None else None,
        container_s,
    )
