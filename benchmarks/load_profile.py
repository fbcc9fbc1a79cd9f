# SPDX-License-Identifier: Apache-2.0
"""What `gpuprof load --profile` costs a request: service times with and without it, in one run.

    python benchmarks/load_profile.py [--requests 2000] [--rounds 7]

Each round runs every target once in each way, in a random order, as a closed loop in this process. A ratio
is that of the median service times of one round to those without a profile; the table has the median over
the rounds with its quartiles. `span per request` is a way that gpuprof does not
take: as `profile`, and with a span in it that has a name of its own for each request. `bytes` is what a
request adds to the files of the recording before it is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks._machine import describe_machine
from benchmarks._measure import Figure
from gpuprof import _native
from gpuprof.load.driver import DrivenLoad, DriveSettings, drive, drive_closed
from gpuprof.load.profiling import ProfiledLoad
from gpuprof.load.requests import service_ns
from gpuprof.load.targets.base import Target
from gpuprof.load.targets.in_process import CallableTarget, CoroutineTarget
from gpuprof.record.recording_folder import SEGMENTS

BUSY_TURNS = 2_000


def busy() -> int:
    """Compute for about 0.1 ms in Python."""
    return sum(range(BUSY_TURNS * 4))


async def turns() -> None:
    """Give way to other tasks twice."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def model_call() -> Callable[[], object] | None:
    """Return a call of a small model, None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    model, value = torch.nn.Sequential(*layers).eval(), torch.zeros(32, 256)

    def call() -> None:
        with torch.no_grad():
            model(value)

    return call


def targets() -> dict[str, Callable[[], Target]]:
    """Return what makes each target."""
    found: dict[str, Callable[[], Target]] = {
        "nothing": lambda: CallableTarget(lambda: None),
        "Python, 0.1 ms": lambda: CallableTarget(busy),
        "task of three turns": lambda: CoroutineTarget(turns),
    }
    call = model_call()
    if call is not None:
        found["model of 8 layers"] = lambda: CallableTarget(call)
    return found


class SpanPerRequest:
    """A target in a span with a name for each request."""

    def __init__(self, target: CallableTarget) -> None:
        self.target = target

    def prepare(self) -> None:
        """Load the target."""
        self.target.prepare()

    def call(self, index: int) -> int:
        """Call the target."""
        with _native.span(f"request {index}"):
            return self.target.call(index)

    def close(self) -> None:
        """Release the target."""
        self.target.close()


@dataclass(frozen=True, slots=True)
class Measured:
    """The median service time of a load, and the bytes of its recording per request, 0 without one."""

    service_ns: float
    file_bytes: float = 0.0


def run(target: Target, requests: int) -> DrivenLoad:
    """Send requests, one after the other."""
    if isinstance(target, CallableTarget) or hasattr(target, "call"):
        return drive_closed(target, count=requests)  # type: ignore[arg-type]
    return drive(target, np.zeros(requests, np.int64), DriveSettings(concurrency=1))


def measure(way: str, make: Callable[[], Target], requests: int) -> Measured | None:
    """Run a load in one way; None for one that does not exist for the target."""
    target: Any = make()
    if way == "without":
        return Measured(float(np.median(service_ns(run(target, requests).rows))))
    if way == "span per request":
        if not isinstance(target, CallableTarget):
            return None
        target = SpanPerRequest(target)
    folder = Path(tempfile.mkdtemp(prefix="gpuprof-load-profile-"))
    try:
        profile = ProfiledLoad(folder / "profile.gpuprof", target, requests)
        load = run(profile.profiled, requests)
        used = sum(each.stat().st_blocks * 512 for each in (profile.path / SEGMENTS).iterdir())
        profile.close(load)
    finally:
        shutil.rmtree(folder)
    return Measured(float(np.median(service_ns(load.rows))), used / requests)


WAYS = ("without", "profile", "span per request")


def measure_rounds(
    make: Callable[[], Target], requests: int, rounds: int
) -> dict[str, tuple[Figure, Figure, float]]:
    """Return for each way its ratio to no profile, what it adds in nanoseconds, and its bytes."""
    order = list(WAYS)
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS[1:]}
    for _ in range(rounds):
        random.shuffle(order)
        results = {way: measure(way, make, requests) for way in order}
        base = results["without"]
        assert base is not None
        for way in WAYS[1:]:
            result = results[way]
            if result is not None:
                added = result.service_ns - base.service_ns
                found[way].append((result.service_ns / base.service_ns, added, result.file_bytes))
    return {
        way: (
            Figure.of([ratio for ratio, _, _ in values]),
            Figure.of([added for _, added, _ in values]),
            float(np.median([size for _, _, size in values])),
        )
        for way, values in found.items()
        if values
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(describe_machine())
    print(f"{'target':<22}{'way':<18}{'ratio':>8}{'quartiles':>16}{'added us':>10}{'bytes':>8}")
    for name, make in targets().items():
        for way, (ratio, added, size) in measure_rounds(make, options.requests, options.rounds).items():
            quartiles = f"{ratio.first_quartile:.2f}-{ratio.third_quartile:.2f}"
            figures = f"{ratio.median:>8.2f}{quartiles:>16}{added.median / 1e3:>10.2f}{size:>8.0f}"
            print(f"{name:<22}{way:<18}{figures}", flush=True)


if __name__ == "__main__":
    main()
