# SPDX-License-Identifier: Apache-2.0
"""Inputs of models in this process, and statistics of memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.bench import (
    AccuracyBenchmark,
    ThroughputBenchmark,
    create_dataloader,
    reset_memory_stats,
)
from gpuprof.bench.in_process.inputs import maker_of
from gpuprof.bench.measure.memory import STATUS, host_peak_bytes, resident_bytes
from gpuprof.errors import BenchmarkError


def test_a_loader_yields_batches_of_its_source(tmp_path: Path) -> None:
    samples = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "data.npz", inputs=samples)
    for source in (tmp_path / "data.npz", list(samples)):
        batches = list(create_dataloader(source, batch_size=3, input_shape=(3,), num_batches=2))
        assert [each.shape for each in batches] == [(3, 3), (3, 3)]
        np.testing.assert_array_equal(batches[0], samples[:3])
        np.testing.assert_array_equal(batches[1], samples[[3, 0, 1]])
    (first,) = itertools.islice(create_dataloader(batch_size=2), 1)
    assert (first.shape, first.dtype) == ((2, 3, 224, 224), np.float32)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"batch_size": 0}, "invalid_option"),
        ({"num_batches": 0}, "invalid_option"),
        ({"data_source": "nowhere"}, "no_such_data"),
        ({"data_source": "nowhere.npz"}, "no_such_file"),
    ],
)
def test_a_loader_of_nothing_is_refused_at_once(options: dict[str, Any], code: str) -> None:
    with pytest.raises(BenchmarkError) as raised:
        create_dataloader(**options)
    assert raised.value.code == code


@pytest.mark.skipif(not STATUS.exists(), reason="the peak is read on Linux")
def test_the_peak_of_memory_is_reset() -> None:
    block = bytearray(64 << 20)
    filled = host_peak_bytes()
    del block
    reset_memory_stats()
    peak, now = host_peak_bytes(), resident_bytes()
    assert filled is not None
    assert peak is not None
    assert now is not None
    if peak >= filled:
        pytest.skip("this system does not let a process reset its peak")
    assert peak < filled


def test_the_inputs_are_the_models_own() -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.Linear(4, 2)).double()
    assert maker_of(linear)(3).shape == (3, 16)
    assert maker_of(linear)(3).dtype == torch.float64
    convolution = torch.nn.Conv2d(3, 4, 3)
    assert maker_of(convolution, input_shape=(3, 8, 8))(2).shape == (2, 3, 8, 8)
    convolution.example_input_array = torch.ones(5, 3, 6, 6)
    assert maker_of(convolution)(2).shape == (2, 3, 6, 6)
    assert maker_of(len, lambda size: [size])(2) == [2]
    del convolution.example_input_array
    with pytest.raises(BenchmarkError) as raised:
        maker_of(convolution)
    assert raised.value.code == "unknown_input_shape"


def test_throughput_and_stability_need_no_data() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(16, 4).eval()
    rows = ThroughputBenchmark().benchmark_batch_sizes(model, [2], duration_sec=0.05)
    assert rows[0]["batch_size"] == 2
    best = ThroughputBenchmark(input_shape=(16,)).find_optimal_batch_size(model, target_latency_ms=0)
    assert best is None
    with pytest.raises(BenchmarkError) as raised:
        ThroughputBenchmark().benchmark_batch_sizes(model, [1, 0])
    assert raised.value.code == "invalid_option"
    other = torch.nn.Linear(16, 4).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.bias[1] += 0.5
        other.weight[2, 0] = float("nan")
    (found,) = AccuracyBenchmark().analyze_numerical_stability(model, other).values()
    assert (found["nan"], found["baseline_nan"], found["infinite"]) == (256, 0, 0)
    assert found["max_absolute_error"] == pytest.approx(0.5)
