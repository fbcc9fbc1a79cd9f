# SPDX-License-Identifier: Apache-2.0
"""Suites as TOML, and variants on a command line: what is read, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from gpuprof.bench.compare.plan import ComparisonPlan, Variant, parse_variants, read_suite
from gpuprof.bench.config import SystemSpec
from gpuprof.errors import BenchmarkError

WHOLE = """
name = "networks"
model = "model.py:build"
baseline = "fp32"
batch-sizes = [1, 8, 8]
launches = 4
duration = 2
input-shape = [3, 8, 8]
dataset = "images"
accuracy-samples = 50
accuracy-margin = 0.02
metrics = ["metrics.py:loss"]
margin = 0.03
slo = "p99<20ms"
price-per-hour = 2
memory-budget = "1GiB"
profile = true

[[variant]]
name = "fp32"

[[variant]]
recipe = "int8-dynamic"
batch-sizes = [1]

[[variant]]
name = "half"
dtype = "float16"
model = "resnet50"
"""


@pytest.fixture
def suite(tmp_path: Path) -> Any:
    def written(text: str) -> Path:
        path = tmp_path / "folder" / "suite.toml"
        path.parent.mkdir(exist_ok=True)
        for name in ("model.py", "metrics.py"):
            (path.parent / name).touch()
        (path.parent / "images").mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_all_keys_are_read(suite: Any) -> None:
    path = suite(WHOLE)
    found = read_suite(path)
    folder = path.parent
    assert [each.name for each in found.variants] == ["fp32", "int8-dynamic", "half"]
    first, second, third = found.variants
    assert first.spec.model == f"{folder}/model.py:build"
    assert first.spec.input_shape == (3, 8, 8)
    assert (second.spec.recipe, second.batch_sizes) == ("int8-dynamic", (1,))
    assert (third.spec.model, third.spec.dtype) == ("resnet50", "float16")
    assert found.baseline is first
    assert (found.name, found.batch_sizes, found.launches) == ("networks", (1, 8), 4)
    assert (found.margin, found.price_per_hour, found.memory_budget_bytes) == (0.03, 2, 1 << 30)
    assert found.target is not None
    assert found.profile
    assert found.accuracy is not None
    assert (found.accuracy.dataset, found.accuracy.samples) == (f"{folder}/images", 50)
    assert (found.accuracy.margin, found.accuracy.metrics) == (0.02, (f"{folder}/metrics.py:loss",))


VARIANT = "[[variant]]\nmodel = 'resnet50'\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no_variant"),
        ("launches = 3", "no_variant"),
        ("launches =", "invalid_toml"),
        ("lunches = 3\n" + VARIANT, "unknown_key"),
        ("batch_sizes = [1]\n" + VARIANT, "unknown_key"),
        ("launches = 0\n" + VARIANT, "invalid_launches"),
        ("launches = true\n" + VARIANT, "damaged"),
        ("batch-sizes = []\n" + VARIANT, "no_batch_size"),
        ("margin = 5\n" + VARIANT, "invalid_margin"),
        ("duration = inf\n" + VARIANT, "invalid_option"),
        ("slo = 'fast'\n" + VARIANT, "invalid_target"),
        ("memory-budget = 'much'\n" + VARIANT, "invalid_size"),
        ("traffic = '90,20'\n" + VARIANT, "invalid_split"),
        ("traffic = '90,10'\n" + VARIANT, "number_of_variants"),
        ("baseline = 'x'\n" + VARIANT, "unknown_baseline"),
        (VARIANT + VARIANT, "same_name"),
        ("[[variant]]\nname = 'x'\n", "no_model"),
        ("variant = 3", "invalid_variant"),
        ("variant = [3]", "invalid_variant"),
        ("[[variant]]\nmodel = 'resnet50'\nrecipe = 'int9'\n", "unknown_recipe"),
        ("[[variant]]\nmodel = 'resnet50'\nframework = 'pytroch'\n", "unknown_framework"),
        ("[[variant]]\nmodel = 'resnet50'\nlaunches = 3\n", "unknown_key"),
    ],
)
def test_what_is_wrong_is_named(suite: Any, text: str, why: str) -> None:
    path = suite(text)
    with refused(BenchmarkError, why) as caught:
        read_suite(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_suite_that_is_not_there(tmp_path: Path) -> None:
    with refused(BenchmarkError, "cannot_read"):
        read_suite(tmp_path / "none.toml")


LIKE = SystemSpec("", dtype="float32")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:resnet50,b:vit_b_16", [("a", "resnet50"), ("b", "vit_b_16")]),
        ("a:model.py:build", [("a", "model.py:build")]),
        ("model.py:build, b:x.onnx", [("model.py:build", "model.py:build"), ("b", "x.onnx")]),
        ("timm:resnet50", [("timm:resnet50", "timm:resnet50")]),
        ("t:timm:resnet50", [("t", "timm:resnet50")]),
    ],
)
def test_variants_on_a_command_line(text: str, found: list[tuple[str, str]]) -> None:
    assert [(each.name, each.spec.model) for each in parse_variants(text, LIKE)] == found


def test_a_recipe_follows_the_model(tmp_path: Path) -> None:
    (found,) = parse_variants("small:resnet50@int8-dynamic", SystemSpec(""))
    assert (found.spec.model, found.spec.recipe) == ("resnet50", "int8-dynamic")
    (tmp_path / "a@b.onnx").touch()
    (plain,) = parse_variants(f"file:{tmp_path / 'a@b.onnx'}", SystemSpec(""))
    assert plain.spec.recipe is None


@pytest.mark.parametrize("text", ["", "a:", "a:x,,b:y", "a:x,"])
def test_a_variant_without_a_model_is_refused(text: str) -> None:
    with refused(BenchmarkError, "no_model"):
        parse_variants(text, LIKE)


def test_a_plan_that_cannot_be_is_refused() -> None:
    one = Variant("one", SystemSpec("m"))
    for options, why in (
        ({"variants": ()}, "no_variant"),
        ({"variants": (Variant(" ", one.spec),)}, "no_name"),
        ({"variants": (one,), "launches": 0}, "invalid_launches"),
        ({"variants": (one,), "batch_sizes": ()}, "no_batch_size"),
        ({"variants": (dataclasses.replace(one, batch_sizes=(0,)),)}, "invalid_batch_size"),
        ({"variants": (one,), "seed": -1}, "invalid_seed"),
        ({"variants": (one,), "margin": 1.5}, "invalid_margin"),
        ({"variants": (one,), "price_per_hour": -1.0}, "invalid_price"),
    ):
        with refused(BenchmarkError, why):
            ComparisonPlan(**options)


def test_a_file_is_found_from_any_folder(suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = suite("[[variant]]\nmodel = 'model.py:build'\n")
    monkeypatch.chdir(tmp_path)
    found = read_suite(Path(os.path.relpath(path)))
    assert found.variants[0].spec.model == "folder/model.py:build"


def test_data_to_calibrate_with_is_found_from_any_folder(
    suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = suite(
        "[[variant]]\nmodel = 'model.py:build'\nrecipe = 'int8-static:64:images'\n"
        "[[variant]]\nname = 'after'\nmodel = 'model.py:build@int8-static:64:images'\n"
    )
    monkeypatch.chdir(tmp_path)
    found = read_suite(Path(os.path.relpath(path)))
    assert found.variants[0].name == "int8-static:64:images"
    assert [each.spec.recipe for each in found.variants] == ["int8-static:64:folder/images"] * 2
    assert [each.spec.model for each in found.variants] == ["folder/model.py:build"] * 2


def test_a_model_file_with_a_recipe_after_it_is_found_from_any_folder(
    suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = suite("[[variant]]\nname = 'small'\nmodel = 'net.onnx@onnx-int8'\n")
    (path.parent / "net.onnx").touch()
    monkeypatch.chdir(tmp_path)
    (found,) = read_suite(Path(os.path.relpath(path))).variants
    assert (found.spec.model, found.spec.recipe) == ("folder/net.onnx", "onnx-int8")
