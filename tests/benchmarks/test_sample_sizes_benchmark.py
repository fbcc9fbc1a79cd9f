# SPDX-License-Identifier: Apache-2.0
"""The advised numbers of process runs, by simulation with fixed seeds: power and false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sample_sizes import NUMBERS, simulate_comparisons, simulate_gate
from gpuprof.bench.compare.advice import runs_needed
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.stats.ratio_test import compare_many, launches_needed


@pytest.mark.parametrize("count", NUMBERS)
def test_the_advised_size_finds_one_difference_among_many_comparisons(count: int) -> None:
    found = simulate_comparisons(count, repeats=150, seed=24)
    # 80% of 150 with a standard error of 3.3%; 5% with one of 1.8%.
    assert found.found >= 0.8 - 3 * 0.033
    assert found.false_alarms <= 0.05 + 3 * 0.018


@pytest.mark.parametrize("metric", [RunMetric.P99, RunMetric.MEMORY, RunMetric.P50])
def test_the_advised_size_of_a_gate_gives_every_row_a_verdict(metric: RunMetric) -> None:
    found = simulate_gate(2, repeats=60, changed=metric, seed=24)
    assert found.found >= 0.8 - 3 * 0.052
    assert found.conclusive is not None
    assert found.conclusive >= 0.8 - 3 * 0.052
    assert found.false_alarms <= 0.05 + 3 * 0.028


def test_more_comparisons_need_more_process_runs() -> None:
    sizes = [launches_needed(0.01, 0.03, margin=0.01, level=0.05 / count) for count in NUMBERS]
    assert sizes == sorted(set(sizes))


def test_advice_has_the_level_of_the_verdict() -> None:
    runs = (1 + 0.02 * np.linspace(-1, 1, 8)).tolist()
    slower = [1.02 * each for each in runs]

    def advised(count: int) -> int:
        equal = dict.fromkeys(range(1, count), (runs, runs))
        first = compare_many({0: (runs, slower), **equal})[0]
        assert first.verdict == "inconclusive"
        needed = runs_needed(first, 0.01)
        assert needed is not None
        return needed

    # By hand, with a deviation of 1.4% and ln(1.02 / 1.01) = 0.985%: 2 (2.80 * 1.42)^2 + 1 and, at a level of
    # 5% over 12, 2 (3.71 * 1.42)^2 + 2.
    assert advised(1) == pytest.approx(33, abs=1)
    assert advised(12) == pytest.approx(58, abs=2)
