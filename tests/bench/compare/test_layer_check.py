# SPDX-License-Identifier: Apache-2.0
"""Planted errors in a variant are found in the layer that has them, as `gpuprof compare` looks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="layers are those of PyTorch modules")

from gpuprof.bench.compare.accuracy import compare_accuracy
from gpuprof.bench.compare.layer_job import LayersJob, can_be_compared, run_layers_job
from gpuprof.bench.compare.plan import AccuracyPlan, ComparisonPlan, Variant
from gpuprof.bench.compare.run import carry_out
from gpuprof.bench.config import Settings, SystemSpec
from gpuprof.bench.facts import Diagnostic

MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"


def spec(factory: str, **options: Any) -> SystemSpec:
    return SystemSpec(f"{MODELS}:{factory}", input_shape=(16,), **options)


def layer_findings(factory: str) -> list[dict[str, Any]]:
    seen: list[Any] = []
    dataset = {"text": "synthetic", "samples": 20, "seed": 0}
    run_layers_job(LayersJob((spec("network"), spec(factory)), dataset, 4), seen.append)
    return list(seen[-1].value)


def test_rounded_weights_are_found_in_their_layer() -> None:
    (found,) = layer_findings("rounded_network")
    layer = found["values"]["layer"]
    assert (found["code"], layer["path"], layer["type"]) == ("first_divergence", "2", "Linear")
    assert layer["local_error"] > layer["allowed"]


def test_nan_is_found_in_its_layer_and_channel() -> None:
    found, *_ = layer_findings("network_with_nan")
    origin = found["values"]["origin"]
    assert (found["code"], found["values"]["side"]) == ("first_nan", "optimized")
    assert (origin["path"], origin["type"], origin["found"]["nan"]) == ("0", "Linear", 4)
    assert origin["found"]["slice"] == "[:, 3]"


def test_the_same_model_diverges_nowhere() -> None:
    assert layer_findings("network") == []


def test_what_a_recipe_changed_has_other_layers() -> None:
    assert can_be_compared(spec("network"), spec("network", dtype="bfloat16"))
    assert not can_be_compared(spec("network"), spec("network", recipe="int8-dynamic"))
    assert not can_be_compared(spec("network"), spec("network", framework="onnxruntime"))


@pytest.mark.slow
def test_a_comparison_names_the_layer(tmp_path: Path) -> None:
    plan = ComparisonPlan(
        (Variant("good", spec("network")), Variant("bad", spec("rounded_network"))),
        accuracy=AccuracyPlan(samples=40),
    )
    found = compare_accuracy(plan, tmp_path)
    assert not isinstance(found.of["bad"], Diagnostic)
    assert found.of["bad"].tolerance == "beyond"
    layers = [each.values["layer"] for each in found.of["bad"].findings if each.code == "first_divergence"]
    assert [each["path"] for each in layers] == ["2"]
    assert not isinstance(found.of["good"], Diagnostic)
    assert found.of["good"].findings == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_programs_of_torchscript_have_a_note_that_there_are_no_layers(tmp_path: Path) -> None:
    import torch

    variants = []
    for name, weight in (("one", 1.0), ("two", 2.0)):
        module = torch.nn.Sequential(torch.nn.Linear(16, 4)).eval()
        torch.nn.init.constant_(module[0].weight, weight)
        torch.jit.trace(module, torch.zeros(2, 16)).save(str(tmp_path / f"{name}.pt"))
        variants.append(Variant(name, SystemSpec(str(tmp_path / f"{name}.pt"), input_shape=(16,))))
    plan = ComparisonPlan(
        tuple(variants),
        launches=1,
        measuring=Settings(iterations=5, warmup=1),
        accuracy=AccuracyPlan(samples=8),
        profile=True,
    )
    document = carry_out(plan, tmp_path / "out").document
    notes = [(each.code, each.values.get("variant")) for each in document.notes]
    assert ("no_layers_compared", "two") in notes
    assert [each for each in notes if each[0] == "no_layers_in_script"] == [
        ("no_layers_in_script", "one"),
        ("no_layers_in_script", "two"),
    ]
