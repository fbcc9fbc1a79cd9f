# SPDX-License-Identifier: Apache-2.0
"""How precisely requests start when they are due: gpuprof's pacer, LoadGen, time.sleep, and asyncio.

    python benchmarks/load_pacing.py [--rate 1000] [--seconds 5] [--seed 5]

All run one Poisson plan in one process, one after the other. `late` is the start minus the planned time, KS
the distance of the gaps between starts from an exponential distribution (a perfect pacer has about 0.9 over
the square root of the number of requests). LoadGen makes a Poisson plan of its own, and is measured where
mlcommons-loadgen is installed, by the delays in its trace. The last line is the cost of a request to a target
that does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import numpy.typing as npt

from benchmarks._machine import describe_machine
from gpuprof import _native
from gpuprof.load.driver import drive
from gpuprof.load.probe import probe_ceiling
from gpuprof.load.requests import lateness_ns
from gpuprof.load.schedules import RateSchedule
from gpuprof.load.targets.in_process import CallableTarget

Nanoseconds = npt.NDArray[np.int64]
_LEAD_NS = 5_000_000


def of_pacer(plan: Nanoseconds) -> Nanoseconds:
    """Return the lateness of the hand-over, before Python runs."""
    pacer = _native.Pacer(plan)
    start_ns = time.monotonic_ns() + _LEAD_NS
    pacer.start(start_ns)
    while pacer.take() is not None:
        pass
    return pacer.released_ns() - start_ns - plan


def of_driver(plan: Nanoseconds) -> Nanoseconds:
    """Return the lateness of calls of a Python function."""
    return lateness_ns(drive(CallableTarget(lambda: None), plan).rows)


def of_sleep(plan: Nanoseconds) -> Nanoseconds:
    """Return the lateness of a loop around time.sleep."""
    late = np.zeros(len(plan), np.int64)
    start_ns = time.monotonic_ns() + _LEAD_NS
    for index, offset_ns in enumerate(plan.tolist()):
        left_ns = start_ns + offset_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        late[index] = time.monotonic_ns() - start_ns - offset_ns
    return late


def of_asyncio(plan: Nanoseconds) -> Nanoseconds:
    """Return the lateness of a loop around asyncio.sleep."""

    async def run() -> Nanoseconds:
        late = np.zeros(len(plan), np.int64)
        start_ns = time.monotonic_ns() + _LEAD_NS
        for index, offset_ns in enumerate(plan.tolist()):
            left_ns = start_ns + offset_ns - time.monotonic_ns()
            if left_ns > 0:
                await asyncio.sleep(left_ns / 1e9)
            late[index] = time.monotonic_ns() - start_ns - offset_ns
        return late

    return asyncio.run(run())


LOADGEN = """
import os, sys
import mlperf_loadgen as api

def issue(samples):
    api.QuerySamplesComplete([api.QuerySampleResponse(each.id, 0, 0) for each in samples])

settings, output, logs = api.TestSettings(), api.LogOutputSettings(), api.LogSettings()
settings.scenario, settings.mode = api.TestScenario.Server, api.TestMode.PerformanceOnly
settings.server_target_qps, settings.min_query_count = float(sys.argv[1]), int(sys.argv[2])
settings.server_target_latency_ns, settings.min_duration_ms = 10**9, 0
output.outdir, logs.log_output, logs.enable_trace = sys.argv[3], output, True
library = api.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
target = api.ConstructSUT(issue, lambda: None)
api.StartTestWithLogSettings(target, library, settings, logs, "no-audit.config")
os._exit(0)
"""


def of_loadgen(rate: float, count: int) -> tuple[Nanoseconds, Nanoseconds]:
    """Return the plan of LoadGen and its lateness: the delays of issuing, as its trace has them."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", LOADGEN, str(rate), str(count), folder]
        subprocess.run(words, check=True, timeout=600, stdout=subprocess.DEVNULL)
        text = (Path(folder) / "mlperf_log_trace.json").read_text(encoding="utf-8")
    pattern = r'"name":"Latency","ph": "C","pid":\d+,"ts":([\d.]+),"args":\{ "issue_delay":(\d+)'
    found = np.array([(float(at), float(late)) for at, late in re.findall(pattern, text)])
    found = found[np.argsort(found[:, 0])]
    return (found[:, 0] * 1e3).astype(np.int64), found[:, 1].astype(np.int64)


PACERS: dict[str, Callable[[Nanoseconds], Nanoseconds]] = {
    "gpuprof, native": of_pacer,
    "gpuprof, Python call": of_driver,
    "time.sleep": of_sleep,
    "asyncio.sleep": of_asyncio,
}


def distance_from_exponential(starts_ns: Nanoseconds) -> float:
    """Return the Kolmogorov-Smirnov distance of gaps from an exponential distribution of their mean."""
    gaps = np.sort(np.diff(starts_ns)).astype(np.float64)
    expected = 1 - np.exp(-gaps / gaps.mean())
    ranks = np.arange(len(gaps) + 1) / len(gaps)
    return float(max(np.abs(expected - ranks[:-1]).max(), np.abs(expected - ranks[1:]).max()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores_usable']} cores, load {machine['load_average']} before")
    plan = RateSchedule(options.rate, options.seconds).arrivals_ns(np.random.default_rng(options.seed))
    print(
        f"{len(plan):,} requests at {options.rate:g}/s; the plan's KS {distance_from_exponential(plan):.4f}"
    )
    first_p99 = None
    runs = [(name, plan, measure(plan)) for name, measure in PACERS.items()]
    if importlib.util.find_spec("mlperf_loadgen") is not None:
        runs.append(("LoadGen", *of_loadgen(options.rate, len(plan))))
    for name, planned, late in runs:
        p50, p99 = np.quantile(late, (0.5, 0.99)) / 1e3
        first_p99 = first_p99 or p99
        distance = distance_from_exponential(planned + late)
        print(
            f"{name:<22} late p50 {p50:8.1f} us, p99 {p99:8.1f} us ({p99 / first_p99:5.1f}x), "
            f"KS {distance:.4f}"
        )
    ceiling = probe_ceiling(requests=200_000).ceiling_per_s
    print(f"request to a target that does nothing: {1e6 / ceiling:.2f} us")


if __name__ == "__main__":
    main()
