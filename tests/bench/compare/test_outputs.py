# SPDX-License-Identifier: Apache-2.0
"""Outputs of variants over a data set: each sample once, stored, compared, judged by the user's metrics."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench import Metric
from gpuprof.bench.accuracy.metrics import as_metric, evaluate_metrics, load_metric
from gpuprof.bench.compare.accuracy import accuracy_figures, compare_accuracy, open_plan_dataset
from gpuprof.bench.compare.document import AccuracyFigures, MetricFigures, ScoreFigures
from gpuprof.bench.compare.plan import AccuracyPlan, ComparisonPlan, Variant
from gpuprof.bench.compare.stored_outputs import (
    OutputsJob,
    StoredOutputs,
    compare_stored_outputs,
    read_outputs,
    record_outputs,
    reference_spec,
    run_outputs_job,
)
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.frameworks import with_recipe
from gpuprof.bench.models.data import Dataset, InputSpec, open_dataset
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.workers.events import State
from gpuprof.errors import BenchmarkError

MODELS = Path(__file__).parents[2] / "support" / "output_models.py"
SAMPLES = 11


def spec_of(factory: str, **more: Any) -> SystemSpec:
    return SystemSpec(f"{MODELS}:{factory}", **{"framework": "python", "input_shape": (6,), **more})


def run_on(
    spec: SystemSpec, dataset: Dataset, folder: Path, *, batch_size: int = 4, name: str = "variant"
) -> StoredOutputs:
    """Do in this process what a process run does."""
    run_outputs_job(OutputsJob(spec, dataset.asked, str(folder), batch_size), lambda event: None)
    return read_outputs(name, folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A data set whose first sum decides the class."""
    inputs = np.random.default_rng(0).standard_normal((SAMPLES, 6)).astype(np.float32)
    path = tmp_path / "data.npz"
    np.savez(path, inputs=inputs, labels=(inputs.sum(axis=1) < 0).astype(np.int64))
    return path


# --- data sets -----------------------------------------------------------------------------------


def test_each_sample_is_run_once_and_the_last_batch_is_smaller(file: Path, tmp_path: Path) -> None:
    found = run_on(spec_of("sums"), open_dataset(str(file)), tmp_path / "outputs")
    inputs = np.load(file)["inputs"]
    assert (found.samples, found.batch_size) == (SAMPLES, 4)
    np.testing.assert_allclose(found.arrays()["output"][:, 0], inputs.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found.labels, np.load(file)["labels"])
    assert len(np.load(tmp_path / "outputs" / "batch-00002.npz")["output-0"]) == 3
    np.testing.assert_array_equal(found.rows(3, 9)["output"].values, found.arrays()["output"][3:9])


def test_batch_sizes_change_no_synthetic_sample() -> None:
    dataset = open_dataset("synthetic", samples=9, seed=3)
    shape = InputSpec((2, 3))
    whole = dataset.rows(0, 9, shape)
    parts = [dataset.rows(first, min(first + 4, 9), shape) for first in (0, 4, 8)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    tokens = dataset.rows(0, 9, InputSpec((5,), 7))
    assert (tokens.dtype, tokens.min() >= 0, tokens.max() < 7) == (np.int64, True, True)
    assert not np.array_equal(whole, open_dataset("synthetic", samples=9, seed=4).rows(0, 9, shape))


@pytest.mark.needs("PIL")
def test_folders_of_images_have_a_fixed_order_and_labels(tmp_path: Path) -> None:
    from PIL import Image as image

    for name, shade in (("dog", 200), ("cat", 20)):
        (tmp_path / name).mkdir()
        for number in range(3):
            image.new("RGB", (4, 4), (shade + number,) * 3).save(tmp_path / name / f"{number}.png")
    found = [open_dataset(str(tmp_path), seed=seed) for seed in (0, 1)]
    assert found[0].classes == ("cat", "dog")
    np.testing.assert_array_equal(found[0].labels, [0, 0, 0, 1, 1, 1])
    assert found[0].identity == found[1].identity
    pixels = found[1].rows(0, 6, InputSpec((3, 2, 2)))
    assert pixels.shape == (6, 3, 2, 2)
    assert (np.diff(pixels[:, 0, 0, 0]) > 0).all()
    some = open_dataset(str(tmp_path), samples=4, seed=1)
    assert (some.samples, sorted(some.labels) == some.labels.tolist()) == (4, True)
    assert some.identity != open_dataset(str(tmp_path), samples=4, seed=2).identity


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"inputs": np.zeros((0, 6))}, "no_samples"),
        ({"inputs": np.zeros((3, 6)), "labels": np.zeros(2)}, "number_of_labels"),
        ({"inputs": np.zeros((3, 6)), "labels": np.array(["a"] * 3)}, "invalid_labels"),
        ({"inputs": np.zeros((3, 6))}, "no_labels"),
    ],
)
def test_data_sets_that_cannot_be_used_are_one_line(
    tmp_path: Path, arrays: dict[str, Any], line: str
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with refused(BenchmarkError, line):
        open_dataset(str(tmp_path / "data.npz"), needs_labels=True)


def test_missing_data_sets_are_one_line(tmp_path: Path) -> None:
    with refused(BenchmarkError, "no_samples"):
        open_dataset(str(tmp_path))
    with refused(BenchmarkError, "no_such_data"):
        open_dataset(str(tmp_path / "none"))
    with refused(BenchmarkError, "invalid_samples"):
        open_dataset("synthetic", samples=0)
    with refused(BenchmarkError, "no_labels"):
        open_dataset("synthetic", needs_labels=True)


# --- models --------------------------------------------------------------------------------------


def test_outputs_without_a_value_for_each_sample_are_reported(file: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(file))
    found = run_on(spec_of("two_outputs"), dataset, tmp_path / "a")
    assert list(found.outputs) == ["scores"]
    assert "total" in found.skipped
    total = note("output_not_stored", variant=found.name, output="total")
    assert total in compare_stored_outputs(found, found).notes
    with refused(BenchmarkError, "no_sample_axis", "4"):
        run_on(spec_of("of_one"), dataset, tmp_path / "b")


def test_inputs_of_the_factory_are_the_same_for_each_variant(tmp_path: Path) -> None:
    dataset = open_dataset("synthetic", samples=5)
    spec = spec_of("in_pairs", input_shape=None)
    one, other = (run_on(spec, dataset, tmp_path / name, batch_size=2) for name in "ab")
    np.testing.assert_array_equal(one.arrays()["output"], other.arrays()["output"])
    assert one.arrays()["output"].shape == (5, 3)
    assert len(np.unique(one.arrays()["output"][:, 0])) == 5
    np.savez(tmp_path / "data.npz", inputs=np.zeros((4, 2)))
    with refused(BenchmarkError, "number_of_inputs", "2"):
        run_on(spec, open_dataset(str(tmp_path / "data.npz")), tmp_path / "c")


def test_files_of_one_batch_size_are_filled_up(file: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(6, 3).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(4, 6),)), tmp_path / "model.pt2")
    spec = SystemSpec(str(tmp_path / "model.pt2"), trust_pickle=True, device="cpu")
    found = run_on(spec, open_dataset(str(file)), tmp_path / "outputs", batch_size=32)
    assert (found.batch_size, found.computes_in) == (4, "float32")
    expected = module(torch.from_numpy(np.load(file)["inputs"])).detach().numpy()
    np.testing.assert_allclose(found.arrays()["output"], expected, rtol=1e-5, atol=1e-6)


def test_stored_outputs_are_described_and_broken_ones_are_an_error(file: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    spec = spec_of("network", framework="pytorch", dtype="bfloat16", device="cpu")
    found = run_on(spec, open_dataset(str(file)), tmp_path / "outputs")
    assert (found.outputs, found.computes_in) == ({"output": "bfloat16"}, "bfloat16")
    assert found.rows(0, 2)["output"].dtype == "bfloat16"
    assert found.description.details["torch"] == torch.__version__
    (tmp_path / "outputs" / "batch-00001.npz").write_bytes(b"PK")
    with refused(BenchmarkError, "cannot_read", "batch-00001.npz"):
        found.arrays()
    (tmp_path / "outputs" / "answers.json").unlink()
    with refused(BenchmarkError, "cannot_read"):
        read_outputs("variant", tmp_path / "outputs")


def test_a_reference_is_of_modules_that_no_recipe_changes(tmp_path: Path) -> None:
    spec = SystemSpec("resnet50", "onnxruntime", dtype="float32", device="auto")
    found = reference_spec(with_recipe(spec, "onnx"))
    assert found == SystemSpec("resnet50", "pytorch", dtype="float64", device="cpu")
    assert reference_spec(with_recipe(SystemSpec("resnet50"), "pruned")) is None
    (tmp_path / "model.onnx").write_bytes(b"")
    assert reference_spec(SystemSpec(str(tmp_path / "model.onnx"))) is None
    assert reference_spec(SystemSpec("resnet50", "jax")) is None


# --- fresh processes -----------------------------------------------------------------------------


def test_a_variant_that_fails_leaves_the_others_be(file: Path, tmp_path: Path) -> None:
    """Three process runs: one crashes, one predicts, one raises; the quantized one is compared below."""
    pytest.importorskip("torch")
    plain = spec_of("network", framework="pytorch", device="cpu")
    dataset = open_dataset(str(file), needs_labels=True)
    seen: list[Any] = []
    options = {"batch_size": 4, "on_event": seen.append}
    with refused(BenchmarkError, "failed", "SIGABRT", "batch size 4"):
        record_outputs("crash", spec_of("dying"), dataset, tmp_path / "crash", **options)
    with refused(BenchmarkError, "failed", "ValueError"):
        record_outputs("odd", spec_of("raising"), dataset, tmp_path / "odd", **options)
    assert [each.calls for each in seen if each.state is State.PREDICTING] == []
    spec = with_recipe(plain, "int8-dynamic")
    int8 = record_outputs("int8", spec, dataset, tmp_path / "int8", **options)
    assert [each.calls for each in seen if each.state is State.PREDICTING] == [4, 8, 11]
    baseline = run_on(plain, dataset, tmp_path / "baseline", name="original")
    reference = run_on(reference_spec(plain), dataset, tmp_path / "reference")
    comparison = compare_stored_outputs(baseline, int8, reference=reference)
    (tolerance,) = comparison.tolerance
    assert (tolerance.verdict, tolerance.baseline_dtype, tolerance.optimized_dtype) == (
        "within", "float32", "int8",
    )  # fmt: skip
    assert 0 < comparison.numerics[0].relative_l2 < 0.03
    assert (baseline.labels == int8.labels).all()


def test_a_batch_of_nothing_is_refused_before_a_process_starts(file: Path, tmp_path: Path) -> None:
    with refused(BenchmarkError, "invalid_batch_size", "0"):
        record_outputs("none", spec_of("sums"), open_dataset(str(file)), tmp_path / "a", batch_size=0)


# --- comparing -----------------------------------------------------------------------------------


@pytest.fixture
def stored(file: Path, tmp_path: Path) -> Any:
    dataset = open_dataset(str(file))

    def make(factory: str, **more: Any) -> StoredOutputs:
        return run_on(spec_of(factory), dataset, tmp_path / factory, name=factory, **more)

    return make


def test_accuracy_is_that_of_the_labels_on_both_sides(stored: Any, file: Path) -> None:
    wrong = np.load(file)["labels"].mean()
    comparison = compare_stored_outputs(
        stored("sums"), stored("wrong_for_class_one", batch_size=5), margin=0.02
    )
    figures = accuracy_figures(comparison)
    assert figures.samples == SAMPLES
    assert figures.labelled
    assert figures.baseline == ScoreFigures(1.0, 1.0, 1.0, 1.0)
    assert figures.accuracy == pytest.approx(1 - wrong)
    assert figures.recall == pytest.approx(0.5)
    assert figures.change.value == pytest.approx(-wrong)
    assert figures.change.low < -wrong < figures.change.high
    assert figures.agreement_top1 == pytest.approx(1 - wrong)
    assert (figures.agreement_top5, figures.tolerance, figures.nan) == (None, None, 0)
    assert from_plain(json.loads(json.dumps(to_plain(figures))), AccuracyFigures) == figures


def test_a_baseline_has_no_change(stored: Any) -> None:
    baseline = stored("sums")
    figures = accuracy_figures(compare_stored_outputs(baseline, baseline), is_baseline=True)
    assert (figures.change, figures.verdict, figures.accuracy) == (None, None, 1.0)
    assert (figures.agreement_top1, figures.relative_error) == (1.0, 0.0)


def test_nan_is_counted_and_found(stored: Any) -> None:
    figures = accuracy_figures(compare_stored_outputs(stored("sums"), stored("not_a_number")))
    assert figures.nan == 9
    assert figures.findings[0].values["found"]["nan"] == 9
    assert figures.max_absolute_error == 0.0


def test_outputs_of_other_names_are_compared_by_their_order(stored: Any) -> None:
    found = compare_stored_outputs(stored("two_outputs"), stored("two_other_outputs"))
    assert [each.name for each in found.numerics] == ["scores"]
    assert found.numerics[0].different == 0


def test_outputs_that_do_not_match_are_an_error(stored: Any, file: Path, tmp_path: Path) -> None:
    with refused(BenchmarkError, "outputs_differ", "baseline", "4", "3", "optimized"):
        compare_stored_outputs(stored("sums"), stored("four_classes"))
    other = run_on(spec_of("sums"), open_dataset(str(file), samples=5), tmp_path / "other", name="short")
    with refused(BenchmarkError, "data_differs", "short", "5"):
        compare_stored_outputs(stored("sums"), other)
    with refused(BenchmarkError, "number_of_classes", "2", "3"):
        compare_stored_outputs(stored("sums"), stored("sums"), classes=("a", "b"))


def test_labels_that_are_no_classes_are_left_to_metrics(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, inputs=np.ones((4, 6), np.float32), labels=np.full(4, 6.5))
    found = run_on(spec_of("sums"), open_dataset(str(path)), tmp_path / "outputs")
    figures = accuracy_figures(compare_stored_outputs(found, found))
    assert (figures.labelled, figures.accuracy, figures.agreement_top1) == (False, None, 1.0)

    def error(outputs: Any, labels: Any) -> float:
        return float(np.abs(outputs[:, 0] - labels).mean())

    assert evaluate_metrics([as_metric(error)], found, found)[0].value == 0.5


def test_class_names_come_with_the_data_and_pruning_has_no_tolerance(stored: Any) -> None:
    baseline, variant = stored("sums"), stored("wrong_for_class_one")
    named = dataclasses.replace(baseline, classes=("plus", "minus", "none"))
    assert compare_stored_outputs(named, variant).classification.names == ("plus", "minus", "none")
    assert (
        compare_stored_outputs(dataclasses.replace(named, classes=("a", "b")), variant).classification.names
        is None
    )
    pruned = dataclasses.replace(variant, spec=dataclasses.replace(variant.spec, recipe="pruned:0.5"))
    found = compare_stored_outputs(baseline, pruned, reference=baseline)
    assert found.tolerance == ()
    assert note("pruned_not_judged", variant=variant.name) in found.notes


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_are_functions_or_subclasses(stored: Any, file: Path) -> None:
    metrics = [load_metric(f"{MODELS}:{name}") for name in ("top_score", "ErrorRate")]
    baseline, variant = stored("sums"), stored("wrong_for_class_one")
    top, rate = evaluate_metrics(metrics, baseline, variant)
    assert (top.name, top.better, rate.name, rate.better) == ("top_score", "higher", "ErrorRate", "lower")
    assert (rate.baseline, rate.value) == (0.0, pytest.approx(np.load(file)["labels"].mean()))
    figures = accuracy_figures(compare_stored_outputs(baseline, variant), metrics=[top, rate])
    assert figures.metrics[1] == MetricFigures("ErrorRate", rate.value, 0.0, "lower")


def test_metrics_that_fail_are_notes(stored: Any) -> None:
    baseline = stored("sums")
    metrics = [load_metric(f"{MODELS}:{name}") for name in ("nothing", "broken")]
    nothing, broken = evaluate_metrics(metrics, baseline, baseline)
    assert nothing.value is None
    assert nothing.problem == warning("metric_not_finite", metric="nothing", variant="sums", value="nan")
    assert (broken.value, broken.problem.code) == (None, "metric_raised")
    assert broken.problem.values["error"].startswith("ValueError")
    assert broken.problem.values["place"].startswith("output_models.py:")
    figures = accuracy_figures(compare_stored_outputs(baseline, baseline), metrics=[nothing, broken])
    assert figures.findings == (nothing.problem, broken.problem)


def test_what_is_no_metric_is_refused() -> None:
    with refused(BenchmarkError, "invalid_metric", "NUMBER", "int"):
        load_metric(f"{MODELS}:NUMBER")
    with refused(BenchmarkError, "no_such_function", "nowhere"):
        load_metric(f"{MODELS}:nowhere")

    class Sideways(Metric):
        better = "sideways"  # type: ignore[assignment]

    with refused(BenchmarkError, "invalid_better"):
        as_metric(Sideways())


# --- all variants of a plan ----------------------------------------------------------------------


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let process runs be calls: fresh processes are tested above."""

    def run(job: Any, *, time_limit_s: float, on_event: Any) -> None:
        run_outputs_job(job, on_event)

    monkeypatch.setattr("gpuprof.bench.compare.stored_outputs.run_process", run)


def plan_of(file: Path, *factories: str, **more: Any) -> ComparisonPlan:
    variants = tuple(Variant(each, spec_of(each)) for each in factories)
    accuracy = AccuracyPlan(str(file), batch_size=4, **more)
    return ComparisonPlan(variants, accuracy=accuracy, launches=1)


@pytest.mark.usefixtures("in_process")
def test_all_variants_of_a_plan_have_an_accuracy_or_a_reason(file: Path, tmp_path: Path) -> None:
    plan = plan_of(
        file, "sums", "wrong_for_class_one", "raising", "four_classes", metrics=(f"{MODELS}:top_score",)
    )
    seen: set[str] = set()
    compared = compare_accuracy(plan, tmp_path / "outputs", lambda name, event: seen.add(name))
    found = compared.of
    assert seen == {"sums", "wrong_for_class_one", "raising", "four_classes"}
    assert (found["sums"].verdict, found["sums"].accuracy) == (None, 1.0)
    assert found["wrong_for_class_one"].accuracy < 1
    assert found["wrong_for_class_one"].metrics[0].name == "top_score"
    assert "no weights are here" in str(found["raising"])
    reason = found["four_classes"]
    assert isinstance(reason, Diagnostic)
    assert reason.code == "no_outputs"
    assert "(4, 4)" in reason.values["reason"]


@pytest.mark.usefixtures("in_process")
def test_without_a_baseline_there_is_nothing_to_compare_with(file: Path, tmp_path: Path) -> None:
    found = compare_accuracy(plan_of(file, "raising", "sums"), tmp_path).of
    own, others = found["raising"], found["sums"]
    assert (own.code, others.code) == ("no_outputs", "no_baseline_outputs")
    assert "no weights are here" in own.values["reason"]
    assert others.values == {"baseline": "raising", "reason": own.values["reason"]}
    none = dataclasses.replace(plan_of(file, "sums"), accuracy=None)
    assert compare_accuracy(none, tmp_path).of == {"sums": note("accuracy_not_requested")}
    with refused(BenchmarkError, "no_such_function", "nowhere"):
        open_plan_dataset(plan_of(file, "sums", metrics=(f"{MODELS}:nowhere",)))


@pytest.mark.usefixtures("in_process")
def test_a_reference_that_fails_is_a_note_and_one_that_runs_judges(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    plain = spec_of("network", framework="pytorch", device="cpu")
    variants = (Variant("original", plain), Variant("half", dataclasses.replace(plain, dtype="bfloat16")))
    plan = ComparisonPlan(variants, accuracy=AccuracyPlan(str(file)), launches=1)
    found = compare_accuracy(plan, tmp_path / "one")
    assert {each.tolerance for each in found.of.values()} == {"within"}
    assert found.notes == ()
    reference = "gpuprof.bench.compare.accuracy.reference_spec"
    monkeypatch.setattr(reference, lambda spec: spec_of("raising"))
    failed = compare_accuracy(plan, tmp_path / "two")
    assert failed.of["half"].tolerance is None
    assert failed.notes[0].code == "no_reference"
