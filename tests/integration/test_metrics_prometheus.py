# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a program while it is recorded; its values equal the tables of the closed run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import REPOSITORY
from live_program import Recorded

import gpuprof

pytestmark = pytest.mark.needs("prometheus")
STEPS = 40
LONGEST_S = 90
RULES = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
_CONFIGURATION = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: gpuprof
    authorization: {{type: Bearer, credentials_file: token}}
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A server on a free port of loopback, with its data in a folder of the test."""

    def __init__(self, folder: Path, target: str) -> None:
        (folder / "prometheus.yml").write_text(_CONFIGURATION.format(target=target))
        shutil.copy(RULES, folder)
        self.log = (folder / "log").open("w+")
        words = [
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ]
        self.process = subprocess.Popen(
            ["prometheus", *words, "--enable-feature=exemplar-storage"],
            cwd=folder,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        # Of port 0 its log has no number, but its listening socket has.
        self.port = until(self._port)

    def _port(self) -> int | None:
        own = {
            each.resolve().name
            for each in Path(f"/proc/{self.process.pid}/fd").iterdir()
            if each.is_symlink()
        }
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                return int(fields[1].partition(":")[2], 16)
        return None

    def get(self, path: str, **parameters: str) -> Any:
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as response:
            return json.load(response)["data"]

    def values(self, query: str, label: str = "") -> dict[str, float]:
        found = self.get("query", query=query)["result"]
        return {each["metric"].get(label, ""): float(each["value"][1]) for each in found}


def until(look: Any) -> Any:
    """Return what `look` returns once it is true."""
    end_s = time.monotonic() + LONGEST_S
    while time.monotonic() < end_s:
        try:
            if found := look():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not within {LONGEST_S} s")


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
    assert process.wait(timeout=30) == 0
    process.stderr.close()


@pytest.fixture
def prometheus(exporter: str, tmp_path: Path) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path, exporter)
    yield server
    server.process.terminate()
    server.process.wait(timeout=30)
    server.log.close()


def test_scraped_values_equal_the_closed_run(recorded: Recorded, prometheus: Prometheus) -> None:
    until(lambda: prometheus.values("up") == {"": 1.0})
    recorded.send(str(STEPS))
    # The last step is known at the end of the run.
    until(lambda: prometheus.values("gpuprof_steps_total") == {"": STEPS - 1.0})
    (memory,) = prometheus.values("process_resident_memory_bytes", "process").items()
    assert memory[0] == str(recorded.process.pid)
    assert 50e6 < memory[1] < 5e9
    recorded.send("end")
    until(lambda: prometheus.values("gpuprof_steps_total") == {"": float(STEPS)})
    found = {name: prometheus.values(f"gpuprof_{name}_calls_total", name) for name in ("layer", "operator")}
    times = prometheus.values("gpuprof_operator_seconds_total", "operator")
    sums = prometheus.values("gpuprof_step_duration_seconds_sum")[""]
    buckets = prometheus.values("gpuprof_step_duration_seconds_bucket", "le")
    spans = prometheus.values("gpuprof_spans_total")[""]
    exemplars = prometheus.get(
        "query_exemplars", query="gpuprof_step_duration_seconds_bucket", start="0", end=str(time.time() + 1)
    )
    rules = [each for group in prometheus.get("rules")["groups"] for each in group["rules"]]
    assert len(rules) == 7
    until(
        lambda: (
            {each["health"] for group in prometheus.get("rules")["groups"] for each in group["rules"]}
            == {"ok"}
        )
    )
    assert not prometheus.get("alerts")["alerts"]

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
