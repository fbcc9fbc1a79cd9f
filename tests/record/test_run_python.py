# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run`: Python functions are parents of the layers that they call; the program is not disturbed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_work import BUSY
from page_reader import timeline_of
from run_codes import note_codes

import gpuprof
from gpuprof.record.facts import Reason, SourceStatus
from gpuprof.record.python_stacks import PythonStackSource
from gpuprof.run.format import KINDS
from gpuprof.run.stacks import Stacks, ThreadStacks
from gpuprof.run.table_writer import TableWriter

pytest.importorskip("pyinstrument")

Ended = tuple["subprocess.CompletedProcess[str]", gpuprof.Run]
Sampled = Callable[..., Ended]

PACKAGE = str(Path(gpuprof.__file__).parents[1])
TWO_FUNCTIONS = (
    BUSY
    + """
import torch

torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 64)
    def repeated(self, x):
        for _ in range(20):
            x = self.fc(x)
        return x
    def forward(self, x):
        return self.repeated(x)

class Other(Net):
    pass

# Samples before the first call and after the last show which function makes the calls between them.
def train(net, x):
    busy()
    for _ in range(200):
        net(x).sum().backward()
    busy()

def evaluate(net, other, x):
    busy()
    with torch.no_grad():
        for _ in range(200):
            net(x)
            other(x)
    busy()

def main():
    net, other, x = Net(), Other(), torch.ones(8, 64)
    train(net, x)
    evaluate(net, other, x)

main()
"""
)


def method(of: str, name: str) -> str:
    """What a method is called: CPython 3.10 knows its function's name alone."""
    return f"{of}.{name}" if sys.version_info >= (3, 11) else name


def run_sampled(folder: Path, source: str, *options: str) -> Ended:
    """Run a program under `gpuprof run`; returns how it ended, and the run."""
    (folder / "program.py").write_text(source)
    ended = subprocess.run(
        [sys.executable, "-m", "gpuprof", "run", *options, "--out", "r.gpuprof", "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (folder / "r.gpuprof").is_dir(), ended.stderr
    return ended, gpuprof.open(folder / "r.gpuprof")


@pytest.fixture
def sampled(tmp_path: Path) -> Sampled:
    """`sampled(source, *options)` is `run_sampled` in a folder of the test's own."""
    return functools.partial(run_sampled, tmp_path)


@pytest.fixture(scope="module")
def two_functions(tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    ended, run = run_sampled(tmp_path_factory.mktemp("two"), TWO_FUNCTIONS)
    assert ended.returncode == 0, ended.stderr
    return run


def paths_of(run: gpuprof.Run) -> dict[str, int]:
    """Return the calls by path; frames are identified by their function's name alone."""
    tree = run.call_tree
    paths: list[str] = []
    for parent, name, kind in zip(tree.parent.tolist(), tree.name.tolist(), tree.kind.tolist(), strict=True):
        text = tree.names[name]
        text = text.partition(" ")[0] if KINDS[kind] == "python" else text
        paths.append(f"{paths[parent]}/{text}" if parent >= 0 else "")
    return dict(zip(paths, tree.calls.tolist(), strict=True))


def test_functions_are_above_the_layers_that_they_call(two_functions: gpuprof.Run) -> None:
    run = two_functions
    paths = paths_of(run)
    in_train = paths["/<module>/main/train/Net"]
    in_evaluate = paths["/<module>/main/evaluate/Net"]
    # A call between two samples, of which one is elsewhere, may be further up.
    calls = {path: count for path, count in paths.items() if path.endswith("Net")}
    assert 180 <= in_train <= 200, (calls, run.meta["stacks"], run.meta["notes"])
    assert 180 <= in_evaluate <= 200, calls
    assert 180 <= paths["/<module>/main/evaluate/Other"] <= 200
    assert "/<module>/main/train/Other" not in paths
    # A sample that is dated some microseconds late shows the call that it met without its function.
    calls_of_layer = paths[f"/<module>/main/train/Net/{method('Net', 'repeated')}/fc"]
    assert 0 <= 20 * in_train - calls_of_layer <= 20
    backward = rf"/<module>/main/train/{method('Tensor', 'backward')}/.*/backward/Net/fc"
    assert any(re.fullmatch(backward, path) for path in paths)


def test_spans_are_those_of_the_table(two_functions: gpuprof.Run) -> None:
    run = two_functions
    measured = run.sql("SELECT name, count(*), sum(duration_ns) FROM spans WHERE kind = 'layer' GROUP BY 1")
    rows = {row.name: row for row in run.summary(process="all").rows}
    tree = run.sql(
        "SELECT name, sum(calls), sum(total_ns) FROM call_tree WHERE kind = 'layer' AND calls > 0 GROUP BY 1"
    )
    assert sorted(measured.fetchall()) == sorted(tree.fetchall())
    # The layers of the model that was called first have their plain names.
    assert rows["fc"].calls == 20 * 200 * 2
    assert rows["Other/fc"].calls == 20 * 200
    assert run.call_tree.own_ns.min() >= 0


def test_the_table_of_stacks(sampled: Sampled) -> None:
    _, run = sampled(BUSY + "busy()\n")
    rows = run.sql(
        "SELECT t_ns, process_id, thread_id, duration_ns, frames FROM stacks ORDER BY t_ns"
    ).fetchall()
    assert 3 < run.meta["stacks"]["samples"] <= len(rows)  # waits have rows of their own
    assert run.meta["stacks"]["interval_ns"] == 1_000_000
    assert all(row[1] == run.meta["process_id"] for row in rows)
    assert all(0 <= row[0] <= run.meta["duration_ns"] for row in rows)
    assert ["<module> (program.py)", "busy (program.py:3)"] in [row[4][:2] for row in rows]
    # A stack that could not be read at one moment is dropped, and its time belongs to no row.
    gaps = [after[0] - after[3] - before[0] for before, after in itertools.pairwise(rows)]
    assert min(gaps) >= 0
    assert gaps.count(0) > len(gaps) / 2


def test_samples_without_frames_are_rows_without_frames(tmp_path: Path) -> None:
    import duckdb

    with duckdb.connect(":memory:") as connection:
        writer = TableWriter(connection, tmp_path)
        thread = ThreadStacks(7, 8, 1_000_000)
        for t_ns, frames in ((5, ()), (9, (0,)), (12, ())):
            thread.add((t_ns, 1, -1, -1, -1), frames)
        writer.write_stacks(Stacks(["main (a.py:1)"], [thread]))
        rows = connection.sql(f"SELECT frames FROM '{tmp_path}/stacks/*/*.parquet' ORDER BY t_ns").fetchall()
    assert rows == [([],), (["main (a.py:1)"],), ([],)]


def test_the_page_of_a_sampled_run(two_functions: gpuprof.Run, tmp_path: Path) -> None:
    two_functions.flamegraph(tmp_path / "a.html")
    timeline = timeline_of((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert any(each.name.startswith("train (program.py") for each in timeline.slices)


def test_threads_that_begin_later_are_sampled(sampled: Sampled) -> None:
    _, run = sampled(
        BUSY
        + "import threading\n"
        + "worker = threading.Thread(target=busy)\nworker.start()\nworker.join()\n"
    )
    assert run.meta["stacks"]["threads"] == 2
    assert any(path.endswith(f"/{method('Thread', 'run')}/busy") for path in paths_of(run))


@pytest.mark.parametrize(
    "program",
    [
        "import cProfile, pstats\nprofiler = cProfile.Profile()\nprofiler.enable()\nbusy()\n"
        "profiler.disable()\nassert pstats.Stats(profiler).total_calls > 1000\n",
        "import sys\nseen = []\nsys.setprofile(lambda *event: seen.append(event[1]))\nbusy(0.1)\n"
        "sys.setprofile(None)\nassert seen.count('c_call') > 1000\n",
        "import pyinstrument\nprofiler = pyinstrument.Profiler()\nprofiler.start()\nbusy()\n"
        "profiler.stop()\nassert 'busy' in profiler.output_text()\n",
    ],
    ids=["cProfile", "setprofile", "pyinstrument"],
)
@pytest.mark.parametrize("options", [(), ("--profiler", "pyinstrument")], ids=["native", "pyinstrument"])
def test_the_programs_own_profilers_work(sampled: Sampled, program: str, options: tuple[str, ...]) -> None:
    ended, run = sampled(BUSY + "busy()\n" + program, *options)
    assert ended.returncode == 0, ended.stderr
    assert run.meta["stacks"]["samples"] > 0
    if not options:
        assert set(note_codes(run.meta)) <= {"stacks_torn"}
        return
    if "cProfile" not in program or sys.version_info < (3, 12):
        assert "stacks_lost_place" in note_codes(run.meta)


def test_hooks_of_the_programs_threads_are_left(sampled: Sampled) -> None:
    ended, run = sampled(
        BUSY
        + "import threading\nseen = []\ndef hook(*event): seen.append(event[1])\nthreading.setprofile(hook)\n"
        + "worker = threading.Thread(target=busy, args=(0.1,))\nworker.start()\nworker.join()\n"
        + "assert len(seen) > 1000 and threading.getprofile() is hook\nbusy()\n",
        "--profiler",
        "pyinstrument",
    )
    assert ended.returncode == 0, ended.stderr
    assert run.meta["stacks"]["threads"] == 1
    assert "stacks_displaced" in note_codes(run.meta)


def test_errors_and_exit_codes_stay_the_programs(sampled: Sampled) -> None:
    ended, _ = sampled(BUSY + "busy(0.05)\nraise ValueError('its own')\n")
    assert ended.returncode == 1
    assert "ValueError: its own" in ended.stderr
    assert "pyinstrument" not in ended.stderr


def test_what_a_signal_handler_raises_reaches_the_program(sampled: Sampled) -> None:
    ended, _ = sampled(
        BUSY
        + "import signal\nclass Late(OSError): pass\ndef late(*_): raise Late\n"
        + "signal.signal(signal.SIGALRM, late)\n"
        + "caught = 0\nfor _ in range(30):\n    try:\n        signal.setitimer(signal.ITIMER_REAL, 0.002)\n"
        + "        busy(10**9)\n    except Late:\n        caught += 1\nassert caught == 30\n"
    )
    assert ended.returncode == 0, ended.stderr


def test_a_program_that_is_killed_keeps_its_samples(sampled: Sampled) -> None:
    ended, run = sampled(BUSY + "import os\nbusy()\nos.kill(os.getpid(), 9)\n")
    assert ended.returncode == 137
    assert not run.meta["complete"]
    assert run.meta["stacks"]["samples"] > 3
    assert "/<module>/busy" in paths_of(run)


def test_a_forked_child_writes_samples_of_its_own(sampled: Sampled) -> None:
    ended, run = sampled(
        BUSY
        + "import os\nimport gpuprof\nbusy()\nchild = os.fork()\n"
        + "with gpuprof.span('work'): busy()\n"
        + "if child == 0: os._exit(0)\nos.waitpid(child, 0)\n"
    )
    assert ended.returncode == 0
    assert run.sql("SELECT count(DISTINCT process_id) FROM stacks").fetchall() == [(2,)]


def test_profile_takes_stacks_and_leaves_nothing(tmp_path: Path) -> None:
    def called() -> None:
        for enter in (contextlib.nullcontext, lambda: gpuprof.span("work")):
            end = time.thread_time() + 0.2
            with enter():  # a span is shown below the functions that samples before it show
                while time.thread_time() < end:
                    pass

    with gpuprof.profile(python=True, out=tmp_path / "r.gpuprof") as recording:
        called()
    assert sys.getprofile() is None
    run = recording.run
    assert any(
        "called/work"
        in path.replace(".<locals>", "").replace("test_profile_takes_stacks_and_leaves_nothing.", "")
        for path in paths_of(run)
    )
    assert not any("gpuprof/record" in name for name in run.call_tree.names)


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    def mine(*_: object) -> None:
        """Profile nothing."""

    sys.setprofile(mine)
    try:
        source = PythonStackSource(tmp_path)
        assert source.start() == SourceStatus.off(Reason.PROFILER_TAKEN)
        source.stop()
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert source.notes == []


def test_a_missing_pyinstrument_is_reported(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    (tmp_path / "pyinstrument.py").write_text("raise ImportError\n")
    (tmp_path / "program.py").write_text("print('never')\n")
    ended = run_python("-m", "gpuprof", "run", "--profiler", "pyinstrument", "program.py")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "pip install 'gpuprof-native[python]'" in ended.stderr


def test_tasks_of_asyncio_are_below_its_loop(sampled: Sampled) -> None:
    ended, run = sampled(
        BUSY
        + "import asyncio\nimport gpuprof\nasync def task():\n    for _ in range(3):\n"
        + "        with gpuprof.span('work'):\n            busy(0.1)\n            await asyncio.sleep(0)\n"
        + "async def main():\n    await asyncio.gather(task(), task())\nasyncio.run(main())\n"
    )
    assert ended.returncode == 0, ended.stderr
    paths = [path.split("/") for path in paths_of(run)]
    assert any("task" in path and path.index("run") < path.index("task") for path in paths)
    spans = run.sql("SELECT sum(calls) FROM call_tree WHERE name = 'work'").fetchall()
    assert spans == [(6,)]
    assert run.call_tree.own_ns.min() >= 0
