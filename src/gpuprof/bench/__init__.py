# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what a model costs per call, with the uncertainty of the figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.layers import compare_layers
    from gpuprof.bench.accuracy.outputs_comparison import compare_outputs
    from gpuprof.bench.campaign.campaign import run_comparison
    from gpuprof.bench.campaign.plan import AccuracyPlan, CampaignPlan, Variant
    from gpuprof.bench.campaign.suite_file import read_suite
    from gpuprof.bench.data import Pipeline
    from gpuprof.bench.metrics import Metric
    from gpuprof.bench.recipes import RECIPES, Recipe, with_recipe
    from gpuprof.bench.results import read_results
    from gpuprof.bench.spec import SystemSpec
    from gpuprof.bench.startup import measure_startup
    from gpuprof.bench.suite import (
        BenchmarkConfig,
        SuiteError,
        run_benchmark_suite,
        run_inference_benchmark,
    )

_PLACES = {
    "RECIPES": "recipes",
    "AccuracyPlan": "campaign.plan",
    "BenchmarkConfig": "suite",
    "CampaignPlan": "campaign.plan",
    "Metric": "metrics",
    "Pipeline": "data",
    "Recipe": "recipes",
    "SuiteError": "suite",
    "SystemSpec": "spec",
    "Variant": "campaign.plan",
    "compare_layers": "accuracy.layers",
    "compare_outputs": "accuracy.outputs_comparison",
    "measure_startup": "startup",
    "read_results": "results",
    "read_suite": "campaign.suite_file",
    "run_benchmark_suite": "suite",
    "run_comparison": "campaign.campaign",
    "run_inference_benchmark": "suite",
    "with_recipe": "recipes",
}
__all__ = [
    "RECIPES",
    "AccuracyPlan",
    "BenchmarkConfig",
    "CampaignPlan",
    "Metric",
    "Pipeline",
    "Recipe",
    "SuiteError",
    "SystemSpec",
    "Variant",
    "compare_layers",
    "compare_outputs",
    "measure_startup",
    "read_results",
    "read_suite",
    "run_benchmark_suite",
    "run_comparison",
    "run_inference_benchmark",
    "with_recipe",
]


def __getattr__(name: str) -> Any:
    # A launch imports this package first: it must not pay for what it does not use.
    if name not in _PLACES:
        raise AttributeError(f"module 'gpuprof.bench' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"gpuprof.bench.{_PLACES[name]}"), name)
