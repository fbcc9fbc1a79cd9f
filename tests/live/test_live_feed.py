# SPDX-License-Identifier: Apache-2.0
"""The live feed against the tables of the closed run."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from live_program import Recorded
from refusals import refused, refused_command

import gpuprof
from gpuprof.errors import GpuprofError, RunError
from gpuprof.live.feed import Feed, largest
from gpuprof.live.processes import MachineWatch, ProcessWatch, rank_of, read_process
from gpuprof.live.snapshot import LiveCallFigures, MissingReason, RunState, Unavailable
from gpuprof.live.target import open_feed, run_of
from gpuprof.live.text import snapshot_text
from gpuprof.live.totals import Totals
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS
from gpuprof.run.folder import META_FILE


@pytest.fixture
def recorded(tmp_path: Path):
    program = Recorded(tmp_path)
    yield program
    program.close()


def test_the_sums_of_all_snapshots_are_the_tables_of_the_closed_run(recorded: Recorded) -> None:
    feed = Feed(recorded.run)
    snapshots = []
    for count in (3, 1, 40, 0, 7):
        recorded.send(str(count))
        snapshots.append(feed.poll())
    assert all(each.state is RunState.RECORDING for each in snapshots)
    assert all(isinstance(each.calls, tuple) and each.calls for each in snapshots)
    # No step ended in this interval; that is not a program without steps.
    assert snapshots[3].steps == ()
    recorded.send("end")
    snapshots.append(feed.poll())
    assert snapshots[-1].state is RunState.ENDED
    calls, times, steps = Counter(), Counter(), 0
    for snapshot in snapshots:
        assert isinstance(snapshot.calls, tuple)
        for each in snapshot.calls:
            calls[each.kind, each.name] += each.calls
            times[each.kind, each.name] += each.total_ns
        if isinstance(snapshot.steps, tuple):
            steps += sum(len(each.durations_ns) for each in snapshot.steps)
    run = gpuprof.open(recorded.run)
    rows = run.sql("SELECT kind, name, count(*), sum(duration_ns) FROM spans GROUP BY ALL").fetchall()
    assert {(kind, name): count for kind, name, count, _ in rows} == dict(calls)
    # The clocks are compared once more when a recording ends, so a call's time may differ by rounding.
    assert all(abs(times[kind, name] - int(ns)) <= count + int(ns) // 1000 for kind, name, count, ns in rows)
    assert steps == run.sql("SELECT count(*) FROM steps").fetchall()[0][0] == 51


def test_a_program_that_was_killed_is_read_to_its_end(recorded: Recorded) -> None:
    feed = Feed(recorded.run)
    recorded.send("5")
    assert feed.poll().state is RunState.RECORDING
    recorded.send("die")
    recorded.close()
    snapshot = feed.poll()
    assert (snapshot.state, feed.is_over) == (RunState.ENDED, True)
    assert snapshot.processes[0].rss_bytes == Unavailable(MissingReason.PROCESS_ENDED)


def test_a_run_that_is_closed_before_its_first_events_are_read_ends(
    recorded: Recorded, tmp_path: Path
) -> None:
    """A program of a few milliseconds has no events while its run is recorded that a view could read."""
    run = tmp_path / "short.gpuprof"
    (run / SEGMENTS).mkdir(parents=True)
    shutil.copy(recorded.run / RECORDING_FILE, run)
    feed = Feed(run)
    assert feed.poll().state is RunState.RECORDING
    recorded.send("end")
    recorded.close()
    gpuprof.open(recorded.run)  # closes it
    shutil.copy(recorded.run / META_FILE, run)
    (run / RECORDING_FILE).unlink()
    (run / SEGMENTS).rmdir()
    assert feed.poll().state is RunState.ENDED
    assert feed.is_over


def test_a_run_whose_program_was_killed_is_refused(recorded: Recorded) -> None:
    recorded.send("5")
    assert open_feed(str(recorded.run)).poll().state is RunState.RECORDING
    recorded.send("die")
    recorded.close()
    refused_command(["top", recorded.run, "--once", "--interval", "0.1"], "not_recording", recorded.run)
    refused_command(["alert", recorded.run, "--once", "--interval", "0.1"], "not_recording")


def test_a_run_that_was_closed_is_refused(recorded: Recorded) -> None:
    recorded.send("end")
    gpuprof.open(recorded.run)
    with refused(RunError, "not_recording"):
        Feed(recorded.run)
    with refused(RunError, "no_such_run"):
        Feed(recorded.run.parent / "missing.gpuprof")
    with refused(RunError, "not_a_run"):
        Feed(recorded.run.parent)


def test_a_process_leads_to_the_run_that_it_records(recorded: Recorded) -> None:
    recorded.send("1")
    assert run_of(recorded.process.pid) == recorded.run
    assert run_of(os.getpid()) is None
    snapshot = open_feed(str(recorded.process.pid)).poll()
    assert [each.process_id for each in snapshot.processes] == [recorded.process.pid]
    with refused(GpuprofError, "no_such_process"):
        open_feed("999999999")


def test_a_folder_that_was_removed_ends_the_feed(recorded: Recorded) -> None:
    feed = Feed(recorded.run)
    recorded.send("1")
    feed.poll()
    recorded.run.rename(recorded.run.with_name("moved.gpuprof"))
    recorded.send("1")
    snapshot = feed.poll()
    assert snapshot.state is RunState.GONE
    assert snapshot.calls  # files that are open are read all the same


def test_a_folder_that_is_removed_after_a_poll_is_known_with_the_next(recorded: Recorded) -> None:
    feed = Feed(recorded.run)
    recorded.send("3")
    assert feed.poll().state is RunState.RECORDING
    recorded.run.rename(recorded.run.with_name("removed"))
    assert not feed.is_over
    assert feed.poll().state is RunState.GONE
    assert feed.is_over


def test_rates_are_unavailable_in_the_first_interval(tmp_path: Path) -> None:
    watch = ProcessWatch(os.getpid())
    assert watch.figures(1, 0).cpu_cores == Unavailable(MissingReason.FIRST_INTERVAL)
    watch.read()
    assert isinstance(watch.figures(10**9, 0).cpu_cores, float)
    assert read_process(1, tmp_path) is None
    assert MachineWatch(tmp_path).figures(1).cpu_share == Unavailable(MissingReason.NO_PROCFS)


def test_a_name_with_parentheses_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    rest = "S 3 0 0 0 0 0 0 0 0 0 20 5 0 0 0 0 4 0 900 0 25"
    (tmp_path / "7" / "stat").write_text(f"7 (a) (b) {rest}")
    reading = read_process(7, tmp_path)
    assert reading is not None
    assert (reading.name, reading.parent_process_id, reading.cpu_ticks) == ("a) (b", 3, 25)
    assert (reading.threads, reading.start_ticks, reading.read_bytes) == (4, 900, None)


def test_the_others_are_summed_up() -> None:
    calls = [LiveCallFigures("operator", name, 1, 10, 5) for name in "abc"]
    assert largest(calls, 3) == (calls, None)
    assert largest(calls, 1) == (calls[:1], LiveCallFigures("operator", "other", 2, 20, 10))


def test_the_last_frame_is_the_summary_of_the_closed_run(recorded: Recorded) -> None:
    feed, totals, last = Feed(recorded.run), Totals(), None
    for command in ("4", "11", "2", "end"):
        recorded.send(command)
        last = feed.poll()
        totals.add(last)
    assert last is not None
    found = totals.in_place_of(last)
    text = snapshot_text(found)
    run = gpuprof.open(recorded.run)
    operators = {(each.kind, each.name): each for each in found.calls_of("operator", "backward")}
    for row in run.summary(by="operator").rows:
        live = operators.pop((row.kind, row.name))
        assert live.calls == row.calls
        assert live.self_ns == pytest.approx(row.own_ns, rel=0.001, abs=row.calls)
    assert not operators
    assert isinstance(found.layers, tuple)
    layers = {each.name: each for each in found.layers}
    for row in run.summary(by="layer").rows:
        # The backward pass of a layer is known when the run is closed.
        forward_ns = row.own_ns - (row.backward_own_ns or 0)
        live = layers.pop(row.name)
        assert live.calls == row.calls
        assert live.self_ns == pytest.approx(forward_ns, rel=0.001, abs=row.calls)
        assert re.search(rf"^{re.escape(row.name)} .* {row.calls}$", text, re.MULTILINE)
    assert not layers


def test_two_views_see_the_same_and_write_nothing(recorded: Recorded) -> None:
    recorded.send("2")
    before = contents(recorded.run)
    feeds = [Feed(recorded.run), Feed(recorded.run)]
    first, second = (feed.poll() for feed in feeds)
    assert isinstance(first.calls, tuple)
    assert isinstance(second.calls, tuple)
    counts = [[(each.kind, each.name, each.calls) for each in view.calls] for view in (first, second)]
    assert counts[0] == counts[1] != []
    assert contents(recorded.run) == before


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """All that is in a folder: sizes and when the content was changed by a write."""
    found = [folder, *folder.rglob("*")]
    return {
        path: (path.stat().st_size, path.stat().st_ctime_ns) for path in found if path.suffix != ".stacks"
    }


def test_a_suspended_program_is_shown_as_stopped(recorded: Recorded) -> None:
    recorded.send("1")
    feed = Feed(recorded.run)
    assert not feed.poll().processes[0].is_stopped
    recorded.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, recorded.process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        snapshot = feed.poll()
    finally:
        recorded.process.send_signal(signal.SIGCONT)
    assert (snapshot.processes[0].is_stopped, snapshot.state) == (True, RunState.RECORDING)


def test_one_process_is_chosen_and_then_all(recorded: Recorded) -> None:
    feed = Feed(recorded.run)
    feed.choose(recorded.process.pid + 1)
    recorded.send("1")
    assert feed.poll().calls == ()
    feed.choose(recorded.process.pid)
    recorded.send("1")
    assert feed.poll().calls
    feed.choose(None)
    recorded.send("1")
    assert feed.poll().calls


def test_a_clock_that_is_set_back_changes_no_interval(recorded: Recorded) -> None:
    day_ns = iter((10**18, 10**17, 10**16))
    now_ns = iter((0, 10**9, 3 * 10**9))
    feed = Feed(recorded.run, clock=lambda: next(now_ns), unix_clock=lambda: next(day_ns))
    assert [feed.poll().interval_ns, feed.poll().interval_ns] == [10**9, 2 * 10**9]


def test_a_rank_is_that_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for content, rank in ((b"A=1\0RANK=3\0", 3), (b"LOCAL_RANK=2", 2), (b"RANK=x\0", None), (b"", None)):
        (tmp_path / "7" / "environ").write_bytes(content)
        assert rank_of(7, tmp_path) == rank
    assert rank_of(8, tmp_path) is None
