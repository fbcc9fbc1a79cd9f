# SPDX-License-Identifier: Apache-2.0
"""Commands with a time limit, which leave no process behind, and whose output is kept as it comes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[2]
_GRACE_S = 5.0


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


def end_children_when_ended() -> None:
    """Let a command that runs commands end them when it is ended itself."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(_number: int, _frame: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def run(
    words: Sequence[str | Path], *, limit_s: float, log: Path, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in the repository; its output is also appended to `log` while it runs."""
    begin = time.monotonic()
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        sink.write(f"\n$ {' '.join(str(word)[:200] for word in words)}\n")
        sink.flush()
        try:
            process = _start([str(word) for word in words], {**os.environ, **(environment or {})})
        except OSError as error:
            return Done(127, "", f"{words[0]}: {error.strerror}", 0.0)
        kept: tuple[list[str], list[str]] = ([], [])
        readers = [
            threading.Thread(target=_read, args=(stream, lines, sink), daemon=True)
            for stream, lines in zip((process.stdout, process.stderr), kept, strict=True)
        ]
        for reader in readers:
            reader.start()
        try:
            code: int | None = process.wait(timeout=max(0.1, limit_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        for reader, stream in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join(_GRACE_S)
            if stream is not None and not reader.is_alive():
                stream.close()
        return Done(code, "".join(kept[0]), "".join(kept[1]), time.monotonic() - begin)


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


def _read(stream: IO[str] | None, lines: list[str], sink: Any) -> None:
    assert stream is not None
    for line in stream:
        lines.append(line)
        # After the limit the log may be closed while a line is still under way.
        with contextlib.suppress(ValueError):
            sink.write(line)
            sink.flush()


def _end(process: subprocess.Popen[str]) -> None:
    """End the command's whole session, of which something may be left whatever became of the command."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
