# SPDX-License-Identifier: Apache-2.0
"""A terminal for a view that refreshes: its modes, its size and its keys. It is restored on every way out."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_SIZE_PERIOD_S = 0.25  # a changed size is noticed after this
_MOST_KEY_BYTES = 64
_DEFAULT_SIZE = os.terminal_size((80, 24))


def can_refresh() -> bool:
    """Whether standard output is a terminal whose cursor can be moved."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def has_colors() -> bool:
    """Whether colors are wanted (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")


class Terminal:
    """Standard output as a screen of lines, and keys from standard input if that is a terminal, too."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._output = sys.stdout.fileno()
        self._former: list[Any] | None = None
        self._is_open = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[Terminal]:
        """Show the screen for the time of the block; SIGTERM and SIGHUP end it, Ctrl-Z suspends it."""
        handlers = {
            signal.SIGTERM: _end,
            signal.SIGHUP: _end,
            signal.SIGTSTP: self._suspend,
        }
        former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            self._enter()
            yield self
        finally:
            self._leave()
            for number, handler in former.items():
                signal.signal(number, handler)

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines now."""
        try:
            found = os.get_terminal_size(self._output)
        except OSError:
            return _DEFAULT_SIZE
        return found if found.columns and found.lines else _DEFAULT_SIZE

    def show(self, lines: Sequence[str]) -> None:
        """Replace what is on the screen."""
        text = "\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J"
        self._write(text)

    def wait_for_keys(self, seconds: float) -> str:
        """Return the keys that are pressed within a time; empty where none is, or the size changes."""
        deadline, size = time.monotonic() + seconds, self.size
        while (left := deadline - time.monotonic()) > 0:
            files = [] if self._input is None else [self._input]
            ready, _, _ = select.select(files, [], [], min(left, _SIZE_PERIOD_S))
            if ready:
                return self._read_keys()
            if self.size != size:
                return ""
        return ""

    def _read_keys(self) -> str:
        assert self._input is not None
        try:
            content = os.read(self._input, _MOST_KEY_BYTES)
        except OSError:
            content = b""
        if not content:
            self._input = None  # the terminal's other side is gone, or nothing more can be typed
        return content.decode("utf-8", "ignore")

    def _enter(self) -> None:
        if self._input is not None:
            self._former = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        self._write(_ENTER)
        self._is_open = True

    def _leave(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(OSError, termios.error):
            self._write(_LEAVE)
            if self._input is not None and self._former is not None:
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._former)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Restore the terminal, stop as without a handler, and show the screen again on SIGCONT."""
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        self._enter()

    def _write(self, text: str) -> None:
        content = text.encode("utf-8", "replace")
        while content:
            content = content[os.write(self._output, content) :]


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
