# SPDX-License-Identifier: Apache-2.0
"""`gpuprof alert`: rules in files, results in folders, webhooks, and the exit code."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from batches import batch_of
from live_program import Recorded
from live_snapshots import snapshot
from refusals import refused, refused_command
from waiting import LONGEST_S, wait_until

import gpuprof
from gpuprof.bench.results.batch import Stamp
from gpuprof.bench.results.files import document_of, to_json
from gpuprof.cli.main import execute
from gpuprof.errors import GpuprofError
from gpuprof.live.alerts.engine import AlertState
from gpuprof.live.alerts.rules import (
    BUILT_IN_RULES,
    AlertFigure,
    AlertSeverity,
    LeakRule,
    ThresholdRule,
    ThrottlingRule,
)
from gpuprof.live.alerts.rules_file import read_rules
from gpuprof.live.alerts.watch import AlertWatch
from gpuprof.live.alerts.webhook import MOST_WAITING, Webhook

ALWAYS = '[[rule]]\nname = "any"\nkind = "threshold"\nfigure = "machine.memory_used_bytes"\nabove = 1\n'
NEVER = ALWAYS.replace("above = 1", "above = 1e18")


@pytest.mark.parametrize("command", ["alert", "metrics", "top", "dashboard"])
def test_an_empty_target_is_refused(command: str) -> None:
    refused_command([command, ""], "empty_path")


# ---- files


def test_rules_of_a_file_are_typed(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rule]]\nname = "big"\nkind = "threshold"\nseverity = "critical"\nfigure = "process.rss_bytes"\n'
        'above = 8e9\nfor = "5m"\nclear = 10\n'
        '[[rule]]\nname = "leak"\nkind = "leak"\nwindow = "30m"\nbytes_per_s = 50000\n'
        '[[rule]]\nname = "hot"\nkind = "throttling"\nreasons = ["power cap"]\n'
    )
    assert read_rules(path) == (
        ThresholdRule(
            name="big",
            severity=AlertSeverity.CRITICAL,
            figure=AlertFigure.PROCESS_RSS,
            above=8e9,
            for_s=300,
            clear_s=10,
        ),
        LeakRule(name="leak", window_s=1800, bytes_per_s=50_000),
        ThrottlingRule(name="hot", reasons=("power cap",)),
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "no_rules"),
        ("x = [", "not_toml"),
        ("[other]\n" + ALWAYS, "no_rules"),
        (ALWAYS + ALWAYS, "repeated_rule"),
        (ALWAYS.replace('name = "any"', "name = 3"), "no_rule_name"),
        (ALWAYS.replace("threshold", "guess"), "bad_value"),
        (ALWAYS.replace("machine.memory_used_bytes", "machine.mood"), "bad_value"),
        (ALWAYS.replace("above = 1", ""), "no_limit"),
        (ALWAYS + "below = 2\n", "no_limit"),
        (ALWAYS.replace("above = 1", 'above = "much"'), "bad_value"),
        (ALWAYS.replace("above = 1", "above = nan"), "bad_value"),
        (ALWAYS + "for = -1\n", "bad_value"),
        (ALWAYS + 'for = "soon"\n', "invalid_duration"),
        (ALWAYS + "for_s = 1\n", "unknown_key"),
        (ALWAYS + "margin = 1\n", "unknown_key"),
        ('[[rule]]\nname = "a"\nkind = "threshold"\nabove = 1\n', "no_figure"),
        ('[[rule]]\nname = "a"\nkind = "regression"\nsteps = 3\n', "bad_value"),
        ('[[rule]]\nname = "a"\nkind = "slow_step"\nfewest = 0\n', "bad_value"),
        ('[[rule]]\nname = "a"\nkind = "slow_step"\nsteps = 20\nfewest = 21\n', "bad_value"),
        ('[[rule]]\nname = "a"\nkind = "leak"\nwindow = 0\n', "bad_value"),
        ('[[rule]]\nname = "a"\nkind = "throttling"\nreasons = ["mood"]\n', "bad_value"),
    ],
)
def test_wrong_rules_are_refused(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with refused(GpuprofError, code) as caught:
        read_rules(tmp_path / "rules.toml")
    assert len(str(caught.value).splitlines()) == 1


# ---- the command


@pytest.mark.parametrize(("text", "code", "states"), [(ALWAYS, 1, ["firing"]), (NEVER, 0, [])])
def test_the_exit_code_is_whether_an_alert_fired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, states: list[str]
) -> None:
    (tmp_path / "rules.toml").write_text(text)
    command = ["alert", "--once", "--interval", "0.1", "--rules", str(tmp_path / "rules.toml")]
    assert execute([*command, "--json"]) == code
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["state"] for each in found] == states
    assert execute(command) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert (line == "no alert is active: 1 rule") == (states == [])
    # A folder of runs, which has none yet.
    (tmp_path / "runs").mkdir()
    assert execute([*command, str(tmp_path / "runs")]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert (line == "no alert is active: 1 rule, 0 runs") == (states == [])


@pytest.mark.slow
def test_a_recorded_program_raises_alerts_of_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nname = "steps"\nkind = "threshold"\nfigure = "step.mean_s"\nabove = 0\n'
        '[[rule]]\nname = "memory"\nkind = "threshold"\nfigure = "process.rss_bytes"\nabove = 1e12\n'
    )
    program = Recorded(tmp_path)
    command = ["alert", str(program.run), "--once", "--interval", "0.1", "--json", "--rules"]
    try:
        program.send("30")
        assert execute([*command, str(tmp_path / "rules.toml")]) == 1
        (alert,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert alert["subject"] == {"kind": "process", "key": program.process.pid}
        # The folder of the run has the same, by the name of the run.
        assert execute(["alert", str(tmp_path), *command[2:], str(tmp_path / "rules.toml")]) == 1
        (alert,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert (alert["rule"], alert["run"]) == ("steps", "live.gpuprof")
    finally:
        program.close()


@pytest.mark.slow
def test_a_run_that_is_removed_ends_the_watch_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nname = "steps"\nkind = "threshold"\nfigure = "step.mean_s"\nabove = 0\n'
    )
    program = Recorded(tmp_path)
    options = ["--interval", "0.1", "--rules", str(tmp_path / "rules.toml")]
    words = [sys.executable, "-m", "gpuprof", "alert", str(program.run), *options]
    watch = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        program.send("30")
        assert watch.stdout is not None
        assert watch.stdout.readline()
        # In one moment: while its files are removed one after the other, it may look closed.
        program.run.rename(tmp_path / "removed")
        _, warned = watch.communicate(timeout=LONGEST_S)
    finally:
        watch.kill()
        program.close()
    assert warned.count("was removed or moved") == 1
    assert watch.returncode == 1


def test_a_run_that_has_ended_is_bad_input(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "ended.gpuprof", gpu=False):
        pass
    assert execute(["alert", str(tmp_path / "ended.gpuprof")]) == 2
    refused_command(["alert", str(tmp_path / "ended.gpuprof")], "not_recording")


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    refused_command(["alert", str(tmp_path / "missing")], "no_such_run")
    refused_command(["alert", "--webhook", "http://192.0.2.1/"], "remote_webhook")
    refused_command(["alert", "--webhook", "kserve+http://127.0.0.1/"], "bad_webhook")
    for url, code in (
        ("http://", "bad_webhook"),
        ("http://127.0.0.1:99999/", "bad_webhook"),
        ("http://127.0.0.1/\u00e4", "bad_webhook"),
        ("http://user:pw@127.0.0.1/", "password_in_webhook"),
        ("http://a..b/", "unknown_host"),
    ):
        refused_command(["alert", "--webhook", url], code, "--webhook")
    assert execute(["alert", "--rules", str(tmp_path / "missing.toml")]) == 2


# ---- results

FIRST_DAY = datetime(2026, 2, 1, tzinfo=timezone.utc)


def results(folder: Path, factors: list[float]) -> Path:
    generator = np.random.default_rng(9)
    for day, factor in enumerate(factors):
        means = 10 * factor * np.exp(generator.normal(0, 0.01) + generator.normal(0, 0.01, 5))
        batch = batch_of(*[(mean * np.array([1.0, 0.999, 1.001])).tolist() for mean in means])
        stamp = Stamp((FIRST_DAY + timedelta(days=day)).isoformat(), f"revision{day}")
        (folder / f"{day:02}.json").write_text(to_json(document_of([batch], stamp, profile=None)))
    return folder


def test_a_planted_regression_of_results_raises_an_alert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = results(tmp_path, [1.0] * 12 + [1.5])
    (folder / "damaged.json").write_text("{")
    assert execute(["alert", str(folder), "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["subject"]["kind"] for each in found} == {"results"}
    median = next(each["values"] for each in found if each["values"]["metric"] == "p50")
    assert median["candidate"] == "12.json"
    assert 1.4 < median["low"] < median["ratio"] < median["high"] < 1.6
    assert median["files"] == 12
    assert execute(["alert", str(folder)]) == 1
    assert "12.json" in capsys.readouterr().out


def test_quiet_results_raise_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(results(tmp_path, [1.0] * 13))
    assert execute(["alert", folder, "--once"]) == 0
    assert capsys.readouterr().out == "no alert is active: 1 rule, 13 results\n"
    assert execute(["alert", folder, "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_single_result_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    refused_command(["alert", str(results(tmp_path, [1.0]))], "one_result", str(tmp_path))


# ---- several sources


def test_the_machine_is_looked_at_once_and_each_run_has_its_own_history() -> None:
    hot = ThresholdRule(name="busy", figure=AlertFigure.MACHINE_CPU, above=0.1)
    big = ThresholdRule(name="big", figure=AlertFigure.PROCESS_RSS, above=1)
    watch = AlertWatch([hot, big], is_folder=True)
    found = {source: [each.rule for each in watch.update(source, snapshot())] for source in ("", "a", "b")}
    assert found == {"": ["busy"], "a": ["big"], "b": ["big"]}
    # What fired for a source that has ended is not left open.
    assert [(each.rule, each.state) for each in watch.forget("a")] == [("big", AlertState.CLEARED)]
    assert watch.forget("a") == ()
    assert [each.rule for each in watch.update("a", snapshot())] == ["big"]
    single = AlertWatch([hot, big], is_folder=False)
    assert [each.rule for each in single.update("", snapshot())] == ["busy", "big"]
    assert len({each.name for each in BUILT_IN_RULES}) == len(BUILT_IN_RULES)


# ---- webhooks


class Receiver(HTTPServer):
    """A webhook that keeps what it gets."""

    def __init__(self, status: int = 204) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.status = status
        self.got: list[tuple[str, str | None, dict[str, object]]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alerts?a=b"


class _Receive(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Location", "http://192.0.2.1/")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


def test_an_alert_is_posted_to_the_webhook(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "rules.toml").write_text(ALWAYS)
    rules = ["--rules", str(tmp_path / "rules.toml"), "--webhook", receiver.url]
    assert execute(["alert", "--once", "--interval", "0.1", *rules]) == 1
    ((path, content_type, alert),) = receiver.got
    assert (path, content_type) == ("/alerts?a=b", "application/json")
    assert (alert["rule"], alert["state"], alert["run"]) == ("any", "firing", None)


def test_a_webhook_that_refuses_or_redirects_counts_as_failed(receiver: Receiver) -> None:
    for status in (302, 500):
        receiver.status = status
        webhook = Webhook(receiver.url)
        webhook.send({"a": 1})
        webhook.close()
        assert (webhook.sent, webhook.failed) == (0, 1)
    assert len(receiver.got) == 2


def test_a_webhook_that_hangs_delays_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=30)
        webhook.send({"first": True})
        first, _ = silent.accept()
        for number in range(MOST_WAITING + 30):
            webhook.send({"number": number})
        # One is under way; what does not fit is dropped and no call waits.
        assert webhook.dropped == 30
        assert webhook.failed == 0
        assert webhook.waiting == MOST_WAITING + 1
        first.close()


def test_a_webhook_that_sends_a_byte_now_and_then_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        webhook = Webhook(f"http://127.0.0.1:{slow.getsockname()[1]}/", timeout_s=0.3)
        webhook.send({"a": 1})
        client, _ = slow.accept()
        with contextlib.closing(client), contextlib.suppress(OSError):
            # Each byte is in time for the timeout of a read; the request as a whole is not.
            for _ in range(2_000):
                client.sendall(b"H")
                select.select([], [], [], 0.05)
                if webhook.failed:
                    break
        # The connection is closed before it is counted.
        wait_until(lambda: webhook.failed == 1)
        assert webhook.waiting == 0
        webhook.close()
