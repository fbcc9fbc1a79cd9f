# SPDX-License-Identifier: Apache-2.0
"""What windows cost a training program: steps with and without them in one run, next to torch.profiler.

    python benchmarks/always_on.py [--rounds 3] [--every 6] [--for 2] [--json FILE|-]

Each round trains without windows, then with one window, in the same process and with the same model. Figures
are of steps outside of windows, in windows, and in the second after a window. The end of a window is compared
with the end of torch.profiler, its export and `key_averages()`, for the same number of steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

import gpuprof

# After gpuprof: it looks for the collector of operators while it is imported.
import torch  # isort: skip

from benchmarks._output import show_figures


class Training:
    """A training program of a small model; `steps` has the end of each step and its duration."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [each for _ in range(6) for each in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.values = torch.randn(64, 512)

    def step(self) -> tuple[int, int]:
        """Train one step; returns the time of day at its end and its duration, in nanoseconds."""
        begin_ns = time.perf_counter_ns()
        self.optimizer.zero_grad()
        self.model(self.values).square().mean().backward()
        self.optimizer.step()
        return time.time_ns(), time.perf_counter_ns() - begin_ns

    def run(self, seconds: float) -> list[tuple[int, int]]:
        """Train for some seconds."""
        until = time.monotonic() + seconds
        steps = []
        while time.monotonic() < until:
            steps.append(self.step())
        return steps


def measure(rounds: int, every_s: float, for_s: float) -> dict[str, Any]:
    """Return the figures of all rounds."""
    training = Training()
    training.run(2.0)
    # The process that closes windows imports while this one trains, once in a program.
    settled_ns = int(min(3.0, every_s / 2) * 1e9)
    without: list[int] = []
    found: dict[str, list[int]] = {"between": [], "inside": [], "after": []}
    costs: dict[str, list[int]] = {"begin_cost_ns": [], "end_cost_ns": []}
    steps_of_window = 100
    for number in range(rounds):
        without += [duration for _, duration in training.run(every_s)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "bench.windows")
            with gpuprof.windows(out=path, every=every_s, duration=for_s, gpu=False) as windows:
                begin_ns = time.time_ns()
                steps = training.run(every_s + for_s + 2.0)
            steps = [step for step in steps if step[0] > begin_ns + settled_ns]
            for window in windows.index["windows"]:
                if number:  # the first window of a process imports
                    for name, values in costs.items():
                        values.append(window[name])
                steps_of_window = window["steps"]
                _sort(steps, window, found)
    profiled = _end_of_torch_profiler(training, steps_of_window)
    return _figures(without, found, costs, profiled, for_s) | {"steps_of_window": steps_of_window}


def _sort(steps: list[tuple[int, int]], window: dict[str, Any], found: dict[str, list[int]]) -> None:
    begin_ns, end_ns = window["begin_unix_ns"], window["end_unix_ns"]
    for at_ns, duration_ns in steps:
        if at_ns < begin_ns:
            found["between"].append(duration_ns)
        elif at_ns - duration_ns > begin_ns and at_ns < end_ns - 20_000_000:
            found["inside"].append(duration_ns)
        elif end_ns < at_ns - duration_ns < end_ns + 1_000_000_000:
            found["after"].append(duration_ns)


def _end_of_torch_profiler(training: Training, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        profiler = torch.profiler.profile()
        profiler.start()
        for _ in range(steps):
            training.step()
        marks = [time.perf_counter()]
        profiler.stop()
        marks.append(time.perf_counter())
        profiler.export_chrome_trace(os.path.join(folder, "trace.json"))  # noqa: PTH118 - the interface takes text
        marks.append(time.perf_counter())
        profiler.key_averages()
        marks.append(time.perf_counter())
    names = ("stop_s", "export_s", "key_averages_s")
    return dict(zip(names, np.diff(marks).tolist(), strict=True))


def _figures(
    without: list[int],
    found: dict[str, list[int]],
    costs: dict[str, list[int]],
    profiled: dict[str, float],
    for_s: float,
) -> dict[str, Any]:
    medians = {name: float(np.median(values)) for name, values in found.items()}
    alone = float(np.median(without))
    begin_s, end_s = (float(np.median(costs[name])) / 1e9 for name in ("begin_cost_ns", "end_cost_ns"))
    inside = medians["inside"] / alone
    return {
        "step_ms": alone / 1e6,
        "between_ratio": medians["between"] / alone,
        "inside_ratio": inside,
        "between_p99_ratio": float(np.quantile(found["between"], 0.99) / np.quantile(without, 0.99)),
        "after_ratio": medians["after"] / alone,
        "after_p99_ratio": float(np.quantile(found["after"], 0.99) / np.quantile(without, 0.99)),
        "begin_ms": begin_s * 1e3,
        "end_ms": end_s * 1e3,
        # Of the steps' time, at 2 s a minute.
        "cost_percent": 100 * ((inside - 1) * 2 + begin_s + end_s) / 60,
        "torch_profiler": profiled,
        "end_against_stop_and_export": end_s / (profiled["stop_s"] + profiled["export_s"]),
        "end_against_key_averages": end_s / profiled["key_averages_s"],
        "window_s": for_s,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Measure what windows cost a training program.")
    parser.add_argument("--rounds", type=int, default=3, help="at least 2; the first warms up (%(default)s)")
    parser.add_argument("--every", type=float, default=6.0, help="seconds between windows (%(default)s)")
    parser.add_argument("--for", type=float, default=2.0, dest="for_s", help="its seconds (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; its default by default")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")
    if options.threads:
        torch.set_num_threads(options.threads)
    figures = measure(options.rounds, options.every, options.for_s)
    show_figures(figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
