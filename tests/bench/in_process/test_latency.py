# SPDX-License-Identifier: Apache-2.0
"""Latency, throughput, accuracy and suites of objects in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuprof.bench import (
    AccuracyBenchmark,
    BenchmarkSuite,
    LatencyBenchmark,
    ModelBenchmark,
    ThroughputBenchmark,
)
from gpuprof.bench.in_process import latency
from gpuprof.errors import BenchmarkError

torch = pytest.importorskip("torch")


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()


def test_latency_has_the_asked_keys_and_count() -> None:
    calls: list[Any] = []
    found = LatencyBenchmark(calls.append, device="cpu").benchmark(1, num_iterations=30, warmup=4)
    assert len(calls) == 34
    assert {"mean", "median", "p50", "p95", "p99", "std"} <= found.keys()
    assert 0 < found["p50"] <= found["p95"] <= found["p99"]
    # 5 / 0.1 calls and more are needed beyond p90.
    assert "p99" in found["unreliable"]
    assert "p50" not in found["unreliable"]


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BenchmarkError) as raised:
        LatencyBenchmark(network())
    assert raised.value.code == "no_such_device"


def test_layers_are_those_of_the_model() -> None:
    rows = LatencyBenchmark(network(), device="cpu").profile_layers(torch.zeros(2, 16))
    assert {"0", "1", "2"} <= {each["name"] for each in rows}
    assert [each["self_ms"] for each in rows] == sorted((each["self_ms"] for each in rows), reverse=True)


def test_throughput_is_samples_over_time() -> None:
    found = ThroughputBenchmark(lambda size: torch.zeros(size, 7, dtype=torch.int64)).benchmark_batch_sizes(
        lambda batch: batch.sum(), [1, 4], duration_sec=0.05
    )
    assert [each["batch_size"] for each in found] == [1, 4]
    for each in found:
        assert each["samples_per_s"] == pytest.approx(each["batch_size"] / (each["mean"] / 1e3))
        assert each["tokens_per_s"] == pytest.approx(7 * each["samples_per_s"])
        assert each["memory_mb"] > 0


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [
        (lambda size: 10.0 + size, 90),  # 100 ms at 90: found by halving between 64 and 128
        (lambda size: 50.0 if size in (1, 2, 4) else 101.0, 4),
        (lambda size: 10.0 * size**2, 3),
        (lambda size: 200.0, None),
    ],
)
def test_the_optimal_batch_size_meets_the_target(
    monkeypatch: pytest.MonkeyPatch, latency_ms: Any, expected: int | None
) -> None:
    class Played(ThroughputBenchmark):
        def _measure(self, model: Any, size: int, duration_s: float) -> dict[str, Any]:
            milliseconds = latency_ms(size)
            return {"batch_size": size, "p95": milliseconds, "samples_per_s": size}

    found = Played(lambda size: None).find_optimal_batch_size(len, target_latency_ms=100)
    assert (None if found is None else found["batch_size"]) == expected


def test_accuracy_and_stability() -> None:
    model = network()
    broken = network()
    with torch.no_grad():
        broken[2].bias[1] = float("nan")
    batches = [torch.randn(4, 16), torch.randn(4, 16)]
    assert AccuracyBenchmark().compare_outputs(model, model, batches).samples == 8
    (found,) = AccuracyBenchmark().analyze_numerical_stability(model, broken, batches).values()
    assert (found["nan"], found["baseline_nan"], found["infinite"]) == (8, 0, 0)
    assert found["max_absolute_error"] > 0


def test_a_suite_measures_each_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        latency,
        "latency_figures",
        lambda result: {"p50": 3.0 if result.name == "abs" else 1.0, "p95": 4.0, "p99": 5.0},
    )
    suite = BenchmarkSuite({"slow": abs, "fast": round})
    assert suite.generate_comparison_report() == ""
    results = suite.run_all_benchmarks(np.float64(1))
    assert list(results) == ["slow", "fast"]
    assert capsys.readouterr().out == "Benchmarking slow...\nBenchmarking fast...\n"
    assert "| fast | 1.000 | 4.000 | 5.000 | 3.0x |" in suite.generate_comparison_report()


def test_a_custom_metric_gets_model_and_device() -> None:
    class Counted(ModelBenchmark):
        def measure_custom_metric(self, model: Any, device: str) -> Any:
            return sum(each.numel() for each in model.parameters()), device

    results = Counted({"net": network()}).run_all_benchmarks(torch.zeros(1, 16))
    assert results["net"]["custom_metric"] == (16 * 8 + 8 + 8 * 4 + 4, "cpu")
    with pytest.raises(BenchmarkError) as raised:
        BenchmarkSuite({})
    assert raised.value.code == "no_variant"
