# SPDX-License-Identifier: Apache-2.0
"""Production profile: stages, resources, A/B tests, regressions; time and memory are played."""

from __future__ import annotations

import itertools
import json
import math
import threading
from typing import Any

import pytest

from gpuprof.bench import ProductionBenchmarkingProfiler, ResourceMonitor
from gpuprof.errors import BenchmarkError

STAGES = ("preprocessing_time", "inference_time", "postprocessing_time", "memory_usage", "end_to_end_latency")


def test_a_pipeline_has_the_figures_of_each_stage() -> None:
    order: list[str] = []

    def stage(name: str) -> Any:
        def work(value: int) -> int:
            order.append(name)
            if name == "inference":
                sum(range(20_000))
            return value

        return work

    found = ProductionBenchmarkingProfiler().profile_end_to_end_pipeline(
        stage("inference"), [1, 2, 3], stage("before"), stage("after")
    )
    assert order == ["before", "inference", "after"] * 100
    assert {f"{name}_{each}" for name in STAGES for each in ("mean", "p95", "max")} <= found.keys()
    assert found["bottleneck"] == "inference_time"
    for name in (*STAGES, "loading_time"):
        assert 0 < found[f"{name}_mean"] <= found[f"{name}_max"]
        assert found[f"{name}_p95"] <= found[f"{name}_max"]
    parts = sum(found[f"{name}_mean"] for name in STAGES[:3])
    assert found["end_to_end_latency_mean"] == pytest.approx(parts)
    assert found["cpu_per_wall"] > 0


def test_an_iterator_is_read_again_and_an_empty_data_set_refused() -> None:
    seen: list[int] = []
    ProductionBenchmarkingProfiler().profile_end_to_end_pipeline(seen.append, iter([1, 2, 3]))
    assert seen == [1, 2, 3] * 33 + [1]
    for empty in ([], iter(())):
        with pytest.raises(BenchmarkError) as raised:
            ProductionBenchmarkingProfiler().profile_end_to_end_pipeline(seen.append, empty)
        assert raised.value.code == "no_samples"


def test_the_monitor_reads_rates_between_its_samples() -> None:
    clock, processor, memory = itertools.count(100.0, 2.0), itertools.count(5.0, 1.0), itertools.count(1)
    monitor = ResourceMonitor(
        3600.0,
        clock_s=lambda: next(clock),
        processor_s=lambda: next(processor),
        memory_bytes=lambda: next(memory) * 1_000_000,
    )
    for _ in range(3):
        monitor.read()
    assert monitor.series == {
        "cpu_usage": [50.0, 50.0, 50.0],
        "memory_usage": [2.0, 3.0, 4.0],
        "timestamp": [2.0, 4.0, 6.0],
    }


def test_resources_are_read_while_the_workload_runs() -> None:
    calls: list[str] = []
    series = ProductionBenchmarkingProfiler().monitor_resource_utilization(
        0.05, lambda: calls.append(threading.current_thread().name)
    )
    assert set(calls) == {threading.current_thread().name}
    assert len(series["cpu_usage"]) == len(series["memory_usage"]) == len(series["timestamp"]) >= 1
    assert all(each > 0 for each in series["memory_usage"])
    off = ProductionBenchmarkingProfiler(enable_monitoring=False)
    assert off.monitor_resource_utilization(3600.0) == {"cpu_usage": [], "memory_usage": [], "timestamp": []}


def failing(sample: int) -> int:
    if sample % 2:
        raise ValueError("odd")
    return sample


def test_error_rates_are_of_the_requests_that_a_model_got() -> None:
    profiler = ProductionBenchmarkingProfiler()
    config = profiler.setup_ab_testing_framework(failing, abs, traffic_split=0.2)
    found = profiler.run_ab_test(config, range(1000), num_samples=1000)
    assert config["total_requests"] == config["requests_a"] + config["requests_b"] == 1000
    assert 140 <= config["requests_a"] <= 260  # 0.2 of 1000, five deviations of 13
    errors = len(config["metrics_a"]["errors"])
    assert found["model_a_performance"]["error_rate"] == errors / config["requests_a"]
    assert found["model_b_performance"]["error_rate"] == 0.0
    assert {"is_significant", "p_value", "effect_size"} <= found["statistical_analysis"].keys()
    json.dumps(found)


def test_models_without_requests_have_an_error() -> None:
    profiler = ProductionBenchmarkingProfiler()
    config = profiler.setup_ab_testing_framework(abs, abs)
    assert profiler.run_ab_test(config, [1], num_samples=1).keys() == {"error"}
    for split in (0, 1, -0.5, math.inf):
        with pytest.raises(BenchmarkError) as raised:
            profiler.setup_ab_testing_framework(abs, abs, traffic_split=split)
        assert raised.value.code == "invalid_traffic"


def test_falling_throughput_is_worse() -> None:
    detect = ProductionBenchmarkingProfiler().detect_performance_regression
    baseline = {"latency": 10.0, "throughput": 100.0, "accuracy": 0.9, "error_rate": 0.0, "memory_usage": 1.0}
    found = detect({"latency": 5.0, "throughput": 50.0, "accuracy": 0.89, "error_rate": 0.1}, baseline)
    assert [each["metric"] for each in found["regressions"]] == ["throughput", "error_rate"]
    assert [each["metric"] for each in found["improvements"]] == ["latency"]
    assert found["regressions"][0]["change_percent"] == -50.0
    assert found["regressions"][1]["change_percent"] is None
    assert found["alert_level"] == "HIGH"
    same = detect(baseline, baseline)
    assert (same["regressions"], same["improvements"], same["alert_level"]) == ([], [], "LOW")
    assert detect({"latency": 10.9}, {"latency": 10.0})["alert_level"] == "LOW"
    assert detect({"latency": 10.9}, {"latency": 10.0}, threshold=0.05)["alert_level"] == "HIGH"
