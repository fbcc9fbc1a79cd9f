# SPDX-License-Identifier: Apache-2.0
"""What each way to time a call reads for one that does nothing, in nanoseconds a call, in one run.

    python benchmarks/harness.py [--rounds 15] [--json FILE]

The call is an empty Python function. Contestants run in rounds, each round in a random order; the figure is
the median over the rounds, with quartiles. `latency` reads the clock around every call, since it keeps
every call's time; timeit and the others read it around a loop, as `throughput` does. pytest-benchmark takes
part where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gpuprof
from benchmarks._machine import describe_code, describe_machine
from benchmarks._measure import Figure
from gpuprof.bench.measure.timer import CallTimer

CALLS = 100_000
PYTEST_FILE = """
def nothing():
    pass


def test_null(benchmark):
    benchmark.pedantic(nothing, iterations=100_000, rounds=5, warmup_rounds=1)
"""


def nothing() -> None:
    pass


def gpuprof_latency() -> float:
    result = gpuprof.benchmark(nothing, iterations=CALLS, warmup=1_000)
    return float(result.quantile(0.5) or 0.0) * 1e9


def gpuprof_throughput() -> float:
    timer = CallTimer(nothing)
    timer.take(10, CALLS // 10)
    return sorted(timer.wall_ns)[5] / (CALLS // 10)


def plain_timeit() -> float:
    return min(timeit.repeat(nothing, number=CALLS // 10, repeat=10)) / (CALLS // 10) * 1e9


def median_timeit() -> float:
    return sorted(timeit.repeat(nothing, number=CALLS // 10, repeat=10))[5] / (CALLS // 10) * 1e9


def torch_timer() -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("nothing()", globals={"nothing": nothing}, num_threads=1)
    return float(timer.timeit(CALLS).median) * 1e9


def pytest_benchmark() -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_null.py").write_text(PYTEST_FILE, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--benchmark-json=out.json",
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
        written = json.loads(Path(folder, "out.json").read_text(encoding="utf-8"))
    return float(written["benchmarks"][0]["stats"]["median"]) * 1e9


def contestants() -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {
        "gpuprof latency": gpuprof_latency,
        "gpuprof throughput": gpuprof_throughput,
        "timeit, best of 10": plain_timeit,
        "timeit, median of 10": median_timeit,
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch.utils.benchmark"] = torch_timer
    if importlib.util.find_spec("pytest_benchmark") is not None:
        found["pytest-benchmark"] = pytest_benchmark
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine, order = describe_machine(), random.Random(0)
    timings: dict[str, list[float]] = {name: [] for name in contestants()}
    for _ in range(options.rounds):
        taking_part = list(contestants().items())
        for name, contestant in order.sample(taking_part, len(taking_part)):
            timings[name].append(contestant())
    figures = {name: Figure.of(values) for name, values in timings.items()}
    load = machine["load_average"]
    print(f"{machine['cpu']}, {machine['cores_usable']} cores, load average {load} before")
    base = figures["timeit, median of 10"].median
    for name, figure in figures.items():
        quartiles = f"{figure.first_quartile:.1f} to {figure.third_quartile:.1f}"
        print(f"{name:24}{figure.median:8.1f} ns  ({quartiles}){figure.median / base:8.2f}x timeit's median")
    if options.json is not None:
        report = {"machine": machine, "gpuprof": describe_code(), "ns_per_call": timings}
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
