# SPDX-License-Identifier: Apache-2.0
"""Scenarios on a model and a data set: what is called, how often, and the accuracy by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench import BenchmarkScenario, MLPerfBenchmark
from gpuprof.errors import BenchmarkError
from gpuprof.load.mlperf import ScenarioVerdict
from gpuprof.load.mlperf_benchmark import classes_of, joined, queries_of
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.text.units import format_duration


class Model:
    """Keeps the shapes of its inputs, and gives them back as its outputs."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs: Any) -> Any:
        self.shapes.append(inputs.shape)
        return inputs


# The largest element of sample i is i % 3; every fourth label is wrong.
SAMPLES = [(np.eye(3, dtype=np.float32)[i % 3], i % 3 if i % 4 else (i + 1) % 3) for i in range(8)]


def test_single_stream_sends_each_query_after_the_last() -> None:
    model, benchmark = Model(), MLPerfBenchmark()
    found = benchmark.single_stream(model, SAMPLES, num_queries=100)
    assert model.shapes == [(1, 3)] * 101  # one call is the warm-up
    assert found.load is not None
    rows = found.load.rows
    assert (rows["sent_ns"][1:] >= rows["end_ns"][:-1]).all()
    assert found.latencies.tolist() == ((rows["end_ns"] - rows["planned_ns"]) / 1e9).tolist()
    assert (found.scenario, found.accuracy) == (BenchmarkScenario.SINGLE_STREAM, 0.75)
    assert found.rules is not None
    assert found.rules.latency_s == sorted(rows["end_ns"] - rows["sent_ns"])[90] / 1e9
    assert found.rules.verdict is ScenarioVerdict.INSUFFICIENT
    assert [each.code for each in found.rules.reasons] == ["too_short"]
    assert benchmark.results == [found]
    assert "accuracy: 75" in str(found)


def test_server_is_a_poisson_process_from_the_plan() -> None:
    found = MLPerfBenchmark(seed=4).server(Model(), SAMPLES, target_qps=500, duration=0.2)
    assert found.load is not None
    assert found.metadata is not None
    assert len(found.latencies) == 100
    assert found.load.settings.scenario == "server"
    assert {"target_qps", "actual_qps", "duration"} == found.metadata.keys()
    assert found.rules is None  # there is no bound
    assert f"p99 latency: {format_duration(sorted(found.latencies)[99] * 1e9)}" in str(found).splitlines()
    bound = MLPerfBenchmark().server(Model(), SAMPLES, 500, 0.2, latency_bound_s=60.0)
    assert bound.rules is not None
    assert [each.code for each in bound.rules.reasons] == ["too_short", "early_stopping"]


def test_offline_calls_batches_of_all_samples() -> None:
    model = Model()
    found = MLPerfBenchmark().offline(model, SAMPLES, batch_size=3)
    assert model.shapes == [(3, 3), (3, 3), (3, 3), (2, 3)]
    assert (len(found.latencies), found.accuracy) == (8, 0.75)
    assert found.metadata == {"batch_size": 3, "total_samples": 8}
    assert found.rules is not None
    assert found.rules.queries == 8


def test_without_labels_there_is_no_accuracy() -> None:
    found = MLPerfBenchmark().single_stream(sum, [[1, 2, 3]], num_queries=10)
    assert found.accuracy is None
    assert (found.latencies > 0).all()


def test_a_failing_model_is_infinitely_late() -> None:
    calls: list[int] = []

    def model(_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("planted")

    found = MLPerfBenchmark().single_stream(model, [1.0], num_queries=10)
    assert np.isinf(found.latencies).sum() == 1
    assert found.rules is not None
    assert found.rules.verdict is ScenarioVerdict.INVALID


def test_the_highest_rate_within_a_bound() -> None:
    with refused(BenchmarkError, "too_few_requests"):
        MLPerfBenchmark().highest_qps(Model(), SAMPLES, 0.1, duration=1.0)


def test_samples_are_joined() -> None:
    one, row = np.zeros((1, 3)), np.zeros(3)
    assert joined([one], True).shape == joined([row], True).shape == (1, 3)
    assert joined([one, one]).shape == joined([row, row]).shape == (2, 3)
    assert joined(["a", "b"]) == ["a", "b"]
    torch = pytest.importorskip("torch")
    assert joined([torch.zeros(1, 3)] * 2).shape == joined([torch.zeros(3)] * 2).shape == (2, 3)
    assert not MLPerfBenchmark().single_stream(torch.nn.Linear(3, 2), [torch.zeros(3)], 3).latencies.any() < 0
    assert classes_of(torch.tensor([[0.0, 1.0]], requires_grad=True)) == [1]
    assert classes_of(np.zeros(3)) is None


def test_each_sample_of_a_batch_is_a_query_of_offline() -> None:
    rows = np.zeros(2, REQUEST)
    rows["units"], rows["status"], rows["end_ns"] = [3, 2], [RequestStatus.OK, RequestStatus.FAILED], [5, 7]
    found = queries_of(rows, per_sample=True)
    assert found.end_ns.tolist() == [5, 5, 5, 7, 7]
    assert found.completed.tolist() == [1, 1, 1, 0, 0]


def test_what_cannot_work_is_refused() -> None:
    benchmark = MLPerfBenchmark()
    with refused(BenchmarkError, "no_samples"):
        benchmark.single_stream(sum, [])
    with refused(BenchmarkError, "not_callable"):
        benchmark.offline(5, SAMPLES)
    with refused(BenchmarkError, "invalid_batch_size"):
        benchmark.offline(sum, SAMPLES, batch_size=0)
    with refused(BenchmarkError, "invalid_load"):
        benchmark.single_stream(sum, SAMPLES, num_queries=0)
    with refused(BenchmarkError, "invalid_schedule"):
        benchmark.server(sum, SAMPLES, target_qps=float("nan"))
