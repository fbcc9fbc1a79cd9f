# SPDX-License-Identifier: Apache-2.0
"""Simulates comparisons at the advised numbers of process runs: what is found, and what is found wrongly.

    python benchmarks/sample_sizes.py [--repeats 400] [--seed 0]

For each number of comparisons that are judged together it prints the advised process runs a side, how often
one real difference among equal ones is found, and how often any difference is found where there is none. Then
the same of a gate's rows: medians and means that vary by 1%, tails by 4%, memory by 0.2%.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from dataclasses import dataclass

import numpy as np

from gpuprof.bench.gate.gate import POWER
from gpuprof.bench.gate.result import Thresholds
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.stats.ratio_test import (
    LogRatio,
    judge_ratios,
    launches_needed,
    log_ratio,
    required_runs,
)

NUMBERS = (1, 4, 12, 35)
VARIATION, CHANGE, MARGIN = 0.01, 0.03, 0.01
GATE_VARIATIONS = {
    RunMetric.P50: 0.01,
    RunMetric.P95: 0.03,
    RunMetric.P99: 0.04,
    RunMetric.MEAN: 0.01,
    RunMetric.MEMORY: 0.002,
}


@dataclass(frozen=True, slots=True)
class Simulated:
    """Fractions of the repeats at `runs` process runs a side.

    `found`: the real difference had its verdict; `false_alarms`: any verdict of a difference where all are
    equal, without a margin, with which there are next to none; `conclusive`: every equal row of a gate had a
    verdict.
    """

    runs: int
    found: float
    false_alarms: float
    conclusive: float | None = None


def simulate_comparisons(count: int, repeats: int, seed: int = 0) -> Simulated:
    """Simulate `count` comparisons that are judged together, one of which differs by CHANGE."""
    generator = np.random.default_rng(seed)
    runs = launches_needed(VARIATION, CHANGE, margin=MARGIN, level=0.05 / count)
    margins = dict.fromkeys(range(count), MARGIN)
    found = alarms = 0
    for _ in range(repeats):
        equal = {each: _ratio(generator, runs, VARIATION) for each in range(count)}
        judged = judge_ratios(equal, dict.fromkeys(equal, 0.0)).values()
        alarms += any(each.verdict in ("slower", "faster") for each in judged)
        different = {**equal, 0: _ratio(generator, runs, VARIATION, CHANGE)}
        found += judge_ratios(different, margins)[0].verdict == "slower"
    return Simulated(runs, found / repeats, alarms / repeats)


def simulate_gate(configurations: int, repeats: int, changed: RunMetric, seed: int = 0) -> Simulated:
    """Simulate a gate over so many configurations, with `changed` of one worse by twice its threshold."""
    generator, limits = np.random.default_rng(seed), Thresholds()
    rows = [(number, metric) for number in range(configurations) for metric in GATE_VARIATIONS]
    margins = {row: limits.of(row[1]) for row in rows}
    power = 1 - (1 - POWER) / len(rows)
    level = 0.05 / len(rows)
    advised = [
        required_runs(variation, limits.of(metric), level=level, power=power)
        for metric, variation in GATE_VARIATIONS.items()
    ]
    runs = max(each for each in advised if each is not None)
    found = alarms = conclusive = 0
    for _ in range(repeats):
        equal = {row: _ratio(generator, runs, GATE_VARIATIONS[row[1]]) for row in rows}
        without_margin = judge_ratios(equal, dict.fromkeys(equal, 0.0)).values()
        alarms += any(each.verdict in ("slower", "faster") for each in without_margin)
        conclusive += all(each.verdict == "same" for each in judge_ratios(equal, margins).values())
        change = 2 * limits.of(changed)
        worse = {**equal, (0, changed): _ratio(generator, runs, GATE_VARIATIONS[changed], change)}
        found += judge_ratios(worse, margins)[0, changed].verdict == "slower"
    return Simulated(runs, found / repeats, alarms / repeats, conclusive / repeats)


def _ratio(generator: np.random.Generator, runs: int, variation: float, change: float = 0.0) -> LogRatio:
    old, new = generator.lognormal(0, variation, (2, runs))
    found = log_ratio(old, new * (1 + change))
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"one change of {CHANGE:.0%} among equal ones, variation {VARIATION:.0%}, margin {MARGIN:.0%}")
    print("comparisons  advised runs  found  false alarms")
    for count in NUMBERS:
        each = simulate_comparisons(count, options.repeats, options.seed)
        print(f"{count:11}  {each.runs:12}  {each.found:5.0%}  {each.false_alarms:12.1%}")
    print("gate: a metric of one configuration worse by twice its threshold")
    print("rows  metric   advised runs  found  false alarms  all conclusive")
    for configurations in (1, 6):
        for metric in GATE_VARIATIONS:
            gate = simulate_gate(configurations, options.repeats, metric, options.seed)
            rows = configurations * len(GATE_VARIATIONS)
            print(
                f"{rows:4}  {metric!s:7}  {gate.runs:12}  {gate.found:5.0%}  {gate.false_alarms:12.1%}  "
                f"{gate.conclusive:14.0%}"
            )


if __name__ == "__main__":
    main()
