# SPDX-License-Identifier: Apache-2.0
"""What reading resources next to a measurement costs: median and p99 of a call with and without it.

The two take turns in one process, so that a drift of the machine affects both. The ratio of their medians has
the interval of the rounds (Welch, over logarithms). Also printed: the size of a series per minute.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.measure.measure import MeasuringLoop
from gpuprof.bench.measure.resources import ResourceMonitor
from gpuprof.bench.serialization import to_plain
from gpuprof.stats.ratio_test import compare


def model() -> Callable[[], object]:
    weights = np.random.default_rng(0).standard_normal((96, 96))
    return lambda: weights @ weights @ weights


def measured(call: Callable[[], object], duration_s: float, *, monitored: bool) -> tuple[np.ndarray, float]:
    """Return the seconds of each call, and the bytes of its series per minute."""
    settings = Settings(duration_s=duration_s, iterations=10**6, warmup=200)
    if not monitored:
        return MeasuringLoop(call, settings).run().samples, 0.0
    monitor = ResourceMonitor()
    loop = MeasuringLoop(call, settings, progress=lambda *_: monitor.read_early())
    with monitor:
        found = loop.run()
    series = monitor.resources()
    return found.samples, len(json.dumps(to_plain(series))) / series.time_s[-1] * 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--duration", type=float, default=1.0)
    options = parser.parse_args()
    call = model()
    figures: dict[tuple[bool, float], list[float]] = {}
    sizes = []
    for number in range(2 * options.rounds):
        monitored = number % 4 in (1, 2)
        samples, size = measured(call, options.duration, monitored=monitored)
        sizes += [size] if monitored else []
        for quantile in (0.5, 0.99):
            figures.setdefault((monitored, quantile), []).append(float(np.quantile(samples, quantile)))
    for quantile in (0.5, 0.99):
        found = compare(figures[False, quantile], figures[True, quantile])
        ends = "no interval" if found.low is None else f"95% CI {found.low:.4f} to {found.high:.4f}"
        print(
            f"p{quantile * 100:g} with the series over without: {found.ratio:.4f} ({ends}), {found.verdict}"
        )
    print(f"size of a series: {np.median(sizes) / 1e3:.1f} kB per minute")


if __name__ == "__main__":
    main()
