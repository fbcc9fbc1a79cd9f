# SPDX-License-Identifier: Apache-2.0
"""Alerts over a folder of benchmark results: the newest file against those since the last change point."""

from __future__ import annotations

import time
from pathlib import Path

from gpuprof.bench.gate.history import judge_history
from gpuprof.bench.gate.result import GateRow
from gpuprof.bench.results.stored import read_result_file
from gpuprof.bench.results.stored_history import read_history
from gpuprof.errors import BenchmarkError
from gpuprof.live.alerts.engine import Alert, AlertState
from gpuprof.live.alerts.figures import AlertSubject, SubjectKind
from gpuprof.live.alerts.rules import RegressionRule


def results_of(folder: Path) -> list[Path]:
    """Return the result files of `gpuprof bench` in a folder."""
    return [each for each in sorted(folder.glob("*.json")) if _is_result(each)]


def result_alerts(folder: Path, readable: list[Path], rule: RegressionRule) -> tuple[Alert, ...]:
    """Return the metrics that are worse in the newest file of a folder than in those since the last change.

    `readable` are its results. The intervals include the variation between files. The margins are those of
    `gpuprof gate`, which differ by metric. Raises BenchmarkError for a single result.
    """
    if len(readable) < 2:
        raise BenchmarkError(
            "one_result",
            f"{folder} has one result, and nothing to compare it with",
            hint="measure again, or name a folder with older results",
        )
    newest = max(readable, key=lambda each: read_result_file(each).at)
    history = read_history([str(each) for each in readable], [newest])
    return tuple(_alert(row, rule, newest) for row in judge_history(history).worse)


def _alert(row: GateRow, rule: RegressionRule, newest: Path) -> Alert:
    judged = row.judgement
    assert judged is not None  # it is worse
    values = {
        "metric": str(row.metric),
        "candidate": newest.name,
        "ratio": row.ratio,
        "low": judged.low,
        "high": judged.high,
        "margin": row.threshold,
        "files": len(row.files),
    }
    subject = AlertSubject(SubjectKind.RESULTS, str(row.configuration))
    return Alert(
        rule.name,
        rule.kind,
        rule.severity,
        subject,
        AlertState.FIRING,
        "worse_results",
        values,
        begin_unix_ns=time.time_ns(),
    )


def _is_result(path: Path) -> bool:
    try:
        read_result_file(path)
    except (BenchmarkError, OSError):
        return False
    return True
