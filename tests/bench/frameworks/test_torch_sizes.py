# SPDX-License-Identifier: Apache-2.0
"""Sizes of PyTorch models, packed weights included: expected figures are counted by hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import make_system

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of PyTorch

IN, MIDDLE, OUT = 64, 48, 10
WEIGHTS = IN * MIDDLE + MIDDLE * OUT
BIASES = MIDDLE + OUT
PARAMETERS = WEIGHTS + BIASES
INT8_BYTES = WEIGHTS + 4 * BIASES


def quantized() -> Any:
    """Two linear layers with one scale each: a byte a weight, four a bias, nothing else but scales."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(IN, MIDDLE), torch.nn.ReLU(), torch.nn.Linear(MIDDLE, OUT)
    ).eval()
    return torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)


def described(path: Path) -> Any:
    system = make_system(SystemSpec(str(path), input_shape=(IN,), trust_pickle=True))
    system.load()
    try:
        return system.describe()
    finally:
        system.close()


@pytest.mark.parametrize("form", ["traced", "frozen", "pickled"])
def test_packed_weights_of_a_file_are_counted(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("model.pth" if form == "pickled" else "model.pt")
    if form == "pickled":
        torch.save(quantized(), path)
    else:
        traced = torch.jit.trace(quantized(), torch.zeros(2, IN))
        (torch.jit.freeze(traced) if form == "frozen" else traced).save(str(path))
    found = described(path)
    # Each layer of a pickled module has the scale and the zero point of its outputs, 4 and 8 bytes.
    extra = 2 * (4 + 8) if form == "pickled" else 0
    assert found.model_bytes == INT8_BYTES + extra
    assert found.parameters == PARAMETERS
    assert found.model_bytes < path.stat().st_size


def test_static_quantization_packs_scales_of_channels(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    quantization = torch.ao.quantization
    module = torch.nn.Sequential(quantization.QuantStub(), module, quantization.DeQuantStub()).eval()
    module.qconfig = quantization.get_default_qconfig("fbgemm")
    quantization.prepare(module, inplace=True)
    module(torch.randn(2, 3, 8, 8))
    quantization.convert(module, inplace=True)
    torch.jit.trace(module, torch.zeros(1, 3, 8, 8)).save(str(tmp_path / "model.pt"))
    found = described(tmp_path / "model.pt")
    weights, biases = 8 * 3 * 3 * 3, 8
    assert found.parameters == weights + biases
    # A scale and a zero point of 8 bytes a channel; the rest is the layer's geometry.
    assert weights + 4 * biases + 16 * 8 <= found.model_bytes <= weights + 4 * biases + 16 * 8 + 200


def test_programs_of_floats_keep_their_sizes(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.BatchNorm1d(OUT)).eval()
    torch.jit.trace(module, torch.zeros(2, IN)).save(str(tmp_path / "model.pt"))
    torch.export.save(torch.export.export(module, (torch.zeros(2, IN),)), tmp_path / "model.pt2")
    for name in ("model.pt", "model.pt2"):
        found = described(tmp_path / name)
        assert found.parameters == IN * OUT + 3 * OUT
        # Means and variances, and the counter of batches of 8 bytes.
        assert found.model_bytes == 4 * (IN * OUT + 5 * OUT) + 8


def test_constants_are_not_called_parameters(tmp_path: Path) -> None:
    traced = torch.jit.trace(torch.nn.Linear(IN, OUT).eval(), torch.zeros(2, IN))
    torch.jit.freeze(traced).save(str(tmp_path / "model.pt"))
    found = described(tmp_path / "model.pt")
    assert (found.parameters, found.model_bytes) == (None, 4 * (IN * OUT + OUT))


@pytest.mark.parametrize("form", ["pt", "frozen", "pt2", "pth"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_file_is_judged_by_the_type_that_it_holds(tmp_path: Path, form: str, dtype: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(IN, OUT)).eval().to(getattr(torch, dtype))
    example = torch.zeros(2, IN, dtype=getattr(torch, dtype))
    path = tmp_path / f"model.{'pt' if form == 'frozen' else form}"
    if form == "pth":
        torch.save(module, path)
    elif form == "pt2":
        torch.export.save(torch.export.export(module, (example,)), path)
    else:
        traced = torch.jit.trace(module, example)
        (torch.jit.freeze(traced) if form == "frozen" else traced).save(str(path))
    system = make_system(SystemSpec(str(path), input_shape=(IN,), trust_pickle=True))
    system.load()
    assert (system.dtype, system.computes_in()) == (dtype, None)
    system.prepare(2)
    assert system.first_inference().dtype == getattr(torch, dtype)


class _HalfInside(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(IN, OUT)
        self.second = torch.nn.Linear(OUT, OUT).bfloat16()

    def forward(self, batch: Any) -> Any:
        return self.second(self.first(batch).bfloat16()).float()


@pytest.mark.parametrize("form", ["half inside", "packed", "pickled"])
def test_coarser_weights_inside_decide_the_tolerance(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("model.pth" if form == "pickled" else "model.pt")
    if form == "pickled":
        torch.save(quantized(), path)
    else:
        module = _HalfInside().eval() if form == "half inside" else quantized()
        torch.jit.trace(module, torch.zeros(2, IN)).save(str(path))
    system = make_system(SystemSpec(str(path), input_shape=(IN,), trust_pickle=True))
    system.load()
    assert system.dtype == "float32"
    assert system.computes_in() == ("bfloat16" if form == "half inside" else "int8")


def test_reading_an_archive_runs_nothing_of_it(tmp_path: Path) -> None:
    from gpuprof.bench.frameworks.torch_sizes import _storages

    class Hostile:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    assert _storages(pickle.dumps([Hostile()])) == []
    assert not (tmp_path / "touched").exists()
