# SPDX-License-Identifier: Apache-2.0
"""The time until a program is ready: real programs that record when they became ready, and conditions."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from refusals import refused, refused_command

from gpuprof.bench import time_to_ready
from gpuprof.bench.measure.readiness import (
    ExistingFile,
    OpenPort,
    PrintedText,
    RespondingUrl,
    parse_readiness,
)
from gpuprof.bench.ready_times import (
    ReadyTimes,
    StartedProgram,
    run_once_ready,
    seconds_since_container_start,
    verdict_of,
)
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError

# Responds with 503 twice, then with 200, and records the time of the first 200.
SERVER = """
import http.server, pathlib, sys, time
recorded = pathlib.Path(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    calls = 0
    def do_GET(self):
        Handler.calls += 1
        is_ready = Handler.calls > 2
        if is_ready and not recorded.exists():
            recorded.write_text(str(time.monotonic_ns()))
        self.send_response(200 if is_ready else 503)
        self.end_headers()
    def log_message(self, *_words):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
# Prints in two pieces, starts a child that ignores SIGTERM, and waits.
PRINTER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"])
print(child.pid, "almost ", end="", flush=True)
print("there", flush=True)
signal.pause()
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def python(code: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


def test_a_server_is_ready_with_its_first_good_response(port: int, tmp_path: Path) -> None:
    recorded = tmp_path / "recorded"
    readiness = parse_readiness(f"http://127.0.0.1:{port}/health")
    with StartedProgram(python(SERVER, port, recorded)) as program:
        ready_s = program.wait_until_ready(readiness, 60)
    after_ns = time.monotonic_ns()
    ready_ns = int(recorded.read_text())
    # One clock: readiness is seen after the server recorded it, and before the block ended.
    assert ready_ns - program.start_ns <= ready_s * 1e9 < after_ns - program.start_ns


def wait_until_ended(process_id: int) -> None:
    """Wait until a process is gone, or waits for its new parent to notice."""
    stat = Path(f"/proc/{process_id}/stat")
    deadline = time.monotonic() + 60
    while True:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        assert time.monotonic() < deadline


def test_the_whole_group_is_ended(tmp_path: Path) -> None:
    command = python(PRINTER)
    with StartedProgram(command) as program:
        program.wait_until_ready(PrintedText("almost there"), 60)
        child = int(program._printed().split()[0])
        os.kill(child, 0)
    wait_until_ended(child)


def test_several_process_runs_have_a_median_with_an_interval(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = python("import pathlib, signal, sys; pathlib.Path(sys.argv[1]).touch(); signal.pause()", ready)
    seen: list[float] = []
    times = time_to_ready(command, f"file:{ready}", runs=6, on_run=seen.append)
    assert list(times.ready_s) == seen
    assert len(seen) == 6
    ordered = sorted(seen)
    # With six samples, the 95% interval of the median is from the smallest to the largest (1 - 2 / 2^6).
    assert (times.low_s, times.high_s) == (ordered[0], ordered[-1])
    assert times.median_s == pytest.approx((ordered[2] + ordered[3]) / 2)
    assert not ready.exists()
    assert json.loads(json.dumps(times.to_dict()))["interval_s"] == [ordered[0], ordered[-1]]


def test_programs_that_do_not_become_ready(tmp_path: Path) -> None:
    with refused(BenchmarkError, "ended_before_ready", 7, "no disk"):
        time_to_ready(python("print('no disk'); raise SystemExit(7)"), "output:ready")
    with refused(BenchmarkError, "not_ready"):
        time_to_ready(python("import signal; signal.pause()"), "output:x", time_limit_s=0.2)
    with refused(BenchmarkError, "cannot_start", tmp_path / "nothing"):
        time_to_ready([str(tmp_path / "nothing")], "output:x")


def test_a_condition_that_is_met_before_the_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    with refused(BenchmarkError, "ready_before_start"):
        time_to_ready(python(""), f"file:{tmp_path / 'ready'}")
    assert (tmp_path / "ready").exists()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with refused(BenchmarkError, "ready_before_start", address):
            time_to_ready(python(""), address)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("http://localhost/a?b=1", RespondingUrl("http://localhost/a?b=1", "localhost", 80, "/a?b=1")),
        ("http://[::1]:8000", RespondingUrl("http://[::1]:8000", "::1", 8000, "/")),
        ("tcp://127.0.0.2:1", OpenPort("tcp://127.0.0.2:1", "127.0.0.2", 1)),
        ("file:/tmp/a b", ExistingFile(Path("/tmp/a b"))),
        ("output:Serving: now", PrintedText("Serving: now")),
    ],
)
def test_conditions(text: str, parsed: Any) -> None:
    assert parse_readiness(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ready",
        "file:",
        "output:",
        "ftp://127.0.0.1/",
        "http://",
        "tcp://127.0.0.1",
        "http://[",
        "http://a:b",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with refused(BenchmarkError, "bad_readiness"):
        parse_readiness(text)


@pytest.mark.parametrize(
    "host", ["example.com", "10.0.0.1", "0.0.0.0", "[2001:db8::1]", "localhost.evil.example"]
)
def test_only_this_machine_is_asked(host: str) -> None:
    with refused(BenchmarkError, "remote_readiness"):
        parse_readiness(f"http://{host}:80/")


def test_the_path_cannot_smuggle_a_request() -> None:
    with refused(BenchmarkError, "bad_readiness"):
        parse_readiness("http://127.0.0.1/a b")


def test_a_program_that_stays_keeps_its_exit_code_and_gets_signals(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(23))\n"
        "pathlib.Path(sys.argv[1]).touch()\nsignal.pause()\n"
    )
    found: list[ReadyTimes] = []

    def is_ready(times: ReadyTimes) -> None:
        found.append(times)
        threading.Timer(0, os.kill, (os.getpid(), signal.SIGTERM)).start()

    assert run_once_ready(python(code, ready), f"file:{ready}", on_ready=is_ready) == 23
    assert len(found[0].ready_s) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with refused(BenchmarkError, "output_not_captured"):
        run_once_ready(["true"], "output:x", on_ready=is_ready)


def test_signals_that_are_ignored_remain_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        program = StartedProgram(["true"], captures=False)
        with program.signals_passed_on(), program:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            program.wait()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# Starts a child that ignores SIGTERM, and never becomes ready.
NEVER_READY = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600; :"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(child.pid))
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""


def test_what_a_program_that_stays_has_started_is_ended_if_it_is_not_ready(tmp_path: Path) -> None:
    started = tmp_path / "started"

    class Waiting(ExistingFile):
        def is_met(self, output: bytes) -> bool:
            # The limit of time is over when the child runs.
            if started.exists():
                raise BenchmarkError("not_ready", "the time is over", hint="wait longer")
            return super().is_met(output)

    program = StartedProgram(python(NEVER_READY, started), captures=False)
    with refused(BenchmarkError, "not_ready"), program:
        program.wait_until_ready(Waiting(tmp_path / "never"), 60)
    wait_until_ended(int(started.read_text()))


def test_what_a_program_that_stays_leaves_runs_on(tmp_path: Path) -> None:
    ready, left = tmp_path / "ready", tmp_path / "left"
    code = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "pathlib.Path(sys.argv[2]).write_text(str(child.pid))\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "sys.stdin.read()\n"
    )
    script = (
        "import sys; from gpuprof.bench.ready_times import run_once_ready\n"
        "sys.exit(run_once_ready(sys.argv[1:], 'file:' + sys.argv[-2],"
        " on_ready=lambda _: print('ready', flush=True)))"
    )
    command = [sys.executable, "-c", script, *python(code, ready, left)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.close()  # the program has the standard input of the command
        assert process.wait(60) == 0
        child = int(left.read_text())
        os.kill(child, 0)
        os.kill(child, signal.SIGKILL)


def test_the_group_of_a_program_that_stays_gets_what_a_terminal_sends(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "sys.exit(-child.wait())\n"
    )

    def is_ready(_times: ReadyTimes) -> None:
        threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()

    assert run_once_ready(python(code, ready), f"file:{ready}", on_ready=is_ready) == signal.SIGINT


def test_the_age_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").touch()
    # starttime is the 22nd field, in clock ticks since the boot; the name may contain blanks and brackets.
    fields = ["S", *["0"] * 18, str(5 * os.sysconf("SC_CLK_TCK")), "0"]
    (tmp_path / "1" / "stat").write_text("1 (a) b) " + " ".join(fields))
    assert seconds_since_container_start(tmp_path, clock=lambda _clock: 12.5) == pytest.approx(7.5)
    (tmp_path / "1" / "stat").write_text("1 (a)")
    assert seconds_since_container_start(tmp_path) is None


@pytest.mark.parametrize(
    ("times_s", "limit_s", "verdict"),
    [
        ([1, 1.1, 1.2, 1.1, 1, 1.2], 1.3, "met"),
        ([1, 1.1, 1.2, 1.1, 1, 1.2], 1.1, "inconclusive"),
        ([1, 1.1, 1.2, 1.1, 1, 1.2], 0.9, "missed"),
        ([1.0], 1.0, "met"),
        ([1.0, 2.0], 1.5, "inconclusive"),
    ],
)
def test_verdicts(times_s: list[float], limit_s: float, verdict: str) -> None:
    assert verdict_of(times_s, limit_s) == verdict


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready, out = tmp_path / "ready", tmp_path / "times.json"
    program = python("import pathlib, signal, sys; pathlib.Path(sys.argv[1]).touch(); signal.pause()", ready)
    words = ["startup", "--ready", f"file:{ready}", "--runs", "2", "--out", str(out), "--json"]
    assert execute([*words, "--limit", "60", "--", *program]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert execute([*words, "--limit", "0.000001", "--", *program]) == 1


def test_sigterm_ends_the_program_too(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\nsignal.pause()\n"
    )
    path = tmp_path / "process"
    words = ["startup", "--ready", f"file:{tmp_path / 'never'}", "--", *python(code, path)]
    command = subprocess.Popen([sys.executable, "-m", "gpuprof", *words], stderr=subprocess.DEVNULL)
    while not (path.exists() and path.read_text()):
        assert command.poll() is None
    command.terminate()
    assert command.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


def test_the_command_that_stays(tmp_path: Path, run_python: Any) -> None:
    ready = tmp_path / "ready"
    # The program ends once the report is written.
    command = [
        "startup",
        "--stay",
        "--ready",
        f"file:{ready}",
        "--out",
        tmp_path / "times.json",
        "--",
        "sh",
        "-c",
    ]
    script = f"echo out; touch {ready}; until test -s {tmp_path}/times.json; do :; done; exit 9"
    done = run_python("-m", "gpuprof", *command, script)
    assert (done.returncode, done.stdout) == (9, "out\n")
    assert len(json.loads((tmp_path / "times.json").read_text())["ready_s"]) == 1


def test_what_the_command_refuses() -> None:
    refused_command(["startup", "a", "b"], "needs_ready")
    refused_command(["startup", "--stay", "a"], "stay_needs_ready")
    refused_command(["startup", "--ready", "x", "--", "true"], "bad_readiness")
