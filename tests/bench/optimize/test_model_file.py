# SPDX-License-Identifier: Apache-2.0
"""Files of optimized models, read back by PyTorch itself; and what `gpuprof optimize` prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused, refused_command

torch = pytest.importorskip("torch")

from gpuprof.bench import SystemSpec, write_optimized  # noqa: E402
from gpuprof.bench.measure.outputs import named_arrays  # noqa: E402
from gpuprof.bench.optimize.model_file import optimized_spec, relative_difference  # noqa: E402
from gpuprof.cli.main import execute  # noqa: E402
from gpuprof.errors import BenchmarkError  # noqa: E402

NETWORKS = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Fixed(Net):
    def forward(self, x):
        return super().forward(x).reshape(int(x.shape[0]), 2, 2)


def net():
    return Net()


def small():
    return Net(8)


def fixed():
    return Fixed()


def lazy():
    return nn.LazyLinear(4)
"""


@pytest.fixture
def networks(tmp_path: Path) -> str:
    path = tmp_path / "networks.py"
    path.write_text(NETWORKS)
    return str(path)


def spec_of(networks: str, name: str = "net") -> SystemSpec:
    return SystemSpec(f"{networks}:{name}", input_shape=(16,), device="cpu")


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_quantized_model_is_a_file_of_torchscript(networks: str, tmp_path: Path) -> None:
    written = write_optimized(spec_of(networks), "int8-dynamic", tmp_path / "int8.pt")
    module = torch.jit.load(tmp_path / "int8.pt")
    assert tuple(module(torch.zeros(7, 16)).shape) == (7, 4)
    assert written.details["quantized_layers"] == "2 of 2"
    assert written.model_bytes is not None
    assert written.original_bytes == 4 * (16 * 128 + 128 + 128 * 4 + 4)
    assert written.model_bytes < written.original_bytes / 2
    assert written.difference is not None
    assert 1e-5 < written.difference < 0.03
    assert (written.fixed_batch_size, written.has_random_weights) == (None, False)
    assert written.file_bytes == (tmp_path / "int8.pt").stat().st_size


def test_a_pruned_model_is_an_exported_program_for_any_batch_size(networks: str, tmp_path: Path) -> None:
    written = write_optimized(spec_of(networks), "pruned:0.75", tmp_path / "pruned.pt2")
    module = torch.export.load(tmp_path / "pruned.pt2").module()
    assert tuple(module(torch.zeros(7, 16)).shape) == (7, 4)
    weights = {name: each for name, each in module.named_parameters() if name.endswith("weight")}
    assert [float((each == 0).float().mean()) for each in weights.values()] == [0.75, 0.75]
    assert written.fixed_batch_size is None


def test_a_file_that_takes_one_batch_size_is_reported(networks: str, tmp_path: Path) -> None:
    written = write_optimized(spec_of(networks, "fixed"), "pruned", tmp_path / "fixed.pt")
    assert written.fixed_batch_size == 2


@pytest.mark.needs("onnx", "onnxruntime", "onnxscript")
def test_an_onnx_file_has_its_weights_inside(networks: str, tmp_path: Path) -> None:
    import onnxruntime

    written = write_optimized(spec_of(networks), "onnx-int8:16", tmp_path / "int8.onnx")
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "int8.onnx").rename(tmp_path / "elsewhere" / "int8.onnx")
    session = onnxruntime.InferenceSession(str(moved))
    (found,) = session.run(None, {session.get_inputs()[0].name: np.zeros((7, 16), np.float32)})
    assert found.shape == (7, 4)
    assert written.details["quantized_layers"] == "2 of 2"


@pytest.mark.parametrize(
    ("recipe", "name", "code"),
    [
        ("int8-static", "int8.pt2", "recipe_of_other_file"),
        ("int8-dynamic", "int8.onnx", "recipe_of_other_file"),
        ("onnx-int8", "int8.pt", "recipe_of_other_file"),
        ("compile", "compiled.pt", "writes_no_file"),
        ("autocast-bf16", "half.pt", "writes_no_file"),
        ("tensorrt", "engine.pt", "writes_no_file"),
        ("pruned", "pruned.engine", "unsupported_file"),
        ("pruned", "nowhere/pruned.pt", "no_such_folder"),
        ("nothing", "some.pt", "unknown_recipe"),
    ],
)
def test_what_cannot_be_written_is_refused_first(
    networks: str, tmp_path: Path, recipe: str, name: str, code: str
) -> None:
    with refused(BenchmarkError, code):
        optimized_spec(spec_of(networks), recipe, tmp_path / name)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["networks.py"]


def test_an_existing_file_is_not_replaced(networks: str, tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_text("old")
    with refused(BenchmarkError, "exists"):
        write_optimized(spec_of(networks), "pruned", tmp_path / "old.pt")
    assert (tmp_path / "old.pt").read_text() == "old"


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1.0], None),
        ([3.0, 4.0], [3.0], None),
    ],
)
def test_the_difference_is_relative_to_the_original(
    old: list[float], new: list[float], difference: float | None
) -> None:
    found = relative_difference(*(named_arrays(np.array(each)) for each in (old, new)))
    assert found == (difference if difference is None else pytest.approx(difference))


# --- the command ---------------------------------------------------------------------------------


def optimize(networks: str, *words: str) -> int:
    return execute(["optimize", f"{networks}:net", "--input-shape", "16", "--device", "cpu", *words])


def test_the_command_writes_and_describes(
    networks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "pruned.pt")
    assert optimize(networks, "--recipe", "pruned", "-o", out, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["path"], found["recipe"], found["framework"]) == (out, "pruned", "torchscript")
    assert found["distillation"] is None


def test_a_student_is_trained_and_written(
    networks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--recipe", "distilled", "--student", f"{networks}:small", "--steps", "40", "--json"]
    assert optimize(networks, *words, "--samples", "128", "-o", str(tmp_path / "small.pt2")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["distillation"]["loss_after"] < found["distillation"]["loss_before"]
    assert found["parameters"] == 8 * 16 + 8 + 4 * 8 + 4
    module = torch.export.load(tmp_path / "small.pt2").module()
    assert tuple(module(torch.zeros(5, 16)).shape) == (5, 4)


def test_a_student_that_does_not_learn_is_exit_code_1(networks: str, tmp_path: Path) -> None:
    words = ["--recipe", "distilled", "--student", f"{networks}:small", "--steps", "1"]
    words += ["--learning-rate", "1e-30", "-o", str(tmp_path / "small.pt")]
    assert optimize(networks, *words) == 1
    assert (tmp_path / "small.pt").exists()


def test_a_model_whose_weights_have_no_shape_yet_is_refused(networks: str, tmp_path: Path) -> None:
    words = ["--recipe", "int8-dynamic", "--input-shape", "16", "-o", str(tmp_path / "lazy.pt")]
    refused_command(["optimize", f"{networks}:lazy", *words], "lazy_model", "int8-dynamic")


@pytest.mark.parametrize(
    "words", [["--recipe", "distilled"], ["--recipe", "pruned", "--steps", "3"], ["--recipe", "pruned:2"]]
)
def test_options_that_do_not_fit_are_refused(networks: str, tmp_path: Path, words: list[str]) -> None:
    assert optimize(networks, *words, "-o", str(tmp_path / "model.pt")) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["networks.py"]
