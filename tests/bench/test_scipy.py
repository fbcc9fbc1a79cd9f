# SPDX-License-Identifier: Apache-2.0
"""SciPy is imported where statistics are worked out, and nowhere else; without it nothing is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprof.stats.distributions import approximate_binomial_quantile, binomial_quantile
from gpuprof.stats.quantiles import samples_needed

RUNS = Path(__file__).parents[1] / "golden" / "inputs"
MODELS = Path(__file__).parents[1] / "support" / "bench_models.py"

MEASURING = """
import sys
import gpuprof, gpuprof.bench.workers.measuring
from gpuprof.bench.config import Settings
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.measure.measure import measure
for options in ({"duration_s": 0.3}, {"iterations": 50, "quantile": 0.9}):
    found = measure(CallableSystem(lambda: sum(range(1000))), Settings(warmup=1, **options))
    assert found.failure is None, found.failure
print([name for name in sys.modules if name.partition(".")[0] == "scipy"])
"""

WITHOUT = """
import sys
sys.modules["scipy"] = None
from gpuprof.cli.main import execute
sys.exit(execute(sys.argv[1:]))
"""


BENCH_OF_ONE_RUN = """
import sys
from gpuprof.cli.main import execute
code = execute(sys.argv[1:])
print("scipy.stats" in sys.modules, "scipy.special" in sys.modules)
sys.exit(code)
"""


def test_results_of_one_process_run_import_the_special_functions_alone(run_python: Any) -> None:
    """`scipy.stats` takes half a second to import, about as long as a short benchmark."""
    words = ("bench", f"{MODELS}:doubled", "--input-shape", "3", "--iterations", "300", "--launches", "1")
    done = run_python("-c", BENCH_OF_ONE_RUN, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False True"


def test_a_process_that_measures_does_not_import_it(run_python: Any) -> None:
    """It would add tens of megabytes to the memory that is measured."""
    done = run_python("-c", MEASURING)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_summaries_of_one_run_do_not_import_it(run_python: Any) -> None:
    assert run_python("-c", WITHOUT, "summary", RUNS / "runs" / "new").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("bench", f"{MODELS}:doubled", "--input-shape", "3"),
        ("compare", f"a:{MODELS}:doubled,b:{MODELS}:printing", "--input-shape", "3", "--output-dir", "out"),
        ("gate", "--baseline", RUNS / "results/base.json", "--candidate", RUNS / "results/same.json"),
        ("summary", RUNS / "runs" / "new", "--against", RUNS / "runs" / "old"),
    ],
    ids=lambda words: words[0],
)
def test_without_it_the_command_names_the_extra(
    run_python: Any, tmp_path: Path, words: tuple[Any, ...]
) -> None:
    done = run_python("-c", WITHOUT, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "gpuprof-native[bench]" in done.stderr
    # Before anything was measured.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_the_ranks_while_measuring_are_those_of_the_binomial_up_to_one(quantile: float) -> None:
    needed = samples_needed(quantile)
    for count in [*range(needed, needed + 300), 10_000, 1_000_000]:
        for probability in (0.025, 0.5, 0.975):
            exact = binomial_quantile(count, quantile, probability)
            assert abs(approximate_binomial_quantile(count, quantile, probability) - exact) <= 1, count
