# SPDX-License-Identifier: Apache-2.0
"""Alerts over several sources: the runs of a folder, each with its own history, and the machine once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gpuprof.live.alerts.engine import Alert, AlertEngine
from gpuprof.live.alerts.rules import AlertRule, ThrottlingRule
from gpuprof.live.snapshot import Snapshot

MACHINE = ""


class AlertWatch:
    """Applies rules to the snapshots of each source; the source of the machine has an empty name.

    Among several sources, figures of the machine are those of its source, and devices those of the runs.
    """

    def __init__(self, rules: Sequence[AlertRule], *, is_folder: bool, is_one_look: bool = False) -> None:
        self._rules = rules
        self._is_folder = is_folder
        self._is_one_look = is_one_look
        self._engines: dict[str, AlertEngine] = {}

    def update(self, source: str, snapshot: Snapshot) -> tuple[Alert, ...]:
        """Return the alerts that fired or cleared with the next snapshot of a source."""
        if source not in self._engines:
            chosen = [each for each in self._rules if self._is_for(source, each)]
            self._engines[source] = AlertEngine(chosen, is_one_look=self._is_one_look)
        return self._engines[source].update(snapshot)

    def forget(self, source: str) -> tuple[Alert, ...]:
        """Drop the history of a source that has ended; returns its alerts that fired, as cleared."""
        engine = self._engines.pop(source, None)
        return () if engine is None else tuple(each.cleared(time.time_ns()) for each in engine.active)

    def _is_for(self, source: str, rule: AlertRule) -> bool:
        if not self._is_folder:
            return True
        figure = getattr(rule, "figure", None)
        room = "" if figure is None else figure.value.partition(".")[0]
        if source == MACHINE:
            return room == "machine"
        return isinstance(rule, ThrottlingRule) or room != "machine"


def alert_document(source: str, alert: Alert) -> dict[str, Any]:
    """Return an alert as plain data, with the name of its run or None."""
    return {"run": source or None, **alert.to_dict()}
