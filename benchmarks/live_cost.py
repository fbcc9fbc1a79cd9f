# SPDX-License-Identifier: Apache-2.0
"""What a live view costs: a training program with and without it, the view's own processor time and memory.

    python benchmarks/live_cost.py [--rounds 5] [--seconds 6] [--viewer 'NAME=CMD ...'] [--json FILE|-]

One recorded program trains all the time. Blocks with and without each viewer alternate, so a ratio compares
neighbors in one run. `--viewer` adds another one, such as 'py-spy=py-spy top --pid {pid}' or a server of
metrics; `{run}` and `{pid}` are replaced. Each viewer has a terminal of 100 x 40. `--parts` chooses what is
measured: `steps`, `programs` (the training by itself, recorded, and with windows), `million` (a view of a run
with a million spans) and `hour` (memory over 3,600 intervals).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks._output import show_figures
from gpuprof.live.feed import Feed
from gpuprof.live.view import LiveView
from gpuprof.record.recording_folder import RECORDING_FILE

TOP = "gpuprof top=" + shlex.join([sys.executable, "-m", "gpuprof", "top"]) + " {run}"
SETTLING_S = 2.0  # a viewer has started when it uses less than a tenth of a core for so long
_COLUMNS, _LINES = 100, 40
_LONGEST_START_S = 120.0
# Columns of a step, and what is compared: name, quantile, column.
_DURATION, _PROCESSOR = 1, 2
_RATIOS = (("p50", 0.5, _DURATION), ("p99", 0.99, _DURATION), ("processor", 0.5, _PROCESSOR))
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Trains until its standard input ends; appends the end, the duration and the processor time of each step to a
# file.
_TRAINING = """
import array, os, select, sys, time
import torch
torch.set_num_threads(1)
layers = [each for _ in range(4) for each in (torch.nn.Linear(768, 768), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers)
optimizer, values = torch.optim.SGD(model.parameters(), 0.01), torch.randn(128, 768)
with open(sys.argv[1], "ab") as file:
    while not select.select([0], [], [], 0)[0]:
        steps = array.array("q")
        for _ in range(5):
            begin, used = time.monotonic_ns(), time.process_time_ns()
            optimizer.zero_grad()
            model(values).square().mean().backward()
            optimizer.step()
            end = time.monotonic_ns()
            steps.extend((end, end - begin, time.process_time_ns() - used))
        file.write(steps.tobytes())
        file.flush()
"""
# Records a number of spans, then a thousand in each tenth of a second.
_SPANS = """
import select, sys, time
import gpuprof
def record(count):
    for _ in range(count):
        with gpuprof.span("outer"):
            with gpuprof.span("inner"):
                pass
record(int(sys.argv[1]) // 2)
while not select.select([0], [], [], 0.1)[0]:
    record(500)
"""
# Records what a short training does for each line of standard input.
_LINES_PROGRAM = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters())
for line in sys.stdin:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    print("done", flush=True)
"""


class Recorded:
    """A program under `gpuprof run`, which ends with the block."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        (folder / "program.py").write_text(script)
        self.run = folder / "program.gpuprof"
        words = ["run", "--out", str(self.run), str(folder / "program.py"), *arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuprof", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _LONGEST_START_S
        while not (self.run / RECORDING_FILE).exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the program could not be recorded")
            time.sleep(0.05)
        self.process_id = int(json.loads((self.run / RECORDING_FILE).read_bytes())["process_id"])

    def close(self) -> None:
        """End the program and its run."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def recorded(script: str, *arguments: str) -> Iterator[tuple[Recorded, Path]]:
    """Record a program for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-live-cost-") as name:
        folder = Path(name)
        program = Recorded(folder, script, *(each.replace("{folder}", name) for each in arguments))
        try:
            yield program, folder
        finally:
            program.close()


class Viewer:
    """A viewer in a terminal of its own whose output is read and dropped."""

    def __init__(self, command: Sequence[str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        self.received = 0
        threading.Thread(target=self._drop, daemon=True).start()

    def use(self) -> tuple[float, int]:
        """Return the processor seconds and resident bytes until now; those of its children are included."""
        ticks, pages = 0, 0
        for process_id in (self.process.pid, *children_of(self.process.pid)):
            with contextlib.suppress(OSError, IndexError):
                stat = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
                ticks += int(stat[11]) + int(stat[12])
                pages += int(stat[21])
        return ticks / _TICKS_PER_S, pages * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """End it as a user who has lost patience does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            while content := os.read(self._ours, 1 << 16):
                self.received += len(content)


def children_of(process_id: int) -> list[int]:
    """Return the processes that a process has started."""
    with contextlib.suppress(OSError):
        return [
            int(each) for each in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
        ]
    return []


# ---- the steps of a program -------------------------------------------------------------------------------


def measure_steps(viewers: dict[str, str], rounds: int, seconds: float) -> dict[str, Any]:
    """Return step times with each viewer over those without one, and what the viewers used."""
    blocks: dict[str, list[tuple[int, int]]] = {name: [] for name in ("none", *viewers)}
    uses: dict[str, list[dict[str, float]]] = {name: [] for name in viewers}
    failed: dict[str, str] = {}
    with recorded(_TRAINING, "{folder}/steps") as (program, folder):
        while not (folder / "steps").exists() or (folder / "steps").stat().st_size < 2_400:
            time.sleep(0.1)
        for number in range(rounds):
            order = [*viewers][number % len(viewers) :] + [*viewers][: number % len(viewers)]
            for name in order:
                blocks["none"].append(_block(seconds))
                use = _watched_block(viewers[name], program, seconds)
                if isinstance(use, str):
                    failed[name] = use
                    continue
                block, figures = use
                blocks[name].append(block)
                uses[name].append(figures)
        blocks["none"].append(_block(seconds))
        time.sleep(0.5)
        steps = np.frombuffer((folder / "steps").read_bytes(), dtype=np.int64)
        steps = steps[: len(steps) // 3 * 3].reshape(-1, 3)
    without = [_median(steps, block) for block in blocks["none"]]
    found: dict[str, Any] = {"step_ms": float(np.median(without)) / 1e6, "rounds": rounds, "failed": failed}
    found["viewers"] = {
        name: _step_figures(steps, blocks["none"], blocks[name], uses[name])
        for name in viewers
        if blocks[name]
    }
    return found


def _block(seconds: float) -> tuple[int, int]:
    begin_ns = time.monotonic_ns()
    time.sleep(seconds)
    return begin_ns, time.monotonic_ns()


def _watched_block(
    command: str, program: Recorded, seconds: float
) -> tuple[tuple[int, int], dict[str, float]] | str:
    words = [
        each.replace("{run}", str(program.run)).replace("{pid}", str(program.process_id))
        for each in shlex.split(command)
    ]
    try:
        viewer = Viewer(words)
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    try:
        before_s = _after_start(viewer)
        block = _block(seconds)
        if viewer.process.poll() is not None:
            return f"ended with exit code {viewer.process.returncode}"
        after_s, rss_bytes = viewer.use()
    finally:
        viewer.end()
    took_s = (block[1] - block[0]) / 1e9
    return block, {"cpu_percent": 100 * (after_s - before_s) / took_s, "rss_mb": rss_bytes / 1e6}


def _after_start(viewer: Viewer) -> float:
    """Wait until a viewer has started, which takes long on a busy machine; returns its processor seconds."""
    deadline = time.monotonic() + _LONGEST_START_S / 2
    used_s, _ = viewer.use()
    while True:
        time.sleep(SETTLING_S)
        former_s, (used_s, _) = used_s, viewer.use()
        is_quiet = used_s > 0 and used_s - former_s < 0.1 * SETTLING_S
        if is_quiet or viewer.process.poll() is not None or time.monotonic() > deadline:
            return used_s


def _median(steps: Any, block: tuple[int, int]) -> float:
    return float(np.median(_steps_of(steps, block)))


def _steps_of(steps: Any, block: tuple[int, int], column: int = _DURATION) -> Any:
    return steps[(steps[:, 0] - steps[:, 1] >= block[0]) & (steps[:, 0] <= block[1]), column]


def _step_figures(
    steps: Any, without: list[tuple[int, int]], watched: list[tuple[int, int]], uses: list[dict[str, float]]
) -> dict[str, float]:
    ratios: dict[str, list[float]] = {"p50": [], "p99": [], "processor": []}
    for block in watched:
        before = max((each for each in without if each[0] < block[0]), key=lambda each: each[0])
        after = min((each for each in without if each[0] > block[0]), key=lambda each: each[0])
        for name, share, column in _RATIOS:
            around = np.concatenate([_steps_of(steps, each, column) for each in (before, after)])
            ratio = np.quantile(_steps_of(steps, block, column), share) / np.quantile(around, share)
            ratios[name].append(float(ratio))
    low, middle, high = np.quantile(ratios["p50"], (0.25, 0.5, 0.75))
    processor = np.quantile(ratios["processor"], (0.25, 0.5, 0.75))
    return {
        "step_ratio": float(middle),
        "step_ratio_q1": float(low),
        "step_ratio_q3": float(high),
        "p99_ratio": float(np.median(ratios["p99"])),
        "processor_ratio": float(processor[1]),
        "processor_ratio_q1": float(processor[0]),
        "processor_ratio_q3": float(processor[2]),
        "cpu_percent": float(np.median([each["cpu_percent"] for each in uses])),
        "rss_mb": float(np.median([each["rss_mb"] for each in uses])),
    }


# ---- a program without and with its recording --------------------------------------------------------------

_PROGRAMS = {
    "plain": (),
    "recorded": ("-m", "gpuprof", "run", "--out", "{folder}/program.gpuprof"),
    "always-on": (
        "-m", "gpuprof", "run", "--every", "4s", "--for", "200ms", "--out", "{folder}/program.windows",
    ),
}  # fmt: skip
_WARMUP = 50  # steps


def measure_programs(rounds: int, seconds: float) -> dict[str, Any]:
    """Return the step of the training recorded and with windows of 5% of the time, over that of itself."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _PROGRAMS}
    names = [*_PROGRAMS]
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(_trained(_PROGRAMS[name], seconds))
    figures: dict[str, Any] = {"step_ms": float(np.median(found["plain"], axis=0)[0]) / 1e6}
    plain = np.array(found["plain"])
    for name in names[1:]:
        ratios = np.array(found[name]) / plain
        figures[name] = {
            key: [float(each) for each in np.quantile(ratios[:, column], (0.25, 0.5, 0.75))]
            for column, key in enumerate(("step_ratio", "p99_ratio", "processor_ratio"))
        }
    return figures


def _trained(words: Sequence[str], seconds: float) -> tuple[float, float, float]:
    """Return the median and the p99 of the steps of a program, and the median of their processor time."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-live-cost-") as name:
        folder = Path(name)
        (folder / "program.py").write_text(_TRAINING)
        command = [each.replace("{folder}", name) for each in words]
        with subprocess.Popen(
            [sys.executable, *command, str(folder / "program.py"), str(folder / "steps")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            deadline = time.monotonic() + _LONGEST_START_S
            while not (folder / "steps").exists() or (folder / "steps").stat().st_size < 24 * _WARMUP:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the program could not be started")
                time.sleep(0.05)
            time.sleep(seconds)
            assert process.stdin is not None
            process.stdin.close()
        steps = np.frombuffer((folder / "steps").read_bytes(), dtype=np.int64).reshape(-1, 3)[_WARMUP:]
    median, p99 = np.quantile(steps[:, _DURATION], (0.5, 0.99))
    return float(median), float(p99), float(np.median(steps[:, _PROCESSOR]))


# ---- a view of a million spans ----------------------------------------------------------------------------


def measure_million(spans: int, seconds: float) -> dict[str, float]:
    """Return what `gpuprof top` uses next to a run that has many spans and gets 10,000 a second."""
    with recorded(_SPANS, str(spans)) as (program, _):
        feed = Feed(program.run)
        total = 0
        while total < spans:
            snapshot = feed.poll()
            total += sum(int(each.spans) for each in snapshot.processes if isinstance(each.spans, int))
            time.sleep(0.05)
        begin_s = time.process_time()
        found = _watched_block(TOP.partition("=")[2], program, seconds)
        if isinstance(found, str):
            raise RuntimeError(found)
        _, figures = found
        fresh = Feed(program.run)
        begin_s = time.process_time()
        fresh.poll()
        figures["first_poll_ms"] = 1e3 * (time.process_time() - begin_s)
    return {"spans": total, **figures}


# ---- an hour ----------------------------------------------------------------------------------------------


class FastScreen:
    """A screen without a terminal, on which an interval takes no time."""

    size = (_COLUMNS, _LINES)

    def __init__(self, program: Recorded, intervals: int) -> None:
        self.now, self.drawn, self._left, self._program = 0.0, 0, intervals, program
        self.rss_bytes: list[int] = []

    def clock(self) -> float:
        """Return the simulated time."""
        return self.now

    def show(self, lines: list[str]) -> None:
        """Drop a frame."""
        self.drawn += len(lines)

    def wait_for_keys(self, seconds: float) -> str:
        """Have the program work for an interval, and note the memory of this process."""
        self.now += seconds
        process = self._program.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        self._left -= 1
        self.rss_bytes.append(_own_rss_bytes())
        return "q" if self._left <= 0 else ""


def _own_rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_hour(intervals: int) -> dict[str, float]:
    """Return the memory of a view after a twelfth of the intervals, and after all."""
    with recorded(_LINES_PROGRAM) as (program, _):
        screen = FastScreen(program, intervals)
        begin_s = time.process_time()
        LiveView(Feed(program.run), screen, 1.0, clock=screen.clock).run()
        took_s = time.process_time() - begin_s
    early = screen.rss_bytes[intervals // 12]
    return {
        "intervals": intervals,
        "rss_after_a_twelfth_mb": early / 1e6,
        "rss_at_the_end_mb": screen.rss_bytes[-1] / 1e6,
        "growth_mb": (screen.rss_bytes[-1] - early) / 1e6,
        "cpu_ms_an_interval": 1e3 * took_s / intervals,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Measure what a live view costs.")
    parser.add_argument("--rounds", type=int, default=5, help="blocks with each viewer (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a block (%(default)s)")
    parser.add_argument("--viewer", action="append", default=[], metavar="NAME=CMD", help="another viewer")
    parser.add_argument(
        "--parts", default="steps,programs,million,hour", help="what is measured (%(default)s)"
    )
    parser.add_argument("--spans", type=int, default=1_000_000, help="of the large run (%(default)s)")
    parser.add_argument("--intervals", type=int, default=3600, help="of the hour (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    viewers = dict(each.partition("=")[::2] for each in (TOP, *options.viewer))
    figures: dict[str, Any] = {}
    if "steps" in parts:
        figures["steps"] = measure_steps(viewers, options.rounds, options.seconds)
    if "programs" in parts:
        figures["programs"] = measure_programs(options.rounds, options.seconds)
    if "million" in parts:
        figures["million"] = measure_million(options.spans, options.seconds)
    if "hour" in parts:
        figures["hour"] = measure_hour(options.intervals)
    show_figures(figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
