# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: where an optimized model departs from its baseline, told apart from what it inherits.

Each layer of the optimized model is given the inputs that the baseline's layer of the same path got: the
local error is its own. Beside it stands the accumulated error, of the optimized model's own run up to there.
"""

from __future__ import annotations

from typing import Any

from gpuprof.bench.accuracy.layer_figures import LayersComparison
from gpuprof.bench.accuracy.layer_run import LayerRun
from gpuprof.bench.accuracy.tolerance import known_dtype
from gpuprof.bench.accuracy.variants import is_module, unharmed
from gpuprof.errors import BenchmarkError
from gpuprof.record.call_arguments import CallArguments, arguments


def compare_layers(
    baseline: Any,
    optimized: Any,
    inputs: Any,
    *,
    reference: bool = True,
    tolerance: float | None = None,
    optimized_dtype: str | None = None,
) -> LayersComparison:
    """Compare two modules of PyTorch layer by layer on one batch of inputs (as `gpuprof.benchmark` has).

    What a layer's error may be: `tolerance` where it is given; else, with `reference`, from the baseline's
    layer in float64 on the same inputs, as tolerance.py tells; without a reference SLACK roundings in the
    layer's type and 128 in float32. A copy of the baseline in float64, the optimized model's outputs of every
    layer, and each layer's run inside each module around it are what it costs: take a small batch.

    Both models are evaluated in evaluation mode and left as they were. Raises BenchmarkError.
    """
    for name, model in (("baseline", baseline), ("optimized", optimized)):
        if not is_module(model):
            raise BenchmarkError(
                f"{name}: compare_layers looks into modules of PyTorch, not {type(model).__name__}"
            )
    dtype = optimized_dtype and known_dtype(optimized_dtype, "optimized_dtype")
    run = LayerRun(baseline, optimized, tolerance, dtype)
    if reference and tolerance is None:
        run.add_reference(baseline)
    with unharmed(baseline, optimized):
        given = CallArguments(*arguments(inputs))
        run.run_optimized(given)
        run.run_baseline(given)
    return run.result()
