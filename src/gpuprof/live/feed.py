# SPDX-License-Identifier: Apache-2.0
"""The live feed: a snapshot of figures for each interval of a program, its run and the machine.

The reader is next to the program. It reads the files that the recording writes anyway, and /proc; it takes no
lock, sends no signal and opens no connection, so its end changes nothing in the program.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError
from gpuprof.live.devices import DeviceWatch
from gpuprof.live.processes import MachineWatch, ProcessWatch, mapped_files
from gpuprof.live.requests import RequestFollower
from gpuprof.live.run_follower import RunFollower
from gpuprof.live.snapshot import (
    LiveCallFigures,
    LiveRequestFigures,
    MachineFigures,
    MissingReason,
    ProcessFigures,
    RunState,
    Snapshot,
    Unavailable,
)
from gpuprof.load.published import LIVE_FILE
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS
from gpuprof.run.format import META_FILE

_SLACK_S = 1.0  # /proc has the begin of a process to 10 ms
_POLLS_OF_LOAD = 10  # from one search for a load test to the next


class Feed:
    """Yields a snapshot at each `poll`. Without a run it has the processes, the machine and its devices.

    `load` is the folder of a running load test. Raises RunError if the run is no run, or one that was closed.
    """

    def __init__(
        self,
        run: Path | None = None,
        process_ids: tuple[int, ...] = (),
        *,
        load: Path | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        unix_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.run = run
        self._clock, self._unix_clock = clock, unix_clock
        self._follower = None if run is None else RunFollower(run, _segments_of(run))
        self._watches = {each: ProcessWatch(each) for each in process_ids}
        self._machine = MachineWatch()
        self._devices = DeviceWatch() if run is None else None
        self._load = LoadWatch(load)
        self._last_ns = clock()
        self._polls = 0
        self._spans: dict[int, int] = {}
        self._state: RunState | None = None

    def close(self) -> None:
        """End the process that reads devices, if there is one."""
        if self._devices is not None:
            self._devices.close()

    def choose(self, process_id: int | None) -> None:
        """Sum up the calls and layers of one process from now on; None: of all."""
        if self._follower is not None:
            self._follower.choose(process_id)

    def poll(self) -> Snapshot:
        """Return the figures since the last call, or since the feed was made."""
        now_ns = self._clock()
        interval_ns, self._last_ns = now_ns - self._last_ns, now_ns
        self._machine.read()
        for watch in self._watches.values():
            watch.read()
        machine = self._machine.figures(interval_ns)
        if self._polls % _POLLS_OF_LOAD == 0:
            self._load.look_for(self._watches)
        self._polls += 1
        if self._follower is not None:
            return self._poll_run(self._follower, machine, interval_ns, now_ns)
        no_run = Unavailable(MissingReason.NO_RUN)
        assert self._devices is not None
        return Snapshot(
            unix_ns=self._unix_clock(),
            interval_ns=interval_ns,
            machine=machine,
            processes=tuple(each.figures(interval_ns, no_run) for each in self._watches.values()),
            requests=self._load.take(),
            devices=self._devices.take(),
        )

    def _poll_run(
        self, follower: RunFollower, machine: MachineFigures, interval_ns: int, now_ns: int
    ) -> Snapshot:
        # In this order: a process that had ended when it was looked at has written all by now.
        ended = [process_id for process_id, watch in self._watches.items() if not watch.is_alive]
        figures = follower.poll(ended)
        # The folder may be removed at any time: `is_over` must agree with the snapshot.
        self._state = follower.state
        return Snapshot(
            unix_ns=self._unix_clock(),
            interval_ns=interval_ns,
            machine=machine,
            processes=self._processes(follower, interval_ns, now_ns),
            run=str(self.run),
            state=self._state,
            allocator=Unavailable(MissingReason.NOT_RECORDED),
            requests=self._load.take(),
            missed_spans=follower.missed_spans,
            **figures,
        )

    def _processes(self, follower: RunFollower, interval_ns: int, now_ns: int) -> tuple[ProcessFigures, ...]:
        processes = []
        for state in follower.processes():
            watch = self._watches.get(state["process_id"]) or self._watch(state)
            total = state["spans"]
            spans = total - self._spans.get(state["process_key"], 0)
            self._spans[state["process_key"]] = total
            waiting_ns = now_ns - state["waiting_ns"] if state["waiting_ns"] else 0
            processes.append(watch.figures(interval_ns, spans, waiting_ns))
        return tuple(processes)

    def has_live_process(self) -> bool:
        """Whether a process of the run exists, or none has begun yet. True without a run."""
        if self._follower is None:
            return True
        states = self._follower.look_for_processes()
        watches = [self._watches.get(each["process_id"]) or self._watch(each) for each in states]
        return not watches or any(each.is_alive for each in watches)

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more, as of the last poll."""
        if self._follower is not None:
            return self._state not in (None, RunState.RECORDING)
        if self._load.is_over:
            return True
        return bool(self._watches) and not any(each.is_alive for each in self._watches.values())

    def _watch(self, state: dict[str, Any]) -> ProcessWatch:
        """Return the watch of a process of the run; its id may be that of a later process by now."""
        watch = self._watches[state["process_id"]] = ProcessWatch(state["process_id"])
        if watch.started_ticks is not None:
            started_s = watch.started_ticks / os.sysconf("SC_CLK_TCK")
            since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
            if started_s > state["start_ns"] / 1e9 + since_boot_s + _SLACK_S:
                watch.mark_ended()
        return watch


class LoadWatch:
    """The load test of a folder, or the one that a watched process runs."""

    def __init__(self, folder: Path | None) -> None:
        self._follower: RequestFollower | None = None
        if folder is not None:
            self._open(folder / LIVE_FILE)

    def look_for(self, process_ids: Iterable[int]) -> None:
        """Look for a load test in the mappings of processes, unless one is known that continues."""
        if self._follower is not None and not self._follower.is_over:
            return
        for process_id in process_ids:
            for path in mapped_files(process_id, LIVE_FILE):
                self._open(path)

    @property
    def is_over(self) -> bool:
        """Whether there was a load test, and it has ended."""
        return self._follower is not None and self._follower.is_over

    def take(self) -> LiveRequestFigures | Unavailable:
        """Return the requests since the last time."""
        return Unavailable(MissingReason.NO_LOAD_TEST) if self._follower is None else self._follower.take()

    def _open(self, path: Path) -> None:
        try:
            self._follower = RequestFollower(path)
        except OSError:
            return  # the test has ended meanwhile


def largest(calls: list[LiveCallFigures], count: int) -> tuple[list[LiveCallFigures], LiveCallFigures | None]:
    """Return the first `count` calls and the sum of the others, named `other`; None if there are none."""
    shown, rest = calls[:count], calls[count:]
    if not rest:
        return shown, None
    sums = (sum(each.calls for each in rest), sum(each.total_ns for each in rest))
    return shown, LiveCallFigures(rest[0].kind, "other", *sums, sum(each.self_ns for each in rest))


def _segments_of(run: Path) -> Path:
    if not run.is_dir():
        raise RunError(
            "no_such_run",
            f"{run} is no folder",
            hint="specify the folder that a recording writes (NAME.gpuprof)",
        )
    if (run / RECORDING_FILE).exists() and (run / SEGMENTS).is_dir():
        return run / SEGMENTS
    if (run / META_FILE).exists():
        raise RunError(
            "not_recording", f"{run} was closed: its program has ended", hint=f"gpuprof summary {run}"
        )
    raise RunError(
        "not_a_run",
        f"{run} is not a run: it holds neither {META_FILE} nor {RECORDING_FILE}",
        hint="specify the folder that a recording writes (NAME.gpuprof)",
    )
