# SPDX-License-Identifier: Apache-2.0
"""The live feed: a snapshot of figures for each interval of a program, its run and the machine.

The reader is next to the program. It reads the files that the recording writes anyway, and /proc; it takes no
lock, sends no signal and opens no connection, so its end changes nothing in the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError
from gpuprof.live.processes import MachineWatch, ProcessWatch
from gpuprof.live.snapshot import LiveCallFigures, MissingReason, RunState, Snapshot, Unavailable
from gpuprof.live.spans import SpanFollower
from gpuprof.record.facts import Method
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS
from gpuprof.run.facts import statuses_of
from gpuprof.run.format import META_FILE, read_json

_SLACK_S = 1.0  # /proc has the begin of a process to 10 ms


class Feed:
    """Yields a snapshot at each `poll`. Without a run it has the processes and the machine only.

    Raises RunError if the folder is no run, or one that was closed.
    """

    def __init__(
        self,
        run: Path | None = None,
        process_ids: tuple[int, ...] = (),
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        unix_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._run = run
        self._clock, self._unix_clock = clock, unix_clock
        self._follower = None if run is None else SpanFollower(_segments_of(run))
        self._facts = {} if run is None else read_json(run / RECORDING_FILE)
        self._watches = {each: ProcessWatch(each) for each in process_ids}
        self._machine = MachineWatch()
        self._last_ns = clock()
        self._spans: dict[int, int] = {}

    def poll(self) -> Snapshot:
        """Return the figures since the last call, or since the feed was made."""
        now_ns = self._clock()
        interval_ns, self._last_ns = now_ns - self._last_ns, now_ns
        self._machine.read()
        for watch in self._watches.values():
            watch.read()
        machine = self._machine.figures(interval_ns)
        if self._follower is None:
            no_run = Unavailable(MissingReason.NO_RUN)
            processes = tuple(each.figures(interval_ns, no_run) for each in self._watches.values())
            return Snapshot(self._unix_clock(), interval_ns, machine, processes)
        return self._poll_run(self._follower, machine, interval_ns, now_ns)

    def _poll_run(self, follower: SpanFollower, machine: Any, interval_ns: int, now_ns: int) -> Snapshot:
        ended = [process_id for process_id, watch in self._watches.items() if not watch.is_alive]
        operators = self._operators()
        is_late = follower.poll(ended, has_operators=operators is None)
        states = follower.processes()
        processes = []
        for state in states:
            watch = self._watches.get(state["process_id"]) or self._watch(state)
            total = state["spans"]
            spans = total - self._spans.get(state["process_key"], 0)
            self._spans[state["process_key"]] = total
            waiting_ns = now_ns - state["waiting_ns"] if state["waiting_ns"] else 0
            processes.append(watch.figures(interval_ns, spans, waiting_ns))
        not_recorded = Unavailable(MissingReason.NOT_RECORDED)
        steps = follower.take_steps()
        return Snapshot(
            unix_ns=self._unix_clock(),
            interval_ns=interval_ns,
            machine=machine,
            processes=tuple(processes),
            run=str(self._run),
            state=self._state(follower),
            steps=steps or Unavailable(MissingReason.NO_STEPS),
            layers=follower.take_layers(),
            calls=follower.take_calls(),
            operators=operators,
            allocator=not_recorded,
            python=not_recorded,
            devices=not_recorded,
            kernels=not_recorded,
            is_late=is_late,
            dropped_events=sum(state["dropped_events"] for state in states),
            missed_spans=self._missed(follower),
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        if self._follower is not None:
            return self._state(self._follower) is not RunState.RECORDING
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

    def _state(self, follower: SpanFollower) -> RunState:
        if follower.is_finished:
            return RunState.ENDED
        return RunState.RECORDING if self._run is not None and self._run.is_dir() else RunState.GONE

    def _operators(self) -> Unavailable | None:
        """Return why the calls have no operators, if they have none."""
        assert self._run is not None
        # Of a run that was closed or removed, what was known remains.
        with contextlib.suppress(OSError, ValueError):
            self._facts = json.loads((self._run / RECORDING_FILE).read_bytes())
        status = statuses_of(self._facts).get("operators")
        if status is None or not status.is_on:
            return Unavailable(MissingReason.NOT_RECORDED)
        if status.method is Method.TORCH_PROFILER:
            return Unavailable(MissingReason.AFTER_THE_END)
        return None

    def _missed(self, follower: SpanFollower) -> int:
        """Return how many spans of the closed run were removed before they could be read."""
        assert self._run is not None
        if not follower.is_finished or not (self._run / META_FILE).exists():
            return 0
        try:
            total = int(read_json(self._run / META_FILE)["totals"]["spans"])
        except (RunError, OSError, KeyError, TypeError, ValueError):
            return 0
        return max(total - follower.total_spans, 0)


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
    raise RunError("not_a_run", f"{run} is not a run: it has neither {META_FILE} nor {RECORDING_FILE}")
