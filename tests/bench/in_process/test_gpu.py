# SPDX-License-Identifier: Apache-2.0
"""`GPUProfiler`: stub tests with programs that play nsys and NVML. No GPU is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nsys_stub
import nvml_stub
import pytest

from gpuprof.bench import GPUProfiler
from gpuprof.bench.in_process import gpu
from gpuprof.errors import GpuprofError
from gpuprof.record import device_samples

torch = pytest.importorskip("torch")


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()


@pytest.mark.parametrize("method", ["profile_with_nsight", "analyze_gpu_utilization"])
def test_without_a_gpu_there_is_one_error(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GpuprofError) as raised:
        getattr(GPUProfiler(), method)(network(), torch.zeros(1, 16))
    assert raised.value.code == "no_such_device"
    assert "\n" not in str(raised.value)


def test_without_nsys_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_nsys", lambda _environment: None)
    with pytest.raises(GpuprofError) as raised:
        GPUProfiler("cpu").profile_with_nsight(network(), torch.zeros(1, 16))
    assert raised.value.code == "not_installed"


def test_without_a_driver_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_driver", lambda: False)
    with pytest.raises(GpuprofError) as raised:
        GPUProfiler("cpu").analyze_gpu_utilization(network(), torch.zeros(1, 16), duration_sec=0.01)
    assert raised.value.code == "no_driver"


def test_stub_the_kernels_of_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: nsys writes the export of a program with one kernel; the model is called in its process."""
    stub = nsys_stub.Stub(tmp_path)
    stub.install()
    monkeypatch.setenv("PATH", f"{stub.path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpu, "_bounds", lambda *_given: {"0": "memory"})
    found = GPUProfiler("cpu").profile_with_nsight(network(), torch.zeros(2, 16))
    (kernel,) = found["kernels"]
    assert (kernel["calls"], kernel["share"]) == (1, 1.0)
    assert kernel["total_ms"] > 0
    assert found["bounds"] == {"0": "memory"}
    command, *_ = stub.calls()
    assert "--capture-range=cudaProfilerApi" in command[0]
    assert command[0][-1] == "cpu"


def test_stub_a_model_that_fails_under_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = nsys_stub.Stub(tmp_path)
    stub.install()
    monkeypatch.setenv("PATH", f"{stub.path.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(GpuprofError) as raised:
        GPUProfiler("cpu").profile_with_nsight(network(), torch.zeros(2, 17))
    assert raised.value.code == "failed"


@pytest.mark.skipif(sys.platform != "linux", reason="NVML is sampled on Linux")
def test_stub_the_readings_while_a_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: NVML gives 0% and then 50%, 100 W, 200 W and then 300 W."""
    stub = nvml_stub.Stub(tmp_path / "stub")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub.folder))
    monkeypatch.syspath_prepend(str(stub.folder))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(device_samples, "PERIOD_NS", 20_000_000)
    monkeypatch.setattr(device_samples, "LONGEST_END_S", 60.0)
    waited: list[int] = []

    def model(batch: Any) -> Any:
        if not waited:
            waited.append(stub.wait_for_reading(3))
        return batch

    try:
        found = GPUProfiler("cpu").analyze_gpu_utilization(model, torch.zeros(1), duration_sec=0.01)
    finally:
        stub.close()
    assert list(found) == ["0: Stub 100"]
    series = found["0: Stub 100"]
    assert series["power_w"][:4] == [100, 200, 300, 300]
    assert series["utilization_percent"][:3] == [0, 50, 50]
    assert series["timestamp"] == sorted(series["timestamp"])
    assert {len(values) for values in series.values()} == {len(series["timestamp"])}
    assert set(series) == {
        "timestamp", "utilization_percent", "memory_used_bytes", "temperature_c", "power_w",
    }  # fmt: skip
