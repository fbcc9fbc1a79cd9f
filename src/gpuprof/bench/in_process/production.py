# SPDX-License-Identifier: Apache-2.0
"""A model in production: stages of a pipeline, resources over time, A/B tests, regressions."""

from __future__ import annotations

import importlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gpuprof.bench.failures import reason_of
from gpuprof.bench.in_process.validation import StatisticalValidation, StatisticalValidator
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.measure.memory import resident_bytes
from gpuprof.bench.measure.resources import SAMPLE_EVERY_S, ResourceMonitor, Series
from gpuprof.bench.models.pipeline import Pipeline
from gpuprof.errors import BenchmarkError

PIPELINE_SAMPLES = 100
_ROLLOUT_EFFECT = 0.2
_HIGHER_IS_BETTER = (
    "throughput", "qps", "per_s", "rate_per", "ips", "accuracy", "precision", "recall", "f1", "speedup",
    "request_rate", "hit_rate", "cosine",
)  # fmt: skip


class ProductionBenchmarkingProfiler:
    """Measures what surrounds a model in production. Without `enable_monitoring` no resources are read."""

    def __init__(self, enable_monitoring: bool = True) -> None:
        self.enable_monitoring = enable_monitoring

    def profile_end_to_end_pipeline(
        self,
        model: Callable[[Any], Any],
        dataset: Iterable[Any],
        preprocessing_fn: Callable[[Any], Any] | None = None,
        postprocessing_fn: Callable[[Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Run 100 samples of a data set, from its begin again where it has fewer, through the stages.

        Returns `{stage}_{mean,p95,max}` in seconds for preprocessing_time, inference_time,
        postprocessing_time, loading_time (of the data set) and end_to_end_latency (without loading), and in
        bytes for memory_usage (of this process). `cpu_per_wall` is processor time over wall time,
        `bottleneck` the stage with the largest mean. Raises BenchmarkError for an empty data set.
        """
        feed = _Feed(dataset)
        stages = {
            name: function
            for name, function in (("preprocess", preprocessing_fn), ("postprocess", postprocessing_fn))
            if function is not None
        }
        pipeline = Pipeline(model, synchronize=CallableSystem(model).synchronize, **stages)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        times = pipeline.measure(feed)
        cpu_per_wall = (time.process_time() - begin_cpu_s) / (time.perf_counter() - begin_s)
        seconds = {
            "preprocessing_time": times.preprocess_s,
            "inference_time": times.inference_s,
            "postprocessing_time": times.postprocess_s,
            "loading_time": feed.loading_s,
        }
        found: dict[str, Any] = {}
        for name, values in (
            *seconds.items(), ("memory_usage", feed.memory_bytes), ("end_to_end_latency", times.total_s),
        ):  # fmt: skip
            found |= _figures(name, values)
        bottleneck = max(seconds, key=lambda name: found[f"{name}_mean"])
        return {**found, "cpu_per_wall": cpu_per_wall, "bottleneck": bottleneck}

    def monitor_resource_utilization(
        self, duration: float = 60.0, workload: Callable[[], object] | None = None
    ) -> Series:
        """Return cpu_usage (percent of one processor), memory_usage (MB) and timestamp (s), 10 a second.

        `workload` is called again and again meanwhile; without one, this process is read while its other
        threads work.
        """
        if not self.enable_monitoring:
            return {"cpu_usage": [], "memory_usage": [], "timestamp": []}
        with ResourceMonitor() as monitor:
            end_s = time.monotonic() + duration
            while time.monotonic() < end_s:
                if workload is None:
                    time.sleep(max(0.0, min(SAMPLE_EVERY_S, end_s - time.monotonic())))
                else:
                    workload()
        return monitor.series

    def setup_ab_testing_framework(
        self, model_a: Any, model_b: Any, traffic_split: float = 0.5
    ) -> dict[str, Any]:
        """Return the configuration of an A/B test; model A gets the fraction `traffic_split`."""
        if not 0 < traffic_split < 1:
            raise BenchmarkError(
                "invalid_traffic",
                f"traffic_split={traffic_split!r}: each model needs requests",
                hint="use a fraction between 0 and 1",
            )
        return {
            "model_a": model_a,
            "model_b": model_b,
            "traffic_split": traffic_split,
            "metrics_a": _no_metrics(),
            "metrics_b": _no_metrics(),
            "total_requests": 0,
            "requests_a": 0,
            "requests_b": 0,
        }

    def run_ab_test(
        self, ab_config: dict[str, Any], dataset: Iterable[Any], num_samples: int = 1000, *, seed: int = 0
    ) -> dict[str, Any]:
        """Send samples of a data set to both models at random, and compare their latencies.

        A call that raises counts as an error of its model; `error_rate` is errors over the requests that the
        model got. Where a model has fewer than two latencies the result has the key `error` alone. The
        sampling unit is the request: the result is about these two objects in this process.
        """
        draw = random.Random(seed)  # noqa: S311 - traffic, no secret
        for sample in itertools.islice(_again_and_again(dataset), num_samples):
            side = "a" if draw.random() < ab_config["traffic_split"] else "b"
            ab_config["total_requests"] += 1
            ab_config[f"requests_{side}"] += 1
            _request(ab_config[f"model_{side}"], sample, ab_config[f"metrics_{side}"])
        latencies = [ab_config[f"metrics_{side}"]["latencies"] for side in "ab"]
        if min(map(len, latencies)) < 2:
            return {"error": f"too few requests that succeeded ({len(latencies[0])} and {len(latencies[1])})"}
        found = StatisticalValidator().validate_comparison(*latencies)
        return {
            **{f"model_{side}_performance": _performance(ab_config, side) for side in "ab"},
            "statistical_analysis": asdict(found),
            "recommendation": _rollout(found),
        }

    def detect_performance_regression(
        self,
        current_metrics: Mapping[str, float],
        baseline_metrics: Mapping[str, float],
        threshold: float = 0.1,
    ) -> dict[str, Any]:
        """Return the metrics of both that changed by more than `threshold`, as worse and better ones.

        Rates and scores, such as throughput and accuracy, are better when they rise; everything else, such as
        latency, memory and errors, when it falls. `change_percent` is None of a baseline of 0. To judge
        measurements with their uncertainty, use `gpuprof gate`.
        """
        worse: list[dict[str, Any]] = []
        better: list[dict[str, Any]] = []
        for metric, baseline in baseline_metrics.items():
            current = current_metrics.get(metric)
            if current is None or current == baseline:
                continue
            change = (current - baseline) / abs(baseline) if baseline else None
            if change is not None and abs(change) <= threshold:
                continue
            is_worse = (current < baseline) == is_better_when_higher(metric)
            row = {
                "metric": metric,
                "baseline": baseline,
                "current": current,
                "change_percent": None if change is None else 100 * change,
            }
            (worse if is_worse else better).append(row)
        advice = "no regression"
        if worse:
            advice = f"do not release: {', '.join(each['metric'] for each in worse)} became worse"
        return {
            "regressions": worse,
            "improvements": better,
            "alert_level": "HIGH" if worse else "LOW",
            "recommendation": advice,
        }

    def generate_capacity_planning_report(
        self, current_load: Mapping[str, float], projected_growth: float = 1.5, **plan: Any
    ) -> str:
        """Return a report of what a load needs after growth, as Markdown.

        As `gpuprof.bench.generate_capacity_planning_report`, whose result has the figures as fields too.
        """
        # Of the room `load`, which this one does not import: the package finds it by name.
        bench = importlib.import_module("gpuprof.bench")
        return str(bench.generate_capacity_planning_report(current_load, projected_growth, **plan))


def is_better_when_higher(metric: str) -> bool:
    """Whether a metric is a rate or a score, by its name; errors, latencies and sizes are not."""
    name = metric.lower()
    return "error" not in name and any(each in name for each in _HIGHER_IS_BETTER)


class _Feed:
    """The samples of a data set, with the seconds of getting each, and the memory after the one before."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self.loading_s: list[float] = []
        self.memory_bytes: list[float] = []
        self._samples = _again_and_again(dataset)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(PIPELINE_SAMPLES):
            begin_s = time.perf_counter()
            sample = next(self._samples)
            self.loading_s.append(time.perf_counter() - begin_s)
            yield sample
            memory = resident_bytes()
            self.memory_bytes += [] if memory is None else [float(memory)]


def _again_and_again(dataset: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of a data set, from the first again after the last. Raises BenchmarkError."""
    source = itertools.cycle(dataset) if iter(dataset) is dataset else dataset
    while True:
        is_empty = True
        for sample in source:
            is_empty = False
            yield sample
        if is_empty:
            raise BenchmarkError("no_samples", "the data set is empty", hint="give at least one sample")


def _figures(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, p95 and maximum; None where nothing could be read."""
    if not values:
        return {f"{name}_{each}": None for each in ("mean", "p95", "max")}
    return {
        f"{name}_mean": float(np.mean(values)),
        f"{name}_p95": float(np.quantile(values, 0.95)),
        f"{name}_max": max(values),
    }


def _no_metrics() -> dict[str, list[Any]]:
    return {"latencies": [], "accuracies": [], "errors": []}


def _request(model: Callable[[Any], Any], sample: Any, metrics: dict[str, list[Any]]) -> None:
    system = CallableSystem(model, (sample,))
    begin_s = time.perf_counter()
    try:
        system.run()
        system.synchronize()
    except Exception as error:
        # What a model raises is a figure of the test.
        metrics["errors"].append(reason_of(error))
        return
    metrics["latencies"].append(time.perf_counter() - begin_s)


def _performance(config: Mapping[str, Any], side: str) -> dict[str, float]:
    metrics = config[f"metrics_{side}"]
    return {
        "mean_latency": float(np.mean(metrics["latencies"])),
        "p95_latency": float(np.quantile(metrics["latencies"], 0.95)),
        "error_rate": len(metrics["errors"]) / config[f"requests_{side}"],
    }


def _rollout(found: StatisticalValidation) -> str:
    effect = found.effect_size or 0.0
    if not found.is_significant:
        return "no significant difference: run the test longer"
    if effect < 0:
        return "stop: model B is slower"
    if effect > _ROLLOUT_EFFECT:
        return "roll out model B gradually"
    return "marginal: model B is faster by little"
