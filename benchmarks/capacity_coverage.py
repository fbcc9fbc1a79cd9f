# SPDX-License-Identifier: Apache-2.0
"""Plans farms whose number of machines is known, and counts how often the interval holds it.

    python benchmarks/capacity_coverage.py [--farms 100] [--seed 0]

A random router gives each of k machines a Poisson process of its own, so each is an M/M/1 queue, whose p99 is
-ln(0.01) / (mu - lambda / k). From 8 process runs of 1,000 service times each, `plan_farm` has to find the
smallest k that meets a limit. It prints how often its 95% interval holds k, how wide it is, and how often the
plan and the formulas are exact.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from dataclasses import dataclass

import numpy as np

from benchmarks._machine import describe_machine
from gpuprof.bench.results.target import parse_target
from gpuprof.load.capacity import REQUESTS, RESAMPLES, plan_farm
from gpuprof.load.capacity_plan import Load, MachineModel, Router, ServiceRun

RUNS, SAMPLES = 8, 1_000
QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the plans of farms with a known prediction gave."""

    farms: int
    held: int
    exact: int
    exact_by_formula: int
    mean_width: float


def simulate_farms(
    farms: int, seed: int = 0, *, resamples: int = RESAMPLES, requests: int = REQUESTS
) -> Coverage:
    """Plan farms of random size and limit."""
    generator = np.random.default_rng(seed)
    held = exact = by_formula = 0
    widths = []
    for farm in range(farms):
        # The load at which one machine is at the limit, and the rate of all of them.
        utilization, rate = generator.uniform(0.4, 0.8), generator.uniform(3, 12)
        limit_s = -math.log(1 - QUANTILE) / (1 - utilization)
        true = math.ceil(rate / utilization)
        runs = [ServiceRun({1: generator.exponential(1.0, SAMPLES)}) for _ in range(RUNS)]
        plan = plan_farm(
            runs,
            Load(rate),
            parse_target(f"p99<{limit_s:.6f}s"),
            MachineModel(router=Router.RANDOM),
            resamples=resamples,
            requests=requests,
            seed=seed + farm,
        )
        low, high = plan.machines.low or 0, plan.machines.high or 0
        held += low <= true <= high
        exact += plan.machines.value == true
        by_formula += plan.formula == true
        widths.append(high - low)
    return Coverage(farms, held, exact, by_formula, float(np.mean(widths)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--farms", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe_machine())
    found = simulate_farms(options.farms, options.seed)
    print(f"{found.held} of {found.farms} intervals hold the machines (95% expected)")
    print(f"mean width {found.mean_width:.1f} machines")
    print(f"exact: {found.exact} plans, {found.exact_by_formula} formulas")


if __name__ == "__main__":
    main()
