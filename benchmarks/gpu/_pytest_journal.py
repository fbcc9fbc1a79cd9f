# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that writes each test into the journal of the call when it has ended.

python -m pytest -p benchmarks.gpu._pytest_journal
"""

from __future__ import annotations

import os

import pytest

from benchmarks.gpu._journal import Entry, Journal, State

STEP_VARIABLE = "GPUPROF_BENCHMARK_STEP"
_MOST_CHARACTERS = 3000
_STATES: dict[str, State] = {"passed": "ok", "failed": "failed", "skipped": "skipped"}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test's call, and what went wrong before or after it."""
    journal = Journal.of_environment()
    if journal is None or (report.when != "call" and report.outcome == "passed"):
        return
    journal.add(
        Entry(
            os.environ.get(STEP_VARIABLE, "tests"),
            report.nodeid,
            _STATES[report.outcome],
            seconds=round(report.duration, 2),
            problem=_problem(report),
            facts=dict(report.user_properties) or None,
        )
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with another exit code where every test was skipped: nothing was tested then."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    ran = any(reporter.stats.get(outcome) for outcome in ("passed", "failed", "error")) if reporter else True
    if not ran and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _problem(report: pytest.TestReport) -> str | None:
    if report.outcome == "passed":
        return None
    if isinstance(report.longrepr, tuple):  # file, line, reason of a skip
        return str(report.longrepr[2])
    return str(report.longrepr)[-_MOST_CHARACTERS:]
