# SPDX-License-Identifier: Apache-2.0
"""`gpuprof top` in a real terminal: what it shows, its keys, its end, and the program that it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_program import Recorded

import gpuprof

LONGEST_WAIT_S = 120
FRAME = re.compile(rb"\x1b\[H(.*?)\x1b\[J", re.DOTALL)
LEFT = b"\x1b[?25h\x1b[?1049l"


# Starts a command in the foreground as a shell does, and prints that it was stopped or killed.
SHELL = textwrap.dedent("""\
    import os, signal, subprocess, sys
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    def in_foreground():
        os.setpgrp()
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    process = subprocess.Popen(sys.argv[1:], preexec_fn=in_foreground)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.write(1, b"stopped\\n")
        _, status = os.waitpid(process.pid, 0)
    if os.WIFSIGNALED(status):
        os.write(1, b"killed\\n")
        signal.pause()  # the terminal remains
    sys.exit(os.waitstatus_to_exitcode(status))
    """)


class OwnTerminal:
    """A command in a terminal of its own, which is its controlling terminal."""

    def __init__(self, arguments: list[str], folder: Path, shell: str | None = None, **more: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(90, 40)
        self.modes = termios.tcgetattr(theirs)
        self.received = b""
        environment = {**os.environ, "TERM": "xterm", **more}
        self.process = subprocess.Popen(
            [*([] if shell is None else [sys.executable, "-c", shell]),
             sys.executable, "-m", "gpuprof", "top", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self._theirs = theirs

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, is_wanted: Callable[[str], Any]) -> str:
        """Return the first frame from now on that is wanted."""
        begin, deadline = len(self.received), time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline:
            self._receive()
            for found in FRAME.finditer(self.received, begin):
                frame = found.group(1).decode().replace("\x1b[K", "").replace("\r", "")
                if is_wanted(frame):
                    return frame
            assert self.process.poll() is None, self.received[-2000:]
        raise AssertionError(self.received[-2000:])

    def wait_for_end(self, ending: bytes) -> None:
        """Wait until the last thing that was written is this."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        while not self.received.endswith(ending):
            assert time.monotonic() < deadline, self.received[-2000:]
            self._receive()

    @property
    def terminal(self) -> int:
        return self._ours

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        while self.process.poll() is None:
            self._receive()
        self._receive()
        return self.process.returncode

    @property
    def text_after_frames(self) -> str:
        return self.received.rpartition(LEFT)[2].decode()

    @property
    def modes_now(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def _receive(self) -> None:
        while select.select([self._ours], [], [], 0.1)[0]:
            self.received += os.read(self._ours, 1 << 16)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., OwnTerminal]]:
    opened: list[OwnTerminal] = []

    def make(*arguments: str, **options: Any) -> OwnTerminal:
        opened.append(OwnTerminal([*arguments, "--interval", "0.2"], tmp_path, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    program = Recorded(tmp_path)
    yield program
    program.close()


def test_a_view_of_a_run_follows_keys_and_the_size(
    recorded: Recorded, terminal: Callable[..., OwnTerminal]
) -> None:
    recorded.send("3")
    view = terminal(str(recorded.run))
    assert "\x1b[1mlayer" in view.wait_for(lambda frame: "aten::" in frame)
    view.press("t")
    view.wait_for(lambda frame: "since the start" in frame)
    view.press("ss")
    view.wait_for(lambda frame: "by calls" in frame)
    view.press("h")
    view.wait_for(lambda frame: "take a profile" in frame)
    view.resize(20, 12)
    # The help has fewer lines than this also in the wide terminal.
    narrow = view.wait_for(
        lambda frame: all(len(re.sub(r"\x1b\[[01]m", "", line)) <= 20 for line in frame.split("\n"))
    )
    assert len(narrow.split("\n")) <= 12
    view.press("q")
    assert view.wait() == 0
    assert view.modes_now == view.modes
    assert "aten::addmm" in view.text_after_frames  # the last frame, since the start
    recorded.send("2")
    recorded.send("end")
    assert gpuprof.open(recorded.run).sql("SELECT count(*) FROM steps").fetchall() == [(5,)]


def test_a_view_without_colors_and_its_end_with_the_recording(
    recorded: Recorded, terminal: Callable[..., OwnTerminal]
) -> None:
    recorded.send("3")
    view = terminal(str(recorded.process.pid), NO_COLOR="1")
    frame = view.wait_for(lambda frame: "aten::" in frame)
    assert frame.replace("\n", "").isprintable()
    recorded.send("end")
    assert view.wait() == 0
    assert view.modes_now == view.modes


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_view_that_is_ended_changes_nothing_for_the_program(
    recorded: Recorded, terminal: Callable[..., OwnTerminal], number: signal.Signals
) -> None:
    recorded.send("3")
    view = terminal(str(recorded.run))
    view.wait_for(lambda frame: "aten::" in frame)
    view.process.send_signal(number)
    code = view.wait()
    assert code == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 0}[number]
    if number is not signal.SIGKILL:
        assert view.modes_now == view.modes
        assert LEFT in view.received
    recorded.send("4")
    recorded.send("end")
    run = gpuprof.open(recorded.run)
    assert (run.meta["complete"], run.sql("SELECT count(*) FROM steps").fetchall()) == (True, [(7,)])


@pytest.mark.parametrize("more", [("--json",), ()])
def test_texts_that_sigterm_ends_exit_with_143(more: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "gpuprof", "top", "--interval", "0.1", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as view:
        assert view.stdout is not None
        assert view.stdout.readline()
        view.send_signal(signal.SIGTERM)
        _, errors = view.communicate(timeout=60)
    assert (view.returncode, errors) == (143, b"")


def test_a_suspended_view_restores_the_terminal_and_comes_back(
    recorded: Recorded, terminal: Callable[..., OwnTerminal]
) -> None:
    recorded.send("3")
    view = terminal(str(recorded.run), shell=SHELL)
    view.wait_for(lambda frame: "aten::" in frame)
    view.press("\x1a")  # Ctrl-Z
    view.wait_for_end(b"stopped\r\n")
    assert LEFT in view.received
    assert view.modes_now == view.modes
    os.killpg(os.tcgetpgrp(view.terminal), signal.SIGCONT)
    view.wait_for(lambda frame: "machine" in frame)
    view.press("q")
    assert view.wait() == 0


# ---- a command --------------------------------------------------------------------------------------------

SCRIPT = textwrap.dedent("""\
    import sys, gpuprof
    from pathlib import Path
    print("begun \\x1b[2J", flush=True)
    try:
        while not Path("stop").exists():
            with gpuprof.span("work"):
                sum(range(1000))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(7)
    with gpuprof.span("after"):
        pass
    sys.exit(3)
    """)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(SCRIPT)
    return path


def test_the_exit_code_of_a_command_is_passed_through(
    script: Path, terminal: Callable[..., OwnTerminal]
) -> None:
    view = terminal("--", "python", "work.py", shell=SHELL)
    frame = view.wait_for(lambda frame: "work" in frame and "output:" in frame)
    assert "output: begun \\x1b[2J" in frame
    script.with_name("stop").touch()
    assert view.wait() == 3
    assert "after" in view.text_after_frames
    assert script.with_name("work.gpuprof.log").read_bytes().startswith(b"begun \x1b[2J\n")
    run = gpuprof.open(script.with_name("work.gpuprof"))
    count = run.sql("SELECT count(*) FROM spans WHERE name = 'work'").fetchall()[0][0]
    assert re.search(rf"work .* {count:,}\r", view.text_after_frames)


def test_the_end_of_the_view_does_not_end_the_command(
    script: Path, terminal: Callable[..., OwnTerminal]
) -> None:
    view = terminal("--", "python", "work.py")
    view.wait_for(lambda frame: "work" in frame and "output:" in frame)
    view.press("q")
    view.wait_for_end(b"interrupts it\r\n")
    assert view.modes_now == view.modes
    script.with_name("stop").touch()
    assert view.wait() == 3
    assert gpuprof.open(script.with_name("work.gpuprof")).meta["complete"]


def test_ctrl_c_reaches_the_command(script: Path, terminal: Callable[..., OwnTerminal]) -> None:
    view = terminal("--", "python", "work.py")
    view.wait_for(lambda frame: "work" in frame and "output:" in frame)
    view.press("\x03")
    assert view.wait() == 7
    assert b"interrupted" in script.with_name("work.gpuprof.log").read_bytes()
    assert view.modes_now == view.modes


def test_a_view_that_is_killed_does_not_end_the_command(
    script: Path, terminal: Callable[..., OwnTerminal]
) -> None:
    view = terminal("--", "python", "work.py", shell=SHELL)
    frame = view.wait_for(lambda frame: re.search(r"python\S* +\S+ +\S+ MB +\d+", frame))
    process_id = int(re.search(r"python\S* +\S+ +\S+ MB +(\d+)", frame)[1])
    os.kill(os.tcgetpgrp(view.terminal), signal.SIGKILL)
    view.wait_for_end(b"killed\r\n")
    file = os.pidfd_open(process_id)  # it is running
    script.with_name("stop").touch()
    assert select.select([file], [], [], LONGEST_WAIT_S)[0]
    os.close(file)
    run = script.with_name("work.gpuprof")
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not (run / "meta.json").exists() and time.monotonic() < deadline:
        os.sched_yield()
    assert gpuprof.open(run).meta["complete"]
