# SPDX-License-Identifier: Apache-2.0
"""Ensembles and cascades: outputs, sizes and forwarded samples against hand calculation; what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import combined_models
import numpy as np
import pytest
from refusals import refused

from gpuprof.bench import Cascade, Ensemble, SystemSpec, Variant
from gpuprof.bench.compare.plan import AccuracyPlan, ComparisonPlan, parse_variants, read_suite
from gpuprof.bench.compare.run import carry_out
from gpuprof.bench.config import Settings
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.frameworks.combined import below, mean_of, probabilities
from gpuprof.bench.validation import check_spec
from gpuprof.errors import BenchmarkError

MODELS = Path(combined_models.__file__)
# Top probabilities of `small`: 0.5, 0.73, 0.88, 0.95.
SAMPLES = np.array([[0.0, 9], [1.0, 9], [-2.0, 9], [3.0, 9]])


def part(name: str, **options: Any) -> SystemSpec:
    return SystemSpec(f"{MODELS}:{name}", **{"input_shape": (2,), "dtype": "float64", **options})


def prepared(model: Ensemble | Cascade, batch_size: int = 4) -> FrameworkSystem:
    system = make_system(model.spec("both"))
    system.import_framework()
    system.load()
    system.prepare(batch_size)
    return system


# --- outputs -------------------------------------------------------------------------------------


def test_an_ensemble_returns_the_mean_of_its_outputs() -> None:
    system = prepared(Ensemble([part("small"), part("large")]))
    system.feed(SAMPLES)
    # (1 x - 3 x) / 2 = -x, and 0.
    assert np.array_equal(system.first_inference(), np.stack([-SAMPLES[:, 0], np.zeros(4)], axis=1))


def test_an_ensemble_of_probabilities_returns_the_mean_of_softmax() -> None:
    system = prepared(Ensemble([part("small"), part("large")], average="probabilities"))
    system.feed(SAMPLES)
    found = system.first_inference()
    wanted = [(1 / (1 + math.exp(-x)) + 1 / (1 + math.exp(3 * x))) / 2 for x in SAMPLES[:, 0]]
    assert np.allclose(found, np.stack([wanted, 1 - np.array(wanted)], axis=1))


def test_a_cascade_hands_on_the_samples_below_the_threshold() -> None:
    system = prepared(Cascade(part("small"), part("large"), threshold=0.8))
    system.feed(SAMPLES)
    found = system.first_inference()
    system.count_samples(4)
    # 0.5 and 0.73 are below: these two have the scores of `large`.
    assert np.array_equal(found[:, 0], [0.0, -3.0, -2.0, 3.0])
    assert system.describe().forwarded == 0.5


@pytest.mark.parametrize(("threshold", "wanted"), [(0.0, 0.0), (0.4, 0.0), (0.99, 1.0), (1.0, 1.0)])
def test_a_cascade_may_hand_on_no_sample_or_all(threshold: float, wanted: float) -> None:
    system = prepared(Cascade(part("small"), part("large"), threshold=threshold))
    system.feed(SAMPLES)
    found = np.asarray(system.first_inference())
    system.count_samples(4)
    assert system.describe().forwarded == wanted
    assert np.array_equal(found[:, 0], SAMPLES[:, 0] * (-3.0 if wanted else 1.0))


def test_what_fills_up_a_batch_is_not_counted() -> None:
    system = prepared(Cascade(part("small"), part("large"), threshold=0.8))
    for rows, first in ((4, SAMPLES), (1, SAMPLES[[0, 0, 0, 0]])):
        system.feed(first)
        system.first_inference()
        system.count_samples(rows)
    assert system.describe().forwarded == pytest.approx(3 / 5)


def test_the_calls_of_a_cascade_have_the_fraction_that_is_reported() -> None:
    """Of a batch size of 1 each call takes one way: calls take 64 samples in turn."""
    system = prepared(Cascade(part("small"), part("large"), threshold=0.7), batch_size=1)
    outputs = np.concatenate([np.asarray(system.run()) for _ in range(128)])
    inputs = np.concatenate([np.asarray(each[0][0]) for each in system._placed])  # type: ignore[attr-defined]
    is_forwarded = 1 / (1 + np.exp(-np.abs(inputs[:, 0]))) < 0.7
    assert 0.2 < is_forwarded.mean() < 0.9
    assert system.describe().forwarded == is_forwarded.mean()
    assert np.array_equal(outputs[:64, 0], inputs[:, 0] * np.where(is_forwarded, -3.0, 1.0))
    assert np.array_equal(outputs[64:], outputs[:64])


def test_inputs_of_the_first_parts_factory_are_those_of_all() -> None:
    spec = part("with_inputs", input_shape=None)
    system = prepared(Ensemble([spec, part("large")]))
    x = np.linspace(-4, 4, 8).reshape(4, 2)[:, 0]
    assert np.allclose(np.asarray(system.first_inference())[:, 0], -x)


def test_probabilities_are_not_made_probabilities_again() -> None:
    given = np.array([[0.25, 0.75], [0.9, 0.1]])
    assert np.array_equal(probabilities(given), given)
    assert below(given, 0.8).tolist() == [0]
    assert below(np.array([[np.nan, 0.0], [9.0, 0.0]]), 0.5).tolist() == [0]
    assert mean_of([given, given[::-1]], "outputs").tolist() == [[0.575, 0.425], [0.575, 0.425]]


def test_parts_of_pytorch_stay_tensors_and_their_sizes_add_up() -> None:
    torch = pytest.importorskip("torch")
    parts = [part("linear", dtype="float32", seed=seed) for seed in (1, 2)]
    system = prepared(Ensemble(parts))
    described = system.describe()
    assert (described.parameters, described.model_bytes) == (2 * 15, 2 * 15 * 4)
    single = [make_system(each) for each in parts]
    batch = SAMPLES.astype(np.float32)
    for each in single:
        each.import_framework()
        each.load()
        each.prepare(4)
        each.feed(batch)
    system.feed(batch)
    found = system.first_inference()
    assert isinstance(found, torch.Tensor)
    assert torch.allclose(found, (single[0].run() + single[1].run()) / 2)  # type: ignore[operator]
    cascade = prepared(Cascade(*parts, threshold=0.5))
    cascade.feed(batch)
    small, large = single[0].run(), single[1].run()
    is_forwarded = small.softmax(1).amax(1) < 0.5  # type: ignore[attr-defined]
    wanted = torch.where(is_forwarded[:, None], large, small)
    assert torch.allclose(cascade.first_inference(), wanted)


def test_parts_of_different_frameworks_are_averaged() -> None:
    torch = pytest.importorskip("torch")
    parts = [part("linear", dtype="float32"), part("linear", dtype="float32", framework="torchscript")]
    system = prepared(Ensemble(parts))
    assert system.describe().framework == "pytorch+torchscript"
    assert isinstance(system.first_inference(), torch.Tensor)


# --- the command line and suites -----------------------------------------------------------------


def test_texts_of_variants() -> None:
    like = SystemSpec("", input_shape=(2,))
    text = (
        "one:a.py:x,both:ensemble:a.py:x@bf16+b.py:y,ensemble-probabilities:a.py:x+b.py:y,c:cascade:s->l@0.9"
    )
    one, both, soft, cascade = parse_variants(text, like)
    assert one.spec.combination is None
    assert both.spec.combination is not None
    assert [each.model for each in both.spec.combination.parts] == ["a.py:x", "b.py:y"]
    assert [each.recipe for each in both.spec.combination.parts] == ["bf16", None]
    assert soft.name == "ensemble-probabilities:a.py:x+b.py:y"
    assert soft.spec.combination is not None
    assert soft.spec.combination.average == "probabilities"
    assert cascade.spec.combination is not None
    assert cascade.spec.combination.threshold == 0.9
    assert [each.input_shape for each in cascade.spec.combination.parts] == [(2,), (2,)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ensemble:a.pt", "number_of_parts"),
        ("ensemble:a.pt+", "no_model"),
        ("ensemble:", "no_model"),
        ("ensemble:a.pt+ensemble:b.pt", "nested_combination"),
        ("ensemble:a.pt+cascade:b.pt->c.pt@0.5", "nested_combination"),
        ("cascade:a.pt@0.9", "number_of_parts"),
        ("cascade:a.pt->b.pt->c.pt@0.9", "number_of_parts"),
        ("cascade:a.pt->b.pt", "no_threshold"),
        ("cascade:a.pt->b.pt@bf16", "no_threshold"),
        ("cascade:a.pt->b.pt@1.5", "invalid_threshold"),
        ("cascade:a.pt->b.pt@-0.1", "invalid_threshold"),
        ("cascade:a.pt->b.pt@nan", "invalid_threshold"),
    ],
)
def test_texts_that_are_refused(text: str, code: str) -> None:
    with refused(BenchmarkError, code):
        parse_variants(text, SystemSpec(""))


def test_objects_that_are_refused() -> None:
    with refused(BenchmarkError, "number_of_parts"):
        Variant("v", Ensemble([]))
    with refused(BenchmarkError, "number_of_parts"):
        Variant("v", Ensemble(["resnet50"]))
    with refused(BenchmarkError, "nested_combination"):
        Variant("v", Ensemble(["resnet50", Ensemble(["resnet50", "vit_b_16"])]))
    with refused(BenchmarkError, "invalid_threshold"):
        Variant("v", Cascade("resnet50", "vit_b_16", threshold=2))
    with refused(BenchmarkError, "invalid_average"):
        Variant("v", Ensemble(["resnet50", "vit_b_16"], average="median"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (Ensemble([part("small"), part("three_classes")]), "different_classes"),
        (Cascade(part("small"), part("three_classes"), 0.5), "different_classes"),
        (Ensemble([part("small"), part("large", input_shape=(3,))]), "different_inputs"),
        (Ensemble([part("two_outputs"), part("small")]), "no_single_output"),
    ],
)
def test_parts_that_do_not_fit_together(model: Ensemble | Cascade, code: str) -> None:
    with refused(BenchmarkError, code):
        prepared(model)


def test_the_large_model_of_a_cascade_takes_any_batch_size() -> None:
    pytest.importorskip("torch")
    large = part("linear", dtype="float32", framework="torch-compile")
    with refused(BenchmarkError, "batch_size_of_cascade", "torch-compile"):
        check_spec(Cascade(part("linear", dtype="float32"), large, 0.5).spec("v"))
    with refused(BenchmarkError, "no_such_file"):
        check_spec(Ensemble([part("small"), "missing.onnx"]).spec("v"))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_file_of_torchscript_is_a_large_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "large.pt"
    torch.jit.script(torch.nn.Linear(2, 5)).save(path)
    large = SystemSpec(str(path), input_shape=(2,))
    cascade = Cascade(part("linear", dtype="float32"), large, threshold=1.0)
    check_spec(cascade.spec("v"))
    system = prepared(cascade)
    assert system.describe().forwarded == 1.0
    assert system.describe().model_bytes == 2 * 15 * 4


def test_parts_of_a_suite_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS.read_text(encoding="utf-8"), encoding="utf-8")
    suite = tmp_path / "suite.toml"
    text = '[[variant]]\nname = "one"\nmodel = "models.py:small"\n'
    text += '[[variant]]\nname = "both"\nmodel = "cascade:models.py:small->models.py:large@0.8"\n'
    suite.write_text(text, encoding="utf-8")
    combination = read_suite(suite).variants[1].spec.combination
    assert combination is not None
    assert [each.model for each in combination.parts] == [
        f"{tmp_path / 'models.py'}:{name}" for name in ("small", "large")
    ]
    suite.write_text(text + 'recipe = "bf16"\n', encoding="utf-8")
    with refused(BenchmarkError, "recipe_of_combination"):
        read_suite(suite)


# --- a whole comparison --------------------------------------------------------------------------


def test_a_comparison_has_the_figures_of_the_whole(tmp_path: Path) -> None:
    """Accuracy and forwarded samples of a data set in which half of the labels are those of `large`."""
    # Confident and right, and near 0, where `small` is wrong and not confident.
    x = np.concatenate([np.linspace(2.5, 4, 30), np.linspace(0.1, 1.0, 10)])
    labels = np.where(x > 2, 0, 1)
    path = tmp_path / "test.npz"
    np.savez(path, inputs=np.stack([x, 0 * x], axis=1), labels=labels)
    plan = ComparisonPlan(
        (
            Variant("small", part("small")),
            Variant("cascade", Cascade(part("small"), part("large"), threshold=0.8)),
            Variant("ensemble", Ensemble([part("small"), part("large")])),
        ),
        launches=1,
        measuring=Settings(iterations=20, warmup=1),
        accuracy=AccuracyPlan(str(path)),
    )
    document = carry_out(plan, tmp_path / "results").document
    assert [str(each.status) for each in document.variants] == ["measured"] * 3
    small, cascade, ensemble = (each.accuracy for each in document.variants)
    assert small is not None
    assert cascade is not None
    assert ensemble is not None
    # 30 of 40 are right; the cascade hands on the 10 others, of which `large` is right; -x is wrong for 30.
    assert [each.accuracy for each in (small, cascade, ensemble)] == [0.75, 1.0, 0.25]
    assert [each.forwarded for each in (small, cascade, ensemble)] == [None, 0.25, None]
    assert document.variants[1].technique == "cascade at 0.8"
    assert document.variants[1].batches[0].forwarded is not None
    classes = {each.name: each for each in small.classes}
    assert {name: (each.support, each.recall) for name, each in classes.items()} == {
        "0": (30, 1.0),
        "1": (10, 0.0),
    }
    assert (classes["0"].precision, classes["1"].precision) == (0.75, None)
    assert classes["0"].f1 == pytest.approx(2 * 0.75 / 1.75)
    assert small.mse == 0
    # Scores differ by 2 x in the first of two columns of the cascade's 10 forwarded samples: -3 x - x.
    assert cascade.mse == pytest.approx(float((16 * x[30:] ** 2).sum() / 80))
