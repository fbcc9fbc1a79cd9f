# SPDX-License-Identifier: Apache-2.0
"""From conditions to alerts: each fires once, and again only after it has cleared or for a worse event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from gpuprof.live.alerts.conditions import Condition, Holds, condition_of
from gpuprof.live.alerts.figures import AlertSubject
from gpuprof.live.alerts.rules import AlertRule, AlertSeverity, RuleKind
from gpuprof.live.alerts.text import alert_line, alert_text
from gpuprof.live.snapshot import Snapshot

# An event that is this much worse than the one reported is reported while the alert fires.
WORSE = 1.5


class AlertState(str, Enum):
    """Whether an alert fires, or has cleared."""

    FIRING = "firing"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Alert:
    """What a rule found on one subject: a code and plain values in SI units; `str()` is its text.

    `begin_unix_ns` is when it fired, `worse_unix_ns` when a worse event was reported, `end_unix_ns` when it
    cleared.
    """

    rule: str
    kind: RuleKind
    severity: AlertSeverity
    subject: AlertSubject
    state: AlertState
    code: str
    values: Mapping[str, Any] = field(default_factory=dict)
    begin_unix_ns: int = 0
    end_unix_ns: int | None = None
    worse_unix_ns: int | None = None

    def __str__(self) -> str:
        return alert_text(self.code, self.values)

    def line(self, source: str = "") -> str:
        """Return it on one line, with its time and the run that is its source."""
        at_ns = self.end_unix_ns or self.worse_unix_ns or self.begin_unix_ns
        head = f"{self.state.value} {self.severity.value} {self.rule}"
        return alert_line(str(self), self.subject, head, source, at_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the text for people."""
        return {
            "rule": self.rule,
            "kind": self.kind.value,
            "severity": self.severity.value,
            "subject": {"kind": self.subject.kind.value, "key": self.subject.key},
            "state": self.state.value,
            "code": self.code,
            "values": dict(self.values),
            "text": str(self),
            "begin_unix_ns": self.begin_unix_ns,
            "worse_unix_ns": self.worse_unix_ns,
            "end_unix_ns": self.end_unix_ns,
        }

    def cleared(self, unix_ns: int) -> Alert:
        """Return the alert as it is when it has cleared."""
        return replace(self, state=AlertState.CLEARED, end_unix_ns=unix_ns)


class AlertEngine:
    """Applies rules to snapshots in order.

    An unavailable figure neither fires nor clears an alert. The alerts of a process that ended clear.
    With `is_one_look`, what is true in a snapshot fires at once, whatever its rule has as `for_s`.
    """

    def __init__(self, rules: Iterable[AlertRule], *, is_one_look: bool = False) -> None:
        chosen = [replace(rule, for_s=0.0) if is_one_look else rule for rule in rules]
        self._watches = [_RuleWatch(rule, condition_of(rule)) for rule in chosen]
        self._elapsed_s = 0.0

    def update(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """Take in the next snapshot; returns the alerts that fired, cleared or became worse."""
        self._elapsed_s += snapshot.interval_ns / 1e9
        return tuple(alert for watch in self._watches for alert in watch.update(snapshot, self._elapsed_s))

    @property
    def active(self) -> tuple[Alert, ...]:
        """The alerts that fire, with their latest values."""
        return tuple(alert for watch in self._watches for alert in watch.active)


def alerts_of(rules: Sequence[AlertRule], snapshots: Iterable[Snapshot]) -> Iterator[Alert]:
    """Yield the alerts that fire and clear in a sequence of snapshots."""
    engine = AlertEngine(rules)
    for snapshot in snapshots:
        yield from engine.update(snapshot)


@dataclass(slots=True)
class _Track:
    """One subject of a rule: since when its condition is true or false, its alert, and how bad that is."""

    is_true: bool = False
    since_s: float = 0.0
    alert: Alert | None = None
    weight: float | None = None


class _RuleWatch:
    def __init__(self, rule: AlertRule, condition: Condition) -> None:
        self._rule = rule
        self._condition = condition
        self._tracks: dict[AlertSubject, _Track] = {}

    @property
    def active(self) -> list[Alert]:
        return [track.alert for track in self._tracks.values() if track.alert is not None]

    def update(self, snapshot: Snapshot, elapsed_s: float) -> Iterator[Alert]:
        found = self._condition.update(snapshot, elapsed_s)
        for subject in [each for each in self._tracks if each not in found]:
            track = self._tracks.pop(subject)
            if track.alert is not None:
                yield track.alert.cleared(snapshot.unix_ns)
        for subject, reading in found.items():
            if reading is None:
                self._tracks.setdefault(subject, _Track(since_s=elapsed_s))
                continue
            changed = self._apply(subject, reading, snapshot.unix_ns, elapsed_s)
            if changed is not None:
                yield changed

    def _apply(self, subject: AlertSubject, reading: Holds, unix_ns: int, elapsed_s: float) -> Alert | None:
        track = self._tracks.setdefault(subject, _Track(since_s=elapsed_s))
        if reading.is_true != track.is_true:
            track.is_true, track.since_s = reading.is_true, elapsed_s
        lasted_s = elapsed_s - track.since_s
        if track.is_true and track.alert is not None:
            return _continued(track, track.alert, reading, unix_ns)
        if track.is_true and lasted_s >= self._rule.for_s:
            track.alert, track.weight = self._fired(subject, reading, unix_ns), reading.weight
            return track.alert
        if not track.is_true and track.alert is not None and lasted_s >= self._rule.quiet_s:
            former, track.alert = track.alert, None
            return former.cleared(unix_ns)
        return None

    def _fired(self, subject: AlertSubject, reading: Holds, unix_ns: int) -> Alert:
        rule = self._rule
        return Alert(
            rule.name,
            rule.kind,
            rule.severity,
            subject,
            AlertState.FIRING,
            reading.code,
            reading.values,
            begin_unix_ns=unix_ns,
        )


def _continued(track: _Track, alert: Alert, reading: Holds, unix_ns: int) -> Alert | None:
    """Take a reading into an alert that fires; returns the alert if it is to be reported again."""
    if track.weight is None or reading.weight is None:
        track.alert = replace(alert, code=reading.code, values=reading.values)
        return None
    if reading.weight < WORSE * track.weight:
        return None
    track.weight = reading.weight
    track.alert = replace(alert, code=reading.code, values=reading.values, worse_unix_ns=unix_ns)
    return track.alert
