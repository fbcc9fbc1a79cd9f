# SPDX-License-Identifier: Apache-2.0
"""The outputs of the variants for each sample of a data set: how they are computed, stored and read.

`batch-00000.npz` and so on hold a batch each, `labels.npz` the labels, and `answers.json`, written last,
describes them. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from gpuprof.bench.accuracy.outputs_comparison import MARGIN, compare_outputs
from gpuprof.bench.accuracy.outputs_report import OutputComparison
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.measure.outputs import Outputs
from gpuprof.bench.models.data import Dataset
from gpuprof.bench.models.recipes import parse_recipe
from gpuprof.bench.models.sources import parse_model
from gpuprof.bench.workers.events import Event
from gpuprof.bench.workers.launcher import run_process
from gpuprof.bench.workers.schedule import TIME_LIMIT_S
from gpuprof.errors import BenchmarkError, GpuprofError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


FORMAT = 1
_INDEX = "answers.json"


class StoredArray:
    """An output with the type that it had before NumPy, which lacks bfloat16, got it."""

    def __init__(self, values: Array, dtype: str) -> None:
        self.values, self.dtype = values, dtype
        self.shape = values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.values if dtype is None else self.values.astype(dtype)


class AnswerWriter:
    """Writes answers batch by batch."""

    def __init__(self, folder: Path, labels: Array | None) -> None:
        self._folder = folder
        self._dtypes: dict[str, str] | None = None
        self._count = 0
        self.skipped: dict[str, None] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for old in (folder / _INDEX, *folder.glob("batch-*.npz"), folder / "labels.npz"):
            old.unlink(missing_ok=True)
        if labels is not None:
            np.savez(folder / "labels.npz", labels=labels)

    def add(self, outputs: Outputs, size: int, count: int) -> None:
        """Write the first `count` of `size` samples. Raises BenchmarkError where outputs change."""
        found = {
            name: each
            for name, each in outputs.arrays.items()
            if each.values.ndim and len(each.values) == size
        }
        for name in (*outputs.skipped, *(name for name in outputs.arrays if name not in found)):
            self.skipped[name] = None
        if not found:
            shapes = {name: each.values.shape for name, each in outputs.arrays.items()}
            raise BenchmarkError(
                f"no output has the {size} samples of the batch along its first axis "
                f"({shapes or 'nothing'}): outputs cannot be told apart by sample"
            )
        dtypes = {name: each.dtype for name, each in found.items()}
        if self._dtypes not in (None, dtypes):
            raise BenchmarkError(
                f"batch {self._count + 1} returns {dtypes}, the one before {self._dtypes}: they must be alike"
            )
        self._dtypes = dtypes
        arrays: dict[str, Any] = {
            f"output-{place}": each.values[:count] for place, each in enumerate(found.values())
        }
        np.savez(_batch_file(self._folder, self._count), **arrays)
        self._count += 1

    def finish(self, said: Mapping[str, Any]) -> None:
        """Write what the answers are."""
        outputs = [{"name": name, "dtype": dtype} for name, dtype in (self._dtypes or {}).items()]
        notes = [f"not stored, since it has no values for each sample: {name}" for name in self.skipped]
        text = json.dumps({"format": FORMAT, "outputs": outputs, **said, "notes": notes}, indent=1)
        draft = self._folder / f".{_INDEX}.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self._folder / _INDEX)


def _batch_file(folder: Path, number: int) -> Path:
    return folder / f"batch-{number:05d}.npz"


@dataclass(frozen=True)
class StoredAnswers:
    """The answers of one variant. `said` is what the launch told of it.

    `computes_in` is the type whose roundoff they have, None where it is not known.
    """

    name: str
    folder: Path
    samples: int
    batch_size: int
    outputs: Mapping[str, str]
    data: str
    computes_in: str | None
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]
    said: Mapping[str, Any] = field(repr=False)

    @property
    def labels(self) -> Array | None:
        """The labels of all samples; None where there are none."""
        path = self.folder / "labels.npz"
        return _load(path)["labels"] if path.exists() else None

    def rows(self, first: int, last: int) -> dict[str, StoredArray]:
        """Return the outputs of samples from `first` up to and without `last`."""
        files = range(first // self.batch_size, (last - 1) // self.batch_size + 1)
        batches = [_load(_batch_file(self.folder, number)) for number in files]
        offset = files.start * self.batch_size
        found = {}
        for place, (name, dtype) in enumerate(self.outputs.items()):
            parts = [batch[f"output-{place}"] for batch in batches]
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
            found[name] = StoredArray(values[first - offset : last - offset], dtype)
        return found

    def arrays(self) -> dict[str, Array]:
        """Return all outputs of all samples."""
        return {name: each.values for name, each in self.rows(0, self.samples).items()}


def _load(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BenchmarkError(
            f"{path}: stored answers cannot be read ({error}): run the variant again"
        ) from error


def read_answers(name: str, folder: Path) -> StoredAnswers:
    """Read the answers in a folder. Raises BenchmarkError where they are missing or not whole."""
    path = folder / _INDEX
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise BenchmarkError(f"{path} is of format {said['format']}, not {FORMAT}: run the variant again")
        classes = said["classes"]
        return StoredAnswers(
            name=name,
            folder=folder,
            samples=said["samples"],
            batch_size=said["batch_size"],
            outputs={each["name"]: each["dtype"] for each in said["outputs"]},
            data=said["data"],
            computes_in=said["computes_in"],
            classes=None if classes is None else tuple(classes),
            notes=tuple(said["notes"]),
            said=said,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(
            f"{path}: no answers that can be read ({error!r}): run the variant again"
        ) from error


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


@dataclass(frozen=True, slots=True)
class AnswersJob:
    """Run each sample of a data set once and store the outputs; `dataset` are arguments of `open_dataset`."""

    entry: ClassVar[str] = "gpuprof.bench.compare.answers_job:run_answers_job"
    keeps_collector: ClassVar[bool] = False

    spec: SystemSpec
    dataset: dict[str, Any]
    folder: str
    batch_size: int


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
    job = AnswersJob(spec, dataset.asked, str(folder.resolve()), batch_size)
    try:
        if batch_size < 1:
            raise BenchmarkError(f"a batch of {batch_size} holds no samples: batch sizes begin at 1")
        run_process(job, time_limit_s=time_limit_s, on_event=on_event)
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
    from gpuprof.bench.frameworks import framework_name

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
