# SPDX-License-Identifier: Apache-2.0
"""The view that refreshes in a terminal: polls the feed, draws frames, and does what keys ask for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpuprof.live.feed import Feed
from gpuprof.live.frame import ViewState, fitted_text, frame_lines
from gpuprof.live.snapshot import Snapshot
from gpuprof.live.tails import last_line
from gpuprof.live.text import SectionKey, SortKey, sections
from gpuprof.live.totals import Totals
from gpuprof.record.helper_process import module_command

PROFILE_NS = 2_000_000_000
_BRIEF_S = 5.0  # a message about a key that was pressed
_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O.)?")  # arrows and the like
_FIXED = (SectionKey.PROCESSES, SectionKey.DEVICES)


class Screen(Protocol):
    """What a view is drawn on, as `Terminal`."""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines now."""
        ...

    def show(self, lines: list[str]) -> None:
        """Replace what is on the screen."""
        ...

    def wait_for_keys(self, seconds: float) -> str:
        """Return the keys that are pressed within a time; empty where none is."""
        ...


class ProfileCut:
    """The process that cuts a profile out of a run, and its result."""

    def __init__(self, run: Path, out: Path, end_ns: int) -> None:
        words = [str(run), str(out), str(end_ns - PROFILE_NS), str(end_ns)]
        self._process = subprocess.Popen(
            module_command("gpuprof.live.cut", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the view
        )

    def result(self) -> dict[str, str] | None:
        """Return what was written, or the error; None while it is being made."""
        if self._process.poll() is None:
            return None
        assert self._process.stdout is not None
        content = self._process.stdout.read()
        self._process.stdout.close()
        try:
            found: dict[str, str] = json.loads(content)
        except ValueError:
            return {"error": f"the process that makes it ended with exit code {self._process.returncode}"}
        return found

    def end(self) -> None:
        """End the process, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class LiveView:
    """One view of one feed. `output` is the file of the program's output, whose last line is shown."""

    def __init__(
        self,
        feed: Feed,
        screen: Screen,
        interval_s: float,
        *,
        run: Path | None = None,
        output: Path | None = None,
        profile_name: Callable[[], Path] = lambda: Path("top.gpuprof"),
        colors: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = ViewState()
        self._feed, self._screen, self._interval_s = feed, screen, interval_s
        self._run, self._output, self._profile_name = run, output, profile_name
        self._colors, self._clock = colors, clock
        self._totals = Totals()
        self._last: Snapshot | None = None  # of the feed
        self._shown: Snapshot | None = None
        self._sums: Snapshot | None = None  # since the start, made when they are shown
        self._cut: ProfileCut | None = None
        self._message_end_s: float | None = None
        self.page: Path | None = None

    def run(self) -> bool:
        """Show the feed until it ends or the user ends the view; returns whether the feed has ended."""
        try:
            while True:
                self._poll()
                self._draw()
                if self._feed.is_over:
                    self._read_rest()
                    return True
                if self._wait(self._clock() + self._interval_s):
                    return False
        finally:
            if self._cut is not None:
                self._cut.end()

    def last_frame(self) -> str:
        """Return the figures since the start, as text that fits the screen's width."""
        columns, _ = self._screen.size
        return "" if self._last is None else fitted_text(self._totals.in_place_of(self._last), columns)

    def press(self, keys: str) -> bool:
        """Do what keys ask for; returns whether the view is to end."""
        for key in _SEQUENCE.sub("", keys):
            if key in ("q", "Q"):
                return True
            self._press(key)
        return False

    def _poll(self) -> None:
        self._last = self._feed.poll()
        self._totals.add(self._last)
        if not self.state.paused or self._shown is None:
            self._shown, self._sums = self._last, None
        if self._output is not None:
            self.state.output = last_line(self._output)

    def _read_rest(self) -> None:
        while self._last is not None and self._last.is_late:
            self._poll()

    def _wait(self, due: float) -> bool:
        while (left := due - self._clock()) > 0:
            keys = self._screen.wait_for_keys(left)
            if self.press(keys):
                return True
            self._take_profile()
            self._draw()
        return False

    def _draw(self) -> None:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        if self._message_end_s is not None and self._clock() >= self._message_end_s:
            self._report("" if self.page is None else f"profile: {self.page} (o: open)")
        columns, lines = self._screen.size
        self._screen.show(frame_lines(snapshot, self.state, columns, lines, colors=self._colors))

    def _snapshot(self) -> Snapshot | None:
        """Return what is shown: of an interval, or since the start."""
        if not self.state.since_start or self._shown is None:
            return self._shown
        self._sums = self._sums or self._totals.in_place_of(self._shown)
        return self._sums

    def _press(self, key: str) -> None:
        state = self.state
        state.shows_help = key in ("h", "?") and not state.shows_help
        if key == " ":
            state.paused = not state.paused
            if self._shown is not None:
                self._sums = self._totals.in_place_of(self._shown)
        elif key == "s":
            orders = list(SortKey)
            state.sort = orders[(orders.index(state.sort) + 1) % len(orders)]
        elif key == "t":
            state.since_start = not state.since_start
        elif key == "\t":
            self._next_table()
        elif key == "n":
            self._next_process()
        elif key == "p":
            self._begin_profile()
        elif key == "o":
            self._open_page()

    def _next_table(self) -> None:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        keys = [each.key for each in sections(snapshot) if each.key not in _FIXED]
        choices = [None, *keys]
        place = choices.index(self.state.only) if self.state.only in choices else 0
        self.state.only = choices[(place + 1) % len(choices)]

    def _next_process(self) -> None:
        if self._last is None:
            return
        choices = [None, *(each.process_id for each in self._last.processes)]
        place = choices.index(self.state.process_id) if self.state.process_id in choices else 0
        self.state.process_id = choices[(place + 1) % len(choices)]
        self._feed.choose(self.state.process_id)
        # The sums are those of the process from now on, or of all from now on.
        self._totals = Totals()
        self.state.since_choice = True

    def _report(self, message: str, *, is_brief: bool = False) -> None:
        """Show a message, a brief one for some seconds."""
        self.state.message = message
        self._message_end_s = self._clock() + _BRIEF_S if is_brief else None

    def _begin_profile(self) -> None:
        if self._run is None:
            self._report("no profile: only a program that is recorded has one", is_brief=True)
        elif self._cut is None:
            self._cut = ProfileCut(self._run, self._profile_name(), time.monotonic_ns())
            self._report("taking a profile of the last 2 seconds")

    def _take_profile(self) -> None:
        if self._cut is None or (result := self._cut.result()) is None:
            return
        self._cut = None
        if "error" in result:
            self._report(f"no profile: {result['error']}")
            return
        self.page = Path(result["page"])
        self._report(f"profile: {result['page']} (o: open)")

    def _open_page(self) -> None:
        if self.page is None:
            self._report("no page: take a profile first (p)", is_brief=True)
            return
        subprocess.Popen(
            [sys.executable, "-m", "webbrowser", self.page.resolve().as_uri()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._report(f"opening {self.page}", is_brief=True)
