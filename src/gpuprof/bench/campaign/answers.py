# SPDX-License-Identifier: Apache-2.0
"""Variants answer a data set, each in a fresh process, and their answers are held against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gpuprof.bench.accuracy.outputs_comparison import MARGIN, OutputComparison, compare_outputs
from gpuprof.bench.campaign.dataset import Dataset
from gpuprof.bench.campaign.stored_answers import StoredAnswers, read_answers
from gpuprof.bench.models import parse_model
from gpuprof.bench.process import Event, run_launch
from gpuprof.bench.recipes import parse_recipe
from gpuprof.bench.session import TIME_LIMIT_S
from gpuprof.bench.spec import SystemSpec
from gpuprof.errors import BenchmarkError, GpuprofError

BATCH_SIZE = 32
# What one launch of a float64 reference may be made of: modules that PyTorch can turn into it.
_MODULE_KINDS = ("name", "factory", "pickle", "torchscript")
_MODULE_FRAMEWORKS = ("auto", "pytorch", "torch-compile", "torchscript", "torch-export", "onnxruntime")


@dataclass(frozen=True, slots=True)
class FailedAnswers:
    """A variant that gave no answers, and why, on one line."""

    name: str
    reason: str


Answers: TypeAlias = StoredAnswers | FailedAnswers


def _ignore(_event: Event) -> None:
    return None


def record_answers(
    name: str,
    spec: SystemSpec,
    dataset: Dataset,
    folder: Path,
    *,
    batch_size: int = BATCH_SIZE,
    time_limit_s: float = TIME_LIMIT_S,
    on_event: Callable[[Event], None] = _ignore,
) -> Answers:
    """Answer each sample of a data set once, in a fresh process; the outputs are stored in `folder`.

    A variant that raises, hangs, crashes or does not fit is a FailedAnswers. A file with one batch size of
    its own is run with that. An interrupt goes through.
    """
    job = {
        "answers": {"dataset": dataset.asked, "folder": str(folder.resolve()), "batch_size": batch_size},
        "spec": spec.to_dict(),
    }
    try:
        if batch_size < 1:
            raise BenchmarkError(f"a batch of {batch_size} holds no samples: batch sizes begin at 1")
        run_launch(job, time_limit_s=time_limit_s, on_event=on_event)
        return read_answers(name, folder)
    except (GpuprofError, OSError) as error:
        return FailedAnswers(name, str(error))


def record_all(
    variants: Mapping[str, SystemSpec], dataset: Dataset, folder: Path, **options: Any
) -> dict[str, Answers]:
    """Answer with each variant, one after the other, into a folder of its own; `options` as of one."""
    return {
        name: record_answers(name, spec, dataset, folder / f"{place:02d}", **options)
        for place, (name, spec) in enumerate(variants.items())
    }


def reference_spec(spec: SystemSpec) -> SystemSpec | None:
    """Return the spec of the same model in float64, which says what a type's roundoff explains.

    None where the model is no module of PyTorch, or is changed by its recipe.
    """
    if spec.recipe is not None and parse_recipe(spec.recipe).recipe.changes:
        return None
    from gpuprof.bench.systems import framework_name

    kind = parse_model(spec.model, trust_pickle=spec.trust_pickle).kind
    if kind not in _MODULE_KINDS or framework_name(spec.framework) not in _MODULE_FRAMEWORKS:
        return None
    framework = "torchscript" if kind == "torchscript" else "auto" if kind == "factory" else "pytorch"
    device = "cpu" if spec.device in ("auto", "mps") else spec.device
    return dataclasses.replace(spec, framework=framework, dtype="float64", device=device, recipe=None)


# --- comparing -----------------------------------------------------------------------------------


def compare_answers(
    baseline: StoredAnswers,
    variant: StoredAnswers,
    *,
    margin: float = MARGIN,
    classes: bool | Sequence[str] | None = None,
    reference: StoredAnswers | None = None,
) -> OutputComparison:
    """Compare stored answers as `compare_outputs` compares models: numbers, tolerance, classes.

    `reference` holds the answers of the same model in higher precision. `classes` are names, the data set's
    own where None. Raises BenchmarkError where the answers are of other data, or outputs do not match.
    """
    notes = [f"{each.name}: {note}" for each in (baseline, variant) for note in each.notes]
    _check_same_data(baseline, variant)
    if reference is not None and _is_pruned(variant):
        notes.append(f"{variant.name}: tolerance is not judged: pruning is no rounding, it changes the model")
        reference = None
    if reference is not None:
        _check_same_data(baseline, reference)
    found = compare_outputs(
        _reader(baseline, baseline, notes),
        _reader(variant, baseline, notes),
        _Rows(baseline),
        classes=_class_names(baseline) if classes is None else classes,
        reference=None if reference is None else _reader(reference, baseline, []),
        # Of stored numbers nobody can tell what they were computed in: the launch has.
        baseline_dtype=baseline.computes_in,
        optimized_dtype=variant.computes_in,
        margin=margin,
    )
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _is_pruned(answers: StoredAnswers) -> bool:
    recipe = answers.said["spec"]["recipe"]
    return recipe is not None and "prune" in parse_recipe(recipe).recipe.changes


def _check_same_data(one: StoredAnswers, other: StoredAnswers) -> None:
    if (one.data, one.samples) != (other.data, other.samples):
        raise BenchmarkError(
            f"{one.name} answered {one.data}, and {other.name} {other.data}: run both on the same data set"
        )


class _Rows:
    """Batches of sample numbers, with labels where those are classes."""

    def __init__(self, answers: StoredAnswers) -> None:
        self._samples, self._step = answers.samples, answers.batch_size
        labels = answers.labels
        is_classes = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
        self._labels = labels if is_classes else None

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, self._samples, self._step):
            rows = np.arange(first, min(first + self._step, self._samples))
            yield rows if self._labels is None else (rows, self._labels[rows])


def _reader(answers: StoredAnswers, baseline: StoredAnswers, notes: list[str]) -> Callable[..., Any]:
    """Return a function of sample numbers that hands out what is stored, under the baseline's names.

    Frameworks call the same outputs by other names, or by places: then their order decides.
    """
    names = {name: name for name in answers.outputs}
    if set(names) != set(baseline.outputs) and len(names) == len(baseline.outputs):
        names = dict(zip(answers.outputs, baseline.outputs, strict=True))
        if len(names) > 1:
            pairs = ", ".join(f"{new} as {old}" for new, old in names.items())
            notes.append(f"{answers.name}: outputs are compared by their order: {pairs}")

    def read(rows: Any) -> dict[str, Any]:
        found = answers.rows(int(rows[0]), int(rows[-1]) + 1)
        return {names[name]: values for name, values in found.items()}

    return read


def _class_names(answers: StoredAnswers) -> tuple[str, ...] | None:
    """Return the data set's names where an output has a score for each."""
    if answers.classes is None or len(answers.classes) < 2:
        return None
    shapes = [each.shape for each in answers.rows(0, 1).values()]
    can_be_scores = [shape[1] for shape in shapes if len(shape) == 2]
    return answers.classes if can_be_scores == [len(answers.classes)] else None
