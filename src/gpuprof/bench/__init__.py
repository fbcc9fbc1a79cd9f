# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what a model costs per call, with the uncertainty of the figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.layers import compare_layers
    from gpuprof.bench.accuracy.metrics import Metric
    from gpuprof.bench.accuracy.outputs_comparison import compare_outputs
    from gpuprof.bench.compare.plan import AccuracyPlan, ComparisonPlan, Variant, read_suite
    from gpuprof.bench.compare.run import run_comparison
    from gpuprof.bench.config import SystemSpec
    from gpuprof.bench.frameworks import with_recipe
    from gpuprof.bench.in_process.gpu import GPUProfiler
    from gpuprof.bench.in_process.inputs import create_dataloader
    from gpuprof.bench.in_process.latency import (
        AccuracyBenchmark,
        BenchmarkSuite,
        LatencyBenchmark,
        ModelBenchmark,
        ThroughputBenchmark,
    )
    from gpuprof.bench.in_process.performance_page import generate_performance_report
    from gpuprof.bench.in_process.placement import reset_memory_stats
    from gpuprof.bench.in_process.production import (
        ProductionBenchmarkingProfiler,
    )
    from gpuprof.bench.in_process.reporting import (
        BenchmarkLogger,
        PerformanceReporter,
    )
    from gpuprof.bench.in_process.scenario_plots import plot_benchmark_results
    from gpuprof.bench.in_process.validation import (
        StatisticalValidation,
        StatisticalValidator,
    )
    from gpuprof.bench.measure.resources import ResourceMonitor
    from gpuprof.bench.models.combinations import Cascade, Ensemble
    from gpuprof.bench.models.pipeline import Pipeline
    from gpuprof.bench.models.recipes import RECIPES, Recipe
    from gpuprof.bench.optimize.model_file import write_distilled, write_optimized
    from gpuprof.bench.ready_times import time_to_ready
    from gpuprof.bench.results.files import read_results
    from gpuprof.bench.suite import (
        BenchmarkConfig,
        SuiteError,
        run_benchmark_suite,
        run_inference_benchmark,
    )
    from gpuprof.bench.workers.startup import measure_startup

_PLACES = {
    "GPUProfiler": "in_process.gpu",
    "generate_performance_report": "in_process.performance_page",
    "plot_benchmark_results": "in_process.scenario_plots",
    "create_dataloader": "in_process.inputs",
    "reset_memory_stats": "in_process.placement",
    "RECIPES": "models.recipes",
    "StatisticalValidation": "in_process.validation",
    "StatisticalValidator": "in_process.validation",
    "ProductionBenchmarkingProfiler": "in_process.production",
    "ResourceMonitor": "measure.resources",
    "AccuracyBenchmark": "in_process.latency",
    "BenchmarkSuite": "in_process.latency",
    "LatencyBenchmark": "in_process.latency",
    "ModelBenchmark": "in_process.latency",
    "ThroughputBenchmark": "in_process.latency",
    "BenchmarkLogger": "in_process.reporting",
    "PerformanceReporter": "in_process.reporting",
    "AccuracyPlan": "compare.plan",
    "BenchmarkConfig": "suite",
    "Cascade": "models.combinations",
    "ComparisonPlan": "compare.plan",
    "Ensemble": "models.combinations",
    "Metric": "accuracy.metrics",
    "Pipeline": "models.pipeline",
    "Recipe": "models.recipes",
    "SuiteError": "suite",
    "SystemSpec": "config",
    "Variant": "compare.plan",
    "compare_layers": "accuracy.layers",
    "compare_outputs": "accuracy.outputs_comparison",
    "measure_startup": "workers.startup",
    "read_results": "results.files",
    "read_suite": "compare.plan",
    "run_benchmark_suite": "suite",
    "run_comparison": "compare.run",
    "run_inference_benchmark": "suite",
    "time_to_ready": "ready_times",
    "with_recipe": "frameworks",
    "write_distilled": "optimize.model_file",
    "write_optimized": "optimize.model_file",
}
# Names of the room `load`, which this one does not import: they are found at their first use.
_OF_LOAD = {
    "BenchmarkResult": "mlperf_benchmark",
    "BenchmarkScenario": "mlperf_benchmark",
    "BenchmarkScenarios": "mlperf_benchmark",
    "CapacityReport": "capacity_report",
    "MLPerfBenchmark": "mlperf_benchmark",
    "VariableLoadResult": "stress",
    "generate_capacity_planning_report": "capacity_report",
    "sustained_load_test": "stress",
    "variable_load_test": "stress",
}
__all__ = [
    "RECIPES",
    "AccuracyBenchmark",
    "AccuracyPlan",
    "BenchmarkConfig",
    "BenchmarkLogger",
    "BenchmarkResult",
    "BenchmarkScenario",
    "BenchmarkScenarios",
    "BenchmarkSuite",
    "CapacityReport",
    "Cascade",
    "ComparisonPlan",
    "Ensemble",
    "GPUProfiler",
    "LatencyBenchmark",
    "MLPerfBenchmark",
    "Metric",
    "ModelBenchmark",
    "PerformanceReporter",
    "Pipeline",
    "ProductionBenchmarkingProfiler",
    "Recipe",
    "ResourceMonitor",
    "StatisticalValidation",
    "StatisticalValidator",
    "SuiteError",
    "SystemSpec",
    "ThroughputBenchmark",
    "VariableLoadResult",
    "Variant",
    "compare_layers",
    "compare_outputs",
    "create_dataloader",
    "generate_capacity_planning_report",
    "generate_performance_report",
    "measure_startup",
    "plot_benchmark_results",
    "read_results",
    "read_suite",
    "reset_memory_stats",
    "run_benchmark_suite",
    "run_comparison",
    "run_inference_benchmark",
    "sustained_load_test",
    "time_to_ready",
    "variable_load_test",
    "with_recipe",
    "write_distilled",
    "write_optimized",
]


def __getattr__(name: str) -> Any:
    # A process run imports this package first: it must not pay for what it does not use.
    if name not in __all__:
        raise AttributeError(f"module 'gpuprof.bench' has no attribute {name!r}")
    import importlib

    room, module = ("load", _OF_LOAD[name]) if name in _OF_LOAD else ("bench", _PLACES[name])
    return getattr(importlib.import_module(f"gpuprof.{room}.{module}"), name)
