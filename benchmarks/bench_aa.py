# SPDX-License-Identifier: Apache-2.0
"""Compares a program with itself, again and again, and counts how often that is called different.

    python benchmarks/bench_aa.py [--pairs 3] [--launches 6] [--margin 0.01] [--seed 0]

Each pair is two configurations that are one and the same, launched in fresh processes in a counterbalanced
order. With a margin of 0 about 5 of 100 pairs are expected to be called different; with one, fewer. For
scale it also prints how many there would be if every call counted as independent, a common mistake.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks._machine import describe_machine
from gpuprof.bench.benchmark import plan_for, run_callables
from gpuprof.bench.config import Settings
from gpuprof.stats.ratio_test import compare, log_ratio


def work() -> float:
    """Multiply two small matrices: some microseconds of arithmetic."""
    return float((_LEFT @ _LEFT)[0, 0])


_LEFT = np.random.default_rng(0).random((64, 64))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores_usable']} cores, load {machine['load_average']} before")
    plan = plan_for(work, settings=Settings(duration_s=0.5, warmup_limit_s=2.0))
    different = at_zero = naive = 0
    for pair in range(options.pairs):
        seed = options.seed + pair
        results = run_callables({"A": plan, "A again": plan}, options.launches, seed=seed).results()
        first, second = results["A"], results["A again"]
        figures = first.launch_figures(), second.launch_figures()
        verdict = compare(*figures, margin=options.margin)
        different += verdict.verdict in ("slower", "faster")
        at_zero += compare(*figures, margin=0).verdict in ("slower", "faster")
        by_calls = log_ratio(first.measurements[0].samples, second.measurements[0].samples)
        naive += by_calls is not None and by_calls.p_value <= 0.05
        print(f"pair {pair + 1}: {verdict}")
    print(
        f"called different, of {options.pairs}: {different} with a margin of {options.margin:.1%}, "
        f"{at_zero} with none, {naive} when the calls of one launch each count as independent"
    )


if __name__ == "__main__":
    main()
