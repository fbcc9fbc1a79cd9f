# SPDX-License-Identifier: Apache-2.0
"""Modules and callables as variants: they reach fresh processes, or are refused before one starts."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.bench import ComparisonPlan, SystemSpec, Variant, run_comparison
from gpuprof.bench.config import Settings
from gpuprof.bench.frameworks import make_system
from gpuprof.errors import BenchmarkError

torch = pytest.importorskip("torch")


def doubled(batch: Any) -> Any:
    return batch * 2


class Scaled:
    """A callable with a state."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, batch: Any) -> Any:
        return batch * self.factor


def loaded(variant: Variant, **more: Any) -> Any:
    system = make_system(SystemSpec(variant.spec.model, **more))
    system.load()
    system.prepare(2)
    return system


def test_a_module_keeps_its_weights() -> None:
    module = torch.nn.Linear(6, 3)
    system = loaded(Variant("fp32", module), input_shape=(6,))
    assert system.describe().framework == "pytorch"
    assert system.describe().parameters == 6 * 3 + 3
    expected = module(system.arguments[0]).detach()
    np.testing.assert_array_equal(system.first_inference(), expected)


@pytest.mark.parametrize("model", [doubled, Scaled(3.0), Scaled(2.0).__call__])
def test_a_callable_is_the_model(model: Any) -> None:
    system = loaded(Variant("own", model), input_shape=(4,))
    assert system.describe().framework == "python"
    np.testing.assert_array_equal(system.first_inference(), model(*system.arguments))


def test_texts_are_models_too() -> None:
    assert Variant("a", "resnet50").spec == SystemSpec("resnet50")
    assert Variant("a", SystemSpec("vit_b_16")).spec == SystemSpec("vit_b_16")


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (7, "invalid_model"),
        (None, "invalid_model"),
        (torch.nn.Linear, "invalid_model"),  # a class, not a module
        (lambda batch: batch, "not_importable"),
        (threading.Lock().acquire, "not_importable"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(model: Any, code: str) -> None:
    with pytest.raises(BenchmarkError) as raised:
        Variant("a", model)
    assert raised.value.code == code


def test_names_reach_no_path(tmp_path: Path) -> None:
    model = Path(Variant("../../a b'\\n", doubled).spec.model.rpartition(":")[0])
    assert model.name == "a_b_n.py"
    assert model.parent.parent.stat().st_mode & 0o077 == 0


SCRIPT = """
import sys
import torch
from gpuprof.bench import ComparisonPlan, Variant, run_comparison
from gpuprof.bench.config import Settings, SystemSpec

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)
    def forward(self, batch):
        return self.layer(batch)

def inputs(size):
    return torch.ones(size, 5)  # which the second one does not take

if __name__ == "__main__":
    settings = Settings(iterations=5, warmup=1)
    variants = tuple(Variant(str(width), (Net(width), inputs)) for width in (5, 6))
    plan = ComparisonPlan(variants, launches=1, accuracy=None, measuring=settings)
    found = run_comparison(plan, sys.argv[1])
    print([each["parameters"] for each in found["variants"]])
"""


@pytest.mark.slow
def test_the_classes_of_a_script_reach_its_process_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("[12, "), done.stdout


def test_a_comparison_of_a_mapping(tmp_path: Path) -> None:
    variants = tuple(Variant(name, model) for name, model in {"two": doubled, "three": Scaled(3.0)}.items())
    plan = ComparisonPlan(variants, launches=1, accuracy=None, measuring=Settings(iterations=5, warmup=1))
    assert [each["name"] for each in run_comparison(plan, tmp_path)["variants"]] == ["two", "three"]
    with pytest.raises(BenchmarkError) as raised:
        run_comparison({"two": doubled, "none": None}, tmp_path)
    assert raised.value.code == "invalid_model"
