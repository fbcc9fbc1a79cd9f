# SPDX-License-Identifier: Apache-2.0
"""Runs that are being recorded, as the live section of the page shows them: one compact point an interval."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gpuprof.errors import GpuprofError
from gpuprof.live.alerts.engine import Alert, AlertEngine
from gpuprof.live.alerts.figures import SubjectKind
from gpuprof.live.alerts.rules import BUILT_IN_RULES, AlertRule
from gpuprof.live.dashboard.items import Plain
from gpuprof.live.feed import Feed
from gpuprof.live.snapshot import (
    LiveDeviceFigures,
    LiveRequestFigures,
    MachineFigures,
    ProcessFigures,
    Snapshot,
    Unavailable,
)
from gpuprof.text.sanitize import visible_text

MOST_RUNS = 12  # that are followed at once
KEPT_POINTS = 300  # for a page that is opened later
SHOWN_NAMES = 8
_LONGEST_NAME = 200


class LiveFeed(Protocol):
    """What yields snapshots: `gpuprof.live.feed.Feed`, or a simulation of it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""

    def poll(self) -> Snapshot:
        """Return the figures since the last call."""

    def close(self) -> None:
        """Give up what it holds."""


def open_feed_of(run: Path | None) -> LiveFeed:
    """Return the feed of a run's folder, or of the machine."""
    return Feed(run)


class LiveRuns:
    """Follows the runs of a folder that are being recorded, and the machine.

    `on_alert` gets each alert that fires or clears, with the path of its run, which is empty for the machine.
    """

    def __init__(
        self,
        root: Path,
        open_feed: Callable[[Path | None], LiveFeed] = open_feed_of,
        *,
        rules: Sequence[AlertRule] = BUILT_IN_RULES,
        on_alert: Callable[[str, Alert], None] | None = None,
    ) -> None:
        self._root = root
        self._rules = rules
        self._on_alert = on_alert
        self._paths: dict[str, str] = {}
        self._open = open_feed
        self._machine = open_feed(None)
        self._machine_alerts = AlertEngine(rules)
        self._feeds: dict[str, LiveFeed] = {}
        self._alerts: dict[str, AlertEngine] = {}
        self._refused: dict[str, str] = {}
        self._points: dict[str, deque[Plain]] = {}
        self._machine_points: deque[Plain] = deque(maxlen=KEPT_POINTS)
        self._ended: set[str] = set()
        self._left_out = 0
        # A thread polls while the server reads the history, and may still poll when the server closes.
        self._polling = threading.Lock()
        self._is_closed = False
        self._history: Plain = {"machine": [], "runs": {}}

    def poll(self, recording: Mapping[str, str]) -> Plain:
        """Return the points of an interval. `recording` are the paths of recorded runs, by id."""
        with self._polling:
            found = {} if self._is_closed else self._poll(recording)
            self._history = {
                "machine": list(self._machine_points),
                "runs": {each: list(self._points[each]) for each in self._feeds},
            }
        return found

    def _poll(self, recording: Mapping[str, str]) -> Plain:
        for gone in self._feeds.keys() - recording.keys():
            # What its last interval had is read before it is given up.
            self._ended.add(gone)
        new = [each for each in recording if each not in self._feeds and each not in self._ended]
        self._left_out = 0
        for each in new:
            if len(self._feeds) >= MOST_RUNS:
                self._left_out += 1
            else:
                self._follow(each, recording[each])
        snapshot = self._machine.poll()
        self._report("", self._machine_alerts.update(snapshot))
        machine = {"t": snapshot.unix_ns // 1_000_000, **_machine_point(snapshot.machine)}
        machine["devices"] = _devices(snapshot.devices)
        self._machine_points.append({**machine, "devices": []})
        runs = {each: self._point(each) for each in list(self._feeds)}
        alerts = self._active_alerts()
        for each in self._ended & self._feeds.keys():
            self._feeds.pop(each).close()
            # What fired for a run that has ended is not left open.
            now_ns = snapshot.unix_ns
            self._report(self._paths[each], [alert.cleared(now_ns) for alert in self._alerts[each].active])
            del self._points[each], self._alerts[each], self._paths[each]
        self._ended &= recording.keys()
        self._refused = {each: code for each, code in self._refused.items() if each in recording}
        return {
            "machine": machine,
            "runs": runs,
            "alerts": alerts,
            "left_out": self._left_out,
            "refused": dict(self._refused),
        }

    def _report(self, path: str, alerts: Iterable[Alert]) -> None:
        if self._on_alert is not None:
            for each in alerts:
                if not path or each.subject.kind is not SubjectKind.MACHINE:
                    self._on_alert(path, each)

    def _active_alerts(self) -> list[Plain]:
        """Return the alerts that fire; those of the machine come from its own feed, once."""
        engines: list[tuple[str | None, AlertEngine]] = [(None, self._machine_alerts), *self._alerts.items()]
        found = []
        for run, engine in engines:
            for alert in engine.active:
                plain = alert.to_dict()
                if run is None or alert.subject.kind is not SubjectKind.MACHINE:
                    names = ("rule", "severity", "subject", "text", "begin_unix_ns")
                    found.append({"run": run, **{name: plain[name] for name in names}})
        return found

    def close(self) -> None:
        """Give up all feeds."""
        with self._polling:
            self._is_closed = True
            for feed in (self._machine, *self._feeds.values()):
                feed.close()

    def _follow(self, run: str, path: str) -> None:
        try:
            self._feeds[run] = self._open(self._root / path)
            self._paths[run] = path
            self._points[run] = deque(maxlen=KEPT_POINTS)
            self._alerts[run] = AlertEngine(self._rules)
            self._refused.pop(run, None)
        except GpuprofError as error:
            self._refused[run] = error.code
        except (OSError, ValueError):
            self._refused[run] = "cannot_read"

    def _point(self, run: str) -> Plain:
        feed = self._feeds[run]
        try:
            snapshot = feed.poll()
            self._report(self._paths[run], self._alerts[run].update(snapshot))
            point, is_over = run_point(snapshot), feed.is_over
            if not self._points[run]:
                # It has all that was recorded before, and not only what took place since the last reading.
                point["interval_ns"] = None
        except (GpuprofError, OSError, ValueError) as error:
            # Its folder was removed or closed between two readings.
            point, is_over = {"problem": getattr(error, "code", "cannot_read")}, True
        if is_over:
            self._ended.add(run)
            point["over"] = True
        self._points[run].append(
            {key: value for key, value in point.items() if key not in ("layers", "operators")}
        )
        return point

    def history(self) -> Plain:
        """Return the points of the last minutes, for a page that is opened now."""
        return self._history


def run_point(snapshot: Snapshot) -> Plain:
    """Return the figures of an interval as the page shows them; None is an unavailable figure."""
    alive = [each for each in snapshot.processes if each.is_alive]
    return {
        "t": snapshot.unix_ns // 1_000_000,
        "interval_ns": snapshot.interval_ns,
        "state": None if snapshot.state is None else snapshot.state.value,
        "steps": _steps(snapshot),
        "processes": len(alive),
        "rss": _sum(alive, lambda each: each.rss_bytes),
        "cpu": _sum(alive, lambda each: each.cpu_cores),
        "read": _sum(alive, lambda each: each.read_bytes_per_s),
        "written": _sum(alive, lambda each: each.written_bytes_per_s),
        "spans": _sum(alive, lambda each: each.spans),
        "waiting_ns": max((each.waiting_ns for each in alive), default=0),
        "layers": _largest(
            [(each.name, each.self_ns) for each in snapshot.layers]
            if not isinstance(snapshot.layers, Unavailable)
            else []
        ),
        "operators": _largest([(each.name, each.self_ns) for each in snapshot.calls_of("operator")]),
        "no_operators": None if snapshot.operators is None else snapshot.operators.reason.value,
        "requests": _requests(snapshot.requests),
        "late": snapshot.is_late,
        "dropped": snapshot.dropped_events,
    }


def _steps(snapshot: Snapshot) -> Plain:
    """Return the number of steps, and their mean, median and longest time over all processes."""
    if isinstance(snapshot.steps, Unavailable):
        return {"count": None, "reason": snapshot.steps.reason.value}
    times = sorted(time for each in snapshot.steps for time in each.durations_ns)
    if not times:
        return {"count": 0}
    middle = len(times) // 2
    median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    parts = {
        part: sum(values)
        for part in ("forward", "backward", "optimizer", "data", "other")
        if None not in (values := [getattr(each, f"{part}_ns") for each in snapshot.steps])
    }
    return {
        "count": len(times),
        "mean_ns": sum(times) / len(times),
        "p50_ns": median,
        "max_ns": times[-1],
        "parts": parts,
    }


def _sum(
    processes: Sequence[ProcessFigures], figure: Callable[[ProcessFigures], float | Unavailable]
) -> float | None:
    values = [figure(each) for each in processes]
    known = [each for each in values if not isinstance(each, Unavailable)]
    # A sum without one of its parts is not the sum.
    return sum(known) if known and len(known) == len(values) else None


def _largest(times: list[tuple[str, int]]) -> list[list[str | int]]:
    """Return the names with the most time, and the time of the others."""
    ordered = sorted(times, key=lambda each: (-each[1], each[0]))
    shown: list[list[str | int]] = [
        [visible_text(name[:_LONGEST_NAME]), ns] for name, ns in ordered[:SHOWN_NAMES]
    ]
    rest = sum(ns for _, ns in ordered[SHOWN_NAMES:])
    return [*shown, ["", rest]] if rest else shown


def _machine_point(machine: MachineFigures) -> Plain:
    names = {
        "cpu": machine.cpu_share,
        "io_wait": machine.io_wait_share,
        "memory": machine.memory_used_bytes,
        "memory_total": machine.memory_total_bytes,
        "received": machine.received_bytes_per_s,
        "sent": machine.sent_bytes_per_s,
    }
    return {name: _known(value) for name, value in names.items()}


def _devices(devices: tuple[LiveDeviceFigures, ...] | Unavailable) -> list[Plain]:
    if isinstance(devices, Unavailable):
        return []
    names = (
        "device", "name", "is_lost", "utilization_share", "memory_used_bytes", "memory_total_bytes",
        "power_w", "power_limit_w", "sm_clock_hz", "temperature_c", "throttle_reasons",
    )  # fmt: skip
    return [{name: _known(getattr(each, name)) for name in names} for each in devices]


def _requests(requests: LiveRequestFigures | Unavailable) -> Plain | None:
    """Return the figures of a load test that a process of the run makes."""
    if isinstance(requests, Unavailable):
        return None
    names = (
        "target",
        "is_over",
        "queued",
        "in_service",
        "failed",
        "ended",
        "ended_per_s",
        "p50_ns",
        "p99_ns",
    )
    return {name: _known(getattr(requests, name)) for name in names}


def _known(value: object) -> object:
    if isinstance(value, str):
        return visible_text(value[:_LONGEST_NAME])
    return None if isinstance(value, Unavailable) else value
