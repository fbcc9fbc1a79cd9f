# SPDX-License-Identifier: Apache-2.0
"""The live feed against the tables of the closed run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from refusals import refused

import gpuprof
from gpuprof.errors import GpuprofError, RunError
from gpuprof.live.feed import Feed, largest
from gpuprof.live.processes import MachineWatch, ProcessWatch, read_process
from gpuprof.live.snapshot import LiveCallFigures, MissingReason, RunState, Unavailable
from gpuprof.live.target import open_feed, run_of

# Each line of standard input is a command; a line follows each.
PROGRAM = textwrap.dedent("""\
    import sys, threading
    from pathlib import Path
    from gpuprof.record.collector import offer_collector
    offer_collector()
    import torch, gpuprof
    from gpuprof.record.options import RecordingOptions
    from gpuprof.record.recording import Recording
    from gpuprof.record.recording_folder import create_folder
    folder = Path(sys.argv[1])
    create_folder(folder)
    recording = Recording(folder, RecordingOptions(python=False))
    recording.start()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters())
    def side():
        for _ in range(20):
            with gpuprof.span("side"):
                torch.ones(3) * 2.0
    def train(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "end\\n":
            recording.stop()
        elif line == "die\\n":
            import os
            os._exit(0)
        else:
            thread = threading.Thread(target=side)
            thread.start()
            train(int(line))
            thread.join()
        print("done", flush=True)
    """)


class Recorded:
    """A program that records, and runs the commands it gets."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "live.gpuprof"
        script = folder / "program.py"
        script.write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(self.run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready\n"

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        assert command == "die" or self._line() == "done\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        return code


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
