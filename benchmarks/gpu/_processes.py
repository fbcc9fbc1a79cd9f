# SPDX-License-Identifier: Apache-2.0
"""Commands with a time limit that leave no process, and whose output is in the log as it comes.

A command and whatever it starts carry a mark in their environment. It finds those that began a session of
their own, which the end of a process group does not reach.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = "GPUPROF_BENCHMARK_COMMAND"
LOG_LIMIT_BYTES = 12 << 20
_GRACE_S = 3.0
_SEARCHES = 20
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended. `code` is None where it was ended at its limit."""

    code: int | None
    output: str
    errors: str
    seconds: float

    @property
    def problem(self) -> str | None:
        """In a line, why the command did not do what it was to do; None where it did."""
        if self.code is None:
            return f"ended at its limit, after {self.seconds:.0f} s"
        if self.code == 0:
            return None
        lines = (self.errors.strip() or self.output.strip() or "no message").splitlines()
        return f"exit code {self.code}: {lines[-1][:300]}"


def run(
    words: Sequence[str | Path], *, limit_s: float, log: Path, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in the repository; its output is also appended to `log` while it runs."""
    begin = time.monotonic()
    mark = f"{os.environ.get(MARK, '')}/{os.getpid()}.{next(_numbers)}"
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        sink.write(f"\n$ {' '.join(str(word)[:200] for word in words)}\n")
        sink.flush()
        try:
            process = _start([str(word) for word in words], {**os.environ, **(environment or {}), MARK: mark})
        except OSError as error:
            return Done(127, "", f"{words[0]}: {error.strerror}", 0.0)
        readers = [_Reader(stream, sink) for stream in (process.stdout, process.stderr)]
        try:
            code: int | None = process.wait(timeout=max(0.1, limit_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process, mark)
        output, errors = (reader.text() for reader in readers)
        return Done(code, output, errors, time.monotonic() - begin)


def end_marked(mark: str) -> int:
    """Kill the processes with a mark or one below it; returns how many were found."""
    found: set[int] = set()
    for _ in range(_SEARCHES):  # what is found may have started another one meanwhile
        living = set(_marked(mark))
        if not living:
            break
        found |= living
        for number in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.01)
    return len(found)


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if any(each == wanted or each.startswith(wanted + b"/") for each in variables):
            yield int(folder.name)


def _start(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class _Reader:
    """Takes a command's output: into memory, and into the log as far as that may grow."""

    def __init__(self, stream: IO[str] | None, sink: IO[str]) -> None:
        assert stream is not None
        self._stream, self._sink = stream, sink
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return what came until now; the command has ended."""
        self._thread.join(_GRACE_S)
        if not self._thread.is_alive():
            self._stream.close()
        return "".join(self._lines)

    def _read(self) -> None:
        for line in self._stream:
            self._lines.append(line)
            # After the limit the log may be closed while a line is still on its way.
            with contextlib.suppress(ValueError):
                if self._sink.tell() < LOG_LIMIT_BYTES:
                    self._sink.write(line)
                    self._sink.flush()


def _end(process: subprocess.Popen[str], mark: str) -> None:
    """End whatever is left of a command: its group is asked to, the rest is killed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    end_marked(mark)
    process.wait()
