# SPDX-License-Identifier: Apache-2.0
"""Latency, throughput and accuracy of model objects in this process, on top of `gpuprof.benchmark`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.analyze.call_tree import load_tree
from gpuprof.analyze.summary import summarize
from gpuprof.bench.accuracy.outputs_comparison import compare_outputs
from gpuprof.bench.accuracy.outputs_report import OutputComparison
from gpuprof.bench.benchmark import benchmark_here
from gpuprof.bench.config import Settings
from gpuprof.bench.in_process.inputs import MakeInputs, maker_of
from gpuprof.bench.in_process.placement import (
    moved,
    on_device,
    reset_memory_stats,
    torch_module,
    without_gradients,
)
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.measure.memory import resident_bytes
from gpuprof.bench.results.result import Result
from gpuprof.bench.workers.measuring import record_run
from gpuprof.errors import BenchmarkError
from gpuprof.run.folder import RunFolder
from gpuprof.stats.quantiles import samples_needed

_QUANTILES = {"median": 0.5, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_LARGEST_BATCH = 1 << 16
_PROBE_S = 0.5
_SAMPLES = 256


class LatencyBenchmark:
    """The latency of one model on a device. Raises BenchmarkError where PyTorch finds no such device."""

    def __init__(self, model: Callable[..., Any], device: str = "cuda") -> None:
        self.device = device
        self.model = on_device(model, device)

    def benchmark(self, inputs: Any, num_iterations: int = 1000, warmup: int = 10) -> dict[str, Any]:
        """Return mean, median, p50, p90, p95, p99 and std in milliseconds, of calls that are waited for.

        `unreliable` names the quantiles for whose 95% interval there are too few samples. Raises
        BenchmarkError if a call fails.
        """
        settings = Settings(iterations=num_iterations, warmup=warmup)
        with without_gradients():
            return latency_figures(benchmark_here(self.model, moved(inputs, self.device), settings, None))

    def profile_layers(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the layers of a recorded run, the bottleneck first: name, calls, total_ms, self_ms, share.

        Raises RecordingError and RunError.
        """
        system = RecordedModel(self.model, moved(inputs, self.device))
        with tempfile.TemporaryDirectory(prefix="gpuprof-layers-") as folder, without_gradients():
            path = Path(folder) / "layers.gpuprof"
            record_run(system, path)
            rows = summarize(load_tree(RunFolder(path)), "layer").rows
        return [
            {
                "name": row.name,
                "calls": row.calls,
                "total_ms": row.total_ns / 1e6,
                "self_ms": row.own_ns / 1e6,
                "share": row.share,
            }
            for row in rows
        ]


class ThroughputBenchmark:
    """Throughput over batch sizes.

    `make_inputs` makes the inputs of a batch size, or `input_shape` is that of one sample; without both the
    inputs are the model's own: see `maker_of`.
    """

    def __init__(
        self,
        make_inputs: MakeInputs | None = None,
        device: str = "cpu",
        *,
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        self._make_inputs = make_inputs
        self._input_shape = input_shape
        self.device = device

    def benchmark_batch_sizes(
        self, model: Callable[..., Any], batch_sizes: Iterable[int], duration_sec: float = 60
    ) -> list[dict[str, Any]]:
        """Return for each batch size its latency (ms), samples_per_s, tokens_per_s and memory_mb.

        `tokens_per_s` is None unless the inputs are whole numbers, as tokens are. `memory_mb` is the peak of
        PyTorch's allocator on CUDA, else the memory of this process. Raises BenchmarkError if a call fails.
        """
        sizes = list(batch_sizes)
        if not sizes or min(sizes) < 1:
            raise BenchmarkError(
                "invalid_option", f"batch_sizes={sizes!r}", hint="use whole numbers from 1, such as [1, 8]"
            )
        placed = on_device(model, self.device)
        return [self._measure(placed, size, duration_sec) for size in sizes]

    def find_optimal_batch_size(
        self, model: Callable[..., Any], target_latency_ms: float = 100
    ) -> dict[str, Any] | None:
        """Return the measured batch size with the largest throughput whose p95 meets the target, or None.

        Sizes are doubled until one misses the target, then the gap is halved. Since latency need not rise
        with the batch size, every size that was measured is a candidate.
        """
        placed = on_device(model, self.device)
        measured: dict[int, dict[str, Any]] = {}

        def meets(size: int) -> bool:
            measured[size] = self._measure(placed, size, _PROBE_S)
            return bool(measured[size]["p95"] <= target_latency_ms)

        size = 1
        while size <= _LARGEST_BATCH and meets(size):
            size *= 2
        low, high = size // 2, size
        while high - low > 1 and low >= 1:
            middle = (low + high) // 2
            low, high = (middle, high) if meets(middle) else (low, middle)
        fitting = [each for each in measured.values() if each["p95"] <= target_latency_ms]
        return max(fitting, key=lambda each: each["samples_per_s"], default=None)

    def _measure(self, model: Callable[..., Any], size: int, duration_s: float) -> dict[str, Any]:
        make_inputs = maker_of(model, self._make_inputs, self._input_shape)
        inputs = moved(make_inputs(size), self.device)
        settings = Settings(duration_s=duration_s, warmup_limit_s=max(duration_s, _PROBE_S))
        reset_memory_stats()
        with without_gradients():
            figures = latency_figures(benchmark_here(model, inputs, settings, None))
        samples_per_s = size / (figures["mean"] / 1e3)
        tokens = _tokens_per_sample(inputs)
        return {
            "batch_size": size,
            **figures,
            "samples_per_s": samples_per_s,
            "tokens_per_s": None if tokens is None else samples_per_s * tokens,
            "memory_mb": _memory_mb(),
        }


class AccuracyBenchmark:
    """The outputs of an optimized model compared with its baseline's, on the batches of a loader."""

    def compare_outputs(
        self, model_baseline: Any, model_optimized: Any, test_loader: Any
    ) -> OutputComparison:
        """Return cosine, MSE, accuracy and figures of each class: see `gpuprof.bench.compare_outputs`."""
        return compare_outputs(model_baseline, model_optimized, test_loader)

    def analyze_numerical_stability(
        self,
        model_baseline: Any,
        model_optimized: Any,
        test_loader: Any = None,
        *,
        input_shape: tuple[int, ...] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return for each output NaN and infinite elements of both, largest absolute and relative error.

        Without a loader, 256 samples of normal numbers are compared: of `input_shape`, or of the model's own
        (see `maker_of`). These show no more than that: numbers that training data has may still overflow.
        """
        if test_loader is None:
            make_inputs = maker_of(model_baseline, None, input_shape)
            test_loader = [make_inputs(_SAMPLES)]
        found = compare_outputs(model_baseline, model_optimized, test_loader, classes=False)
        return {
            each.name: {
                "nan": each.optimized_not_finite.nan,
                "infinite": each.optimized_not_finite.infinite,
                "baseline_nan": each.baseline_not_finite.nan,
                "baseline_infinite": each.baseline_not_finite.infinite,
                "max_absolute_error": each.max_abs_error,
                "max_relative_error": each.max_relative_error,
            }
            for each in found.numerics
        }


class BenchmarkSuite:
    """Latency of several models on the same inputs, on a CPU unless `device` names another."""

    def __init__(self, models_dict: Mapping[str, Callable[..., Any]], device: str = "cpu") -> None:
        if not models_dict:
            raise BenchmarkError("no_variant", "the suite has no models", hint="give at least one")
        self.models = dict(models_dict)
        self.device = device
        self.results: dict[str, dict[str, Any]] = {}

    def run_all_benchmarks(self, test_data: Any) -> dict[str, dict[str, Any]]:
        """Measure each model on the test data into `results`. Raises BenchmarkError if a call fails."""
        for name, model in self.models.items():
            sys.stdout.write(f"Benchmarking {name}...\n")
            self.results[name] = LatencyBenchmark(model, self.device).benchmark(test_data)
        return self.results

    def generate_comparison_report(self) -> str:
        """Return a Markdown table with the speed-up over the first model; empty before the measurement."""
        if not self.results:
            return ""
        from gpuprof.bench.in_process.reporting import markdown_table

        first = next(iter(self.results.values()))
        rows = [
            [
                name,
                *(f"{each[key]:.3f}" for key in ("p50", "p95", "p99")),
                f"{first['p50'] / each['p50']:.1f}x",
            ]
            for name, each in self.results.items()
        ]
        return markdown_table(["Model", "p50 (ms)", "p95 (ms)", "p99 (ms)", "Speedup"], rows)


class ModelBenchmark(BenchmarkSuite):
    """A suite with a metric of your own: override `measure_custom_metric`."""

    def measure_custom_metric(self, model: Any, device: str) -> Any:
        """Return the metric of a model that is on the device; None adds nothing."""

    def run_all_benchmarks(self, test_data: Any) -> dict[str, dict[str, Any]]:
        """Measure each model, then its metric into the key `custom_metric`."""
        super().run_all_benchmarks(test_data)
        for name, model in self.models.items():
            value = self.measure_custom_metric(model, self.device)
            self.results[name] |= {} if value is None else {"custom_metric": value}
        return self.results


class RecordedModel(CallableSystem):
    """A callable whose layers are recorded, where it is a module."""

    def __init__(self, model: Callable[..., Any], inputs: Any) -> None:
        super().__init__(model, inputs)
        self.model = model


def latency_figures(result: Result) -> dict[str, Any]:
    """Return the figures of a result in milliseconds; see `LatencyBenchmark.benchmark`."""
    milliseconds = result.samples * 1e3
    quantiles = {name: float(np.quantile(milliseconds, each)) for name, each in _QUANTILES.items()}
    return {
        "mean": float(milliseconds.mean()),
        **quantiles,
        "std": float(milliseconds.std(ddof=1)) if len(milliseconds) > 1 else 0.0,
        "unreliable": [name for name, each in _QUANTILES.items() if len(milliseconds) < samples_needed(each)],
    }


def _memory_mb() -> float | None:
    torch = torch_module()
    if torch is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 1e6
    resident = resident_bytes()
    return None if resident is None else resident / 1e6


def _tokens_per_sample(inputs: Any) -> int | None:
    first = inputs[0] if isinstance(inputs, tuple) and inputs else inputs
    shape = getattr(first, "shape", ())
    is_whole = "int" in str(getattr(first, "dtype", ""))
    return int(np.prod(shape[1:])) if is_whole and len(shape) > 1 else None
