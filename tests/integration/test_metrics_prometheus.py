# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a program while it is recorded; its values equal the tables of the closed run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_program import Recorded
from prometheus_server import RULES, Prometheus

import gpuprof

pytestmark = pytest.mark.needs("prometheus")
STEPS = 40


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    program = Recorded(tmp_path)
    yield program
    program.close()


@pytest.fixture
def exporter(recorded: Recorded, tmp_path: Path) -> Iterator[str]:
    """Where `gpuprof metrics` of the recorded program listens."""
    (tmp_path / "token").write_text("secret-of-the-test\n")
    options = ["--port", "0", "--interval", "0.2", "--top", "1000", "--token-file", str(tmp_path / "token")]
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuprof", "metrics", str(recorded.run), *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    match = re.match(r"metrics: http://(127\.0\.0\.1:\d+)/metrics", process.stderr.readline())
    assert match is not None
    yield match[1]
    process.terminate()
    assert process.wait(timeout=120) == 0
    process.stderr.close()


@pytest.fixture
def prometheus(exporter: str, tmp_path: Path) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path, exporter, RULES.read_text())
    yield server
    server.close()


def test_scraped_values_equal_the_closed_run(recorded: Recorded, prometheus: Prometheus) -> None:
    prometheus.wait_until(lambda: prometheus.values("up") == {"": 1.0})
    recorded.send(str(STEPS))
    # The last step is known at the end of the run.
    prometheus.wait_until(lambda: prometheus.values("gpuprof_steps_total") == {"": STEPS - 1.0})
    (memory,) = prometheus.values("process_resident_memory_bytes", "process").items()
    assert memory[0] == str(recorded.process.pid)
    assert 50e6 < memory[1] < 5e9
    recorded.send("end")
    prometheus.wait_until(lambda: prometheus.values("gpuprof_steps_total") == {"": float(STEPS)})
    found = {name: prometheus.values(f"gpuprof_{name}_calls_total", name) for name in ("layer", "operator")}
    times = prometheus.values("gpuprof_operator_seconds_total", "operator")
    sums = prometheus.values("gpuprof_step_duration_seconds_sum")[""]
    buckets = prometheus.values("gpuprof_step_duration_seconds_bucket", "le")
    spans = prometheus.values("gpuprof_spans_total")[""]
    exemplars = prometheus.get(
        "query_exemplars", query="gpuprof_step_duration_seconds_bucket", start="0", end=str(time.time() + 1)
    )
    assert len(prometheus.rules()) == 7
    prometheus.wait_until(lambda: {each["health"] for each in prometheus.rules()} == {"ok"})
    # One slow step of 40 is a p99: the rule has it pending, and fires only after minutes of it.
    assert "firing" not in {each["state"] for each in prometheus.get("alerts")["alerts"]}

    run = gpuprof.open(recorded.run)
    for kind, counts in found.items():
        rows = run.sql(f"SELECT name, count(*) FROM spans WHERE kind = '{kind}' GROUP BY name").fetchall()
        assert counts == dict(rows)
    assert spans == run.sql("SELECT count(*) FROM spans").fetchall()[0][0]
    durations = dict(run.sql("SELECT index, end_ns - begin_ns FROM steps").fetchall())
    assert sums == pytest.approx(sum(durations.values()) / 1e9, rel=1e-4)
    for le, count in buckets.items():
        assert count == sum(each / 1e9 <= float(le) for each in durations.values())
    own = run.sql(
        "SELECT name, sum(duration_ns - coalesce(inside, 0)) / 1e9 FROM spans LEFT JOIN "
        "(SELECT parent_id, sum(duration_ns) AS inside FROM spans GROUP BY parent_id) AS children "
        "ON children.parent_id = span_id WHERE kind = 'operator' GROUP BY name"
    ).fetchall()
    assert times == pytest.approx({name: float(value) for name, value in own}, rel=1e-3, abs=1e-6)
    steps = {
        each["labels"]["step"]: float(each["value"]) for series in exemplars for each in series["exemplars"]
    }
    assert steps
    for number, seconds in steps.items():
        assert seconds == pytest.approx(durations[int(number)] / 1e9, rel=1e-3)
