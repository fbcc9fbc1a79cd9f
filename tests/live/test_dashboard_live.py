# SPDX-License-Identifier: Apache-2.0
"""The live section: points of recorded runs, their end, alerts, and streams without a reader."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_folders import record_run
from waiting import LONGEST_S, wait_until

from gpuprof.errors import RunError
from gpuprof.live.alerts.rules import AlertFigure, SlowStepRule, ThresholdRule
from gpuprof.live.snapshot import (
    LiveLayerFigures,
    LiveStepFigures,
    MachineFigures,
    MissingReason,
    ProcessFigures,
    RunState,
    Snapshot,
    Unavailable,
)

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.needs("starlette", "uvicorn")

from dashboard_server import serving  # noqa: E402 - needs the packages

from gpuprof.live.dashboard import connections  # noqa: E402
from gpuprof.live.dashboard.connections import Limits, count_of  # noqa: E402
from gpuprof.live.dashboard.folder import LOAD_FILES, FolderScan  # noqa: E402
from gpuprof.live.dashboard.live_runs import KEPT_POINTS, MOST_RUNS, LiveFeed, LiveRuns, run_point  # noqa: E402
from gpuprof.record.recording_folder import is_held  # noqa: E402

FIRST = Unavailable(MissingReason.FIRST_INTERVAL)
MACHINE = MachineFigures(2, 0.5, 0.1, 6 << 30, 8 << 30, 1.5, FIRST, 20.0)
SECOND = 1_000_000_000


def process(process_id: int, rss: int | Unavailable = 100, cpu: float | Unavailable = 0.5) -> ProcessFigures:
    return ProcessFigures(process_id, 1, "python", True, 3, rss, cpu, 10.0, 20.0, 5)


def snapshot(number: int, *durations_ns: int) -> Snapshot:
    return Snapshot(
        unix_ns=number * SECOND,
        interval_ns=SECOND,
        machine=MACHINE,
        processes=(process(7),),
        run="run",
        state=RunState.RECORDING,
        steps=(LiveStepFigures(7, "optimizer", durations_ns),) if durations_ns else FIRST,
        layers=(LiveLayerFigures("fc", 2, 30), LiveLayerFigures("<b>", 1, 70)),
        calls=(),
        operators=None,
    )


class FakeFeed:
    """Snapshots of a program that takes a step of 10 ms, 25 an interval, until it is over."""

    def __init__(self, step: Callable[[int], int] = lambda number: 10_000_000) -> None:
        self.number = 0
        self.is_over = False
        self.is_closed = False
        self._step = step

    def poll(self) -> Snapshot:
        self.number += 1
        return snapshot(self.number, *[self._step(self.number * 25 + each) for each in range(25)])

    def close(self) -> None:
        self.is_closed = True


def runs_with(feeds: dict[str, FakeFeed], machine: FakeFeed | None = None) -> LiveRuns:
    def open_feed(path: Path | None) -> LiveFeed:
        return (machine or FakeFeed()) if path is None else feeds[path.name]

    return LiveRuns(Path("/served"), open_feed)


# --- points --------------------------------------------------------------------------------------


def test_a_point_has_the_figures_of_all_processes() -> None:
    steps = (LiveStepFigures(1, "span", (10, 30)), LiveStepFigures(2, "span", (20, 100)))
    found = Snapshot(
        unix_ns=5 * SECOND,
        interval_ns=SECOND,
        machine=MACHINE,
        processes=(process(1), process(2)),
        steps=steps,
    )
    point = run_point(found)
    assert point["steps"] == {"count": 4, "mean_ns": 40, "p50_ns": 25, "max_ns": 100, "parts": {}}
    assert (point["rss"], point["cpu"], point["processes"]) == (200, 1.0, 2)


def test_a_sum_without_a_part_is_unavailable_and_not_smaller() -> None:
    found = Snapshot(
        unix_ns=1,
        interval_ns=1,
        machine=MACHINE,
        processes=(process(1), process(2, rss=Unavailable(MissingReason.NOT_PERMITTED), cpu=0.25)),
    )
    point = run_point(found)
    assert (point["rss"], point["cpu"]) == (None, 0.75)
    assert point["steps"] == {"count": None, "reason": "no_run"}


def test_names_are_bounded_and_the_others_added_up() -> None:
    layers = tuple(LiveLayerFigures(f"layers.{each}" + "x" * 5000, 1, 10 + each) for each in range(100))
    point = run_point(Snapshot(unix_ns=1, interval_ns=1, machine=MACHINE, layers=layers))
    assert len(point["layers"]) == 9
    assert sum(ns for _, ns in point["layers"]) == sum(each.self_ns for each in layers)
    assert point["layers"][-1][0] == ""
    assert max(len(name) for name, _ in point["layers"]) <= 200


def test_points_are_kept_for_a_page_that_is_opened_later_but_not_without_a_limit() -> None:
    feed = FakeFeed()
    live = runs_with({"a": feed})
    for _ in range(KEPT_POINTS + 50):
        live.poll({"1": "a"})
    history = live.history()
    assert len(history["runs"]["1"]) == len(history["machine"]) == KEPT_POINTS
    assert history["runs"]["1"][-1]["t"] == (KEPT_POINTS + 50) * 1000
    assert history["machine"][-1]["received"] is None


def test_the_first_point_of_a_run_is_of_no_interval_as_it_has_what_was_before() -> None:
    live = runs_with({"a": FakeFeed()})
    intervals = [live.poll({"1": "a"})["runs"]["1"]["interval_ns"] for _ in range(3)]
    assert intervals == [None, SECOND, SECOND]
    assert [each["interval_ns"] for each in live.history()["runs"]["1"]] == intervals


def test_a_program_that_ends_leaves_a_last_point() -> None:
    feed = FakeFeed()
    live = runs_with({"a": feed})
    assert "over" not in live.poll({"1": "a"})["runs"]["1"]
    feed.is_over = True
    assert live.poll({"1": "a"})["runs"]["1"]["over"]
    assert feed.is_closed
    # It is not opened again while the folder still shows it as recorded.
    assert live.poll({"1": "a"})["runs"] == {}
    assert live.poll({})["runs"] == {}
    assert live.history()["runs"] == {}


def test_a_run_that_is_removed_or_cannot_be_followed_does_not_stop_the_others() -> None:
    class Failing(FakeFeed):
        def poll(self) -> Snapshot:
            raise RunError("not_a_run", "it is gone")

    live = runs_with({"a": Failing(), "b": FakeFeed()})
    found = live.poll({"1": "a", "2": "b"})["runs"]
    assert found["1"] == {"problem": "not_a_run", "over": True}
    assert found["2"]["steps"]["count"] == 25
    assert set(live.poll({"1": "a", "2": "b"})["runs"]) == {"2"}


def test_many_runs_are_not_all_followed() -> None:
    live = runs_with({str(each): FakeFeed() for each in range(MOST_RUNS + 3)})
    found = live.poll({str(each): str(each) for each in range(MOST_RUNS + 3)})
    assert (len(found["runs"]), found["left_out"]) == (MOST_RUNS, 3)


def test_a_slow_step_raises_an_alert_and_a_quiet_run_none() -> None:
    slow = runs_with({"a": FakeFeed(lambda number: 90_000_000 if number == 150 else 10_000_000)})
    quiet = runs_with({"a": FakeFeed()})
    rules = set()
    for _ in range(10):
        rules |= {(each["run"], each["rule"]) for each in slow.poll({"1": "a"})["alerts"]}
        assert quiet.poll({"1": "a"})["alerts"] == []
    assert rules == {("1", "slow-step")}


def test_each_alert_is_reported_once_and_cleared_with_its_run() -> None:
    reported = []
    feed = FakeFeed(lambda number: 90_000_000 if number == 150 else 10_000_000)
    live = LiveRuns(
        Path("/served"),
        lambda path: FakeFeed() if path is None else feed,
        rules=(
            SlowStepRule(name="slow"),
            ThresholdRule(name="busy", figure=AlertFigure.MACHINE_CPU, above=0.4),
        ),
        on_alert=lambda path, alert: reported.append((path, alert.rule, alert.state.value)),
    )
    for _ in range(10):
        live.poll({"1": "deep/a"})
    # The machine is reported by its own feed, although each run's snapshot has it too.
    assert reported == [("", "busy", "firing"), ("deep/a", "slow", "firing")]
    feed.is_over = True
    live.poll({"1": "deep/a"})
    live.poll({})
    assert reported[2:] == [("deep/a", "slow", "cleared")]


# --- with programs -------------------------------------------------------------------------------

PROGRAM = """
import sys, gpuprof
with gpuprof.profile(out=sys.argv[1], python=False):
    for _ in range(50):
        with gpuprof.span("step"):
            pass
    print("recording", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_run_is_live_while_its_program_runs_and_closed_after(tmp_path: Path) -> None:
    run = tmp_path / "run.gpuprof"
    command = [sys.executable, "-c", PROGRAM, str(run)]
    with (
        serving(tmp_path) as served,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program,
    ):
        assert program.stdout is not None
        assert program.stdout.readline() == "recording\n"
        assert is_held(run)
        # It is listed as pending until it has been read.
        items = served.wait_until(lambda found: found.get("run.gpuprof", {}).get("state") == "recording")
        run_id = items["run.gpuprof"]["id"]
        spans = 0
        for kind, event in served.events():
            point = event["runs"].get(run_id) if kind == "tick" else None
            spans += (point or {}).get("spans") or 0
            if spans >= 50 or (kind == "hello" and event["history"]["runs"].get(run_id)):
                break
        program.communicate("end\n")
        assert program.returncode == 0
        assert not is_held(run)
        items = served.wait_until(lambda found: found["run.gpuprof"]["state"] == "ready")
        assert items["run.gpuprof"]["summary"]["spans"] >= 50


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_killed_program_leaves_an_unclosed_run_that_is_not_closed_by_looking(tmp_path: Path) -> None:
    run = tmp_path / "run.gpuprof"
    command = [sys.executable, "-c", PROGRAM, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.kill()
    with serving(tmp_path) as served:
        items = served.wait_until(lambda found: found.get("run.gpuprof", {}).get("state") == "unclosed")
        assert served.get(f"/view/{items['run.gpuprof']['id']}/flamegraph")[0] == 422
        assert not (run / "meta.json").exists()


# --- streams -------------------------------------------------------------------------------------


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_clients_that_never_read_cost_a_bounded_buffer_and_others_are_served(tmp_path: Path) -> None:
    record_run(tmp_path / "run.gpuprof")
    with serving(tmp_path, interval_s=0.002) as served:
        served.read(1)
        before = resident_kb()
        clients = []
        try:
            for _ in range(200):
                client = socket.create_connection(("127.0.0.1", served.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
                clients.append(client)
            ticks = 0
            for kind, _ in served.events():
                # From when all are connected, which takes a busy machine a while.
                ticks += kind == "tick" and served.dashboard.broadcast.streams > 200
                if ticks == 100:
                    break
            assert served.get("/")[0] == 200
            # A queue of all messages for each client would have 200 x 100 x 0.4 KB and more.
            assert resident_kb() - before < 40_000
        finally:
            for client in clients:
                client.close()


def test_streams_above_the_limit_are_refused(tmp_path: Path) -> None:
    from gpuprof.live.dashboard.stream import MOST_STREAMS

    with serving(tmp_path) as served:
        served.read(0)
        served.dashboard.broadcast.streams += MOST_STREAMS
        status, headers, _ = served.get("/events")
        served.dashboard.broadcast.streams -= MOST_STREAMS
        assert (status, headers["Retry-After"]) == (503, "10")
        assert headers["Connection"] == "close"  # a refused page must not take the place of another one


def test_a_request_beyond_the_connections_is_refused_with_the_headers(tmp_path: Path) -> None:
    with serving(tmp_path, limits=Limits(connections=2)) as served, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(contextlib.closing(served.events())).__next__()
        status, headers, body = served.get("/")
        assert (status, headers["Retry-After"], headers["Connection"]) == (503, "10", "close")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert b"; hint: " in body
        stack.close()
        # The server takes notice of the end of a connection some time later.
        while served.get("/")[0] != 200:
            pass


def half_sent(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S)
    client.sendall(b"GET / HTTP/1.1\r\n")
    return client


def test_a_half_sent_request_is_ended(tmp_path: Path) -> None:
    with (
        serving(tmp_path, limits=Limits(head_s=0.1)) as served,
        half_sent(served.port) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        assert client.recv(1) == b""


def test_half_sent_requests_make_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_YOUNG_S", 0.0)
    with serving(tmp_path, limits=Limits(connections=3, head_s=600)) as served:
        clients = [half_sent(served.port) for _ in range(6)]
        assert served.get("/")[0] == 200
        for client in clients:
            client.close()


def test_a_client_that_does_not_read_a_response_is_disconnected(tmp_path: Path) -> None:
    with serving(tmp_path, limits=Limits(stalled_s=0.2)) as served, socket.socket() as client:
        served.dashboard.catalog.since = lambda _version: {"text": "x" * 20_000_000}  # type: ignore[method-assign]
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(f"GET /api/catalog HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        client.recv(1)
        wait_until(lambda: count_of(served.server) == 0)


# --- the folder ----------------------------------------------------------------------------------


def test_the_names_of_a_load_test_are_those_that_it_writes() -> None:
    from gpuprof.load.result import REQUESTS_FILE, RESULT_FILE

    assert LOAD_FILES == (RESULT_FILE, REQUESTS_FILE)


def test_depth_is_bounded_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    (deep / "far.json").write_text("{}")
    (tmp_path / "a" / "near.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.json").write_text("{}")
    scan = FolderScan(tmp_path)
    assert [each.path for each in scan.scan()] == ["a/near.json"]
    shutil.rmtree(tmp_path / "a")
    assert scan.scan() == []
