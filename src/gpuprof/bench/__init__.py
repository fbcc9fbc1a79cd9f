# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what a model costs per call, with the uncertainty of the figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.layers import compare_layers
    from gpuprof.bench.accuracy.outputs_comparison import compare_outputs
    from gpuprof.bench.data import Pipeline
    from gpuprof.bench.results import read_results
    from gpuprof.bench.startup import measure_startup
    from gpuprof.bench.suite import (
        BenchmarkConfig,
        SuiteError,
        run_benchmark_suite,
        run_inference_benchmark,
    )

_PLACES = {
    "BenchmarkConfig": "suite",
    "Pipeline": "data",
    "SuiteError": "suite",
    "compare_layers": "accuracy.layers",
    "compare_outputs": "accuracy.outputs_comparison",
    "measure_startup": "startup",
    "read_results": "results",
    "run_benchmark_suite": "suite",
    "run_inference_benchmark": "suite",
}
__all__ = [
    "BenchmarkConfig",
    "Pipeline",
    "SuiteError",
    "compare_layers",
    "compare_outputs",
    "measure_startup",
    "read_results",
    "run_benchmark_suite",
    "run_inference_benchmark",
]


def __getattr__(name: str) -> Any:
    # A launch imports this package first: it must not pay for what it does not use.
    if name not in _PLACES:
        raise AttributeError(f"module 'gpuprof.bench' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"gpuprof.bench.{_PLACES[name]}"), name)
