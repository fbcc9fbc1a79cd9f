# SPDX-License-Identifier: Apache-2.0
"""Whether an optimized model still predicts what the baseline predicts, over a loader's batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.bench.accuracy.classes import ClassificationSum
from gpuprof.bench.accuracy.numerics import NumericsSum
from gpuprof.bench.accuracy.outputs_report import OutputComparison
from gpuprof.bench.accuracy.tolerance import (
    Tolerance,
    coarsest,
    is_coarser,
    judge,
    known_dtype,
    rounding_copy,
)
from gpuprof.bench.accuracy.variants import ComparedModel, double_precision, unharmed
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.measure.outputs import NamedArray, Outputs, as_array, named_arrays
from gpuprof.errors import BenchmarkError

MARGIN = 0.01
Integers = np.ndarray[Any, Any]


def compare_outputs(
    baseline: Any,
    optimized: Any,
    loader: Any,
    *,
    labels: Any = None,
    classes: bool | Sequence[str] | None = None,
    output: str | None = None,
    reference: Any = None,
    baseline_dtype: str | None = None,
    optimized_dtype: str | None = None,
    margin: float = MARGIN,
) -> OutputComparison:
    """Compare what two models or functions return for the same batches.

    `loader` is anything that batches can be iterated from: one argument each, a tuple or list of positional
    ones, a dictionary of keyword ones, or a pair (inputs, labels) as classification data sets make them; see
    `labels` in `Batches`. Samples lie along the first axis. `classes` are the names of the classes; True asks
    for agreement where outputs are scores of classes, False for none, and None looks whether they are.
    `output` names the output that holds the scores.

    `reference` is a model of higher precision, or True for a copy of the baseline in float64: then each
    output's error is judged by what its type allows (tolerance.py). The type is the coarsest of a module's
    parameters and outputs, unless `baseline_dtype` and `optimized_dtype` name it, as is needed for "tf32",
    "int8" and for functions that round inside. `margin` is the change of accuracy that is of no matter.

    Modules of PyTorch are evaluated in evaluation mode without gradients, and left as they were. Memory
    does not grow with the number of batches. Raises BenchmarkError.
    """
    variants = [ComparedModel("baseline", baseline), ComparedModel("optimized", optimized)]
    if reference is not None and reference is not False:
        high = double_precision(baseline) if reference is True else reference
        variants.append(ComparedModel("reference", high))
    named = (baseline_dtype, optimized_dtype)
    options = ("baseline_dtype", "optimized_dtype")
    dtypes = [each and known_dtype(each, option) for each, option in zip(named, options, strict=True)]
    found = tuple(each or variant.dtype() for each, variant in zip(dtypes, variants, strict=False))
    if reference is True and is_coarser(found[1], found[0]):
        variants.append(ComparedModel("rounding reference", rounding_copy(high, str(found[1]))))
    batches = Batches(loader, labels)
    sums = OutputsSum(classes, output, needs_scores=batches.are_asked_for)
    with unharmed(*(each.model for each in variants)):
        for batch in batches:
            outputs = [each(batch.inputs, batch.number) for each in variants]
            sums.add(batch, *outputs)
    return sums.result((dtypes[0] or variants[0].dtype(), dtypes[1] or variants[1].dtype()), margin)


class OutputsSum:
    """The sums of one comparison, batch by batch; for `classes` and `output` see `compare_outputs`.

    With `needs_scores` an output has to be scores of classes, as where there are labels.
    """

    def __init__(
        self,
        classes: bool | Sequence[str] | None = None,
        output: str | None = None,
        *,
        needs_scores: bool = False,
    ) -> None:
        self._names = None if classes is None or isinstance(classes, bool) else tuple(classes)
        self._needs_scores = (
            needs_scores or output is not None or (classes is not None and classes is not False)
        )
        self._is_left_out = classes is False
        self._output = output
        self._count = 0
        self._pairs: dict[str, NumericsSum] = {}
        # Against the reference: the baseline, the optimized variant, the rounding copy if there is one.
        self._errors: dict[str, tuple[NumericsSum, ...]] = {}
        self._scores: ClassificationSum | None = None
        self._notes: list[Diagnostic] = []

    def add(self, batch: Batch, baseline: Outputs, optimized: Outputs, *references: Outputs) -> None:
        """Add one batch's outputs. Raises BenchmarkError where they do not match."""
        check_alike(baseline, optimized, "baseline", "optimized", batch.number)
        for name in (*baseline.skipped, *optimized.skipped):
            self._note(note("no_plain_values", output=name))
        for name, old in baseline.arrays.items():
            new = optimized.arrays[name]
            sums = self._pairs.setdefault(name, NumericsSum(name))
            sums.add(old.values, new.values, (old.dtype, new.dtype))
        if references:
            check_alike(references[0], baseline, "reference", "baseline", batch.number)
            self._add_errors(references[0], baseline, optimized, *references[1:])
        self._add_scores(batch, baseline, optimized)
        self._count += 1

    def _note(self, added: Diagnostic) -> None:
        if added not in self._notes:
            self._notes.append(added)

    def _add_errors(self, reference: Outputs, *variants: Outputs) -> None:
        for name, true in reference.arrays.items():
            sums = self._errors.setdefault(name, tuple(NumericsSum(name) for _ in variants))
            for error, variant in zip(sums, variants, strict=True):
                each = variant.arrays[name]
                error.add(true.values, each.values, (true.dtype, each.dtype))

    def _add_scores(self, batch: Batch, baseline: Outputs, optimized: Outputs) -> None:
        if self._is_left_out:
            return
        name = _scores_name(baseline, self._output, self._needs_scores)
        if name is None:
            if batch.labels is not None:
                self._note(note("labels_not_used"))
            return
        old, new = baseline.arrays[name].values, optimized.arrays[name].values
        if batch.labels is not None and len(batch.labels) != len(old):
            raise BenchmarkError(
                "number_of_labels",
                f"batch {batch.number} has {len(batch.labels):,} labels for {len(old):,} samples of {name}",
                hint="give one label for each sample",
            )
        if self._scores is None:
            self._scores = ClassificationSum(name, self._checked_classes(name, old.shape[1]), self._names)
        elif (self._scores.output, self._scores.classes) != (name, old.shape[1]):
            raise BenchmarkError(
                "number_of_classes",
                f"{name} has {old.shape[1]} classes in batch {batch.number}, and {self._scores.output} had "
                f"{self._scores.classes} before",
                hint="return the scores of the same classes for every batch",
            )
        self._scores.add(old, new, batch.labels)

    def _checked_classes(self, name: str, count: int) -> int:
        if self._names is not None and len(self._names) != count:
            raise BenchmarkError(
                "number_of_classes",
                f"classes= names {len(self._names)} classes, and {name} has {count}",
                hint="specify them all",
            )
        return count

    def result(self, dtypes: tuple[str | None, str | None], margin: float) -> OutputComparison:
        """Return what was found. Raises BenchmarkError where no batch held a sample."""
        numerics = tuple(each.result() for each in self._pairs.values())
        samples = max(each.samples for each in numerics)
        if not samples:
            raise BenchmarkError(
                "no_samples", "the loader's batches hold no samples", hint="use a data set with samples"
            )
        classification = None if self._scores is None else self._scores.result(margin)
        if classification is not None and classification.change is None:
            self._note(note("no_labels_in_batches"))
        tolerance = tuple(_tolerance(sums, dtypes) for sums in self._errors.values())
        return OutputComparison(self._count, samples, numerics, classification, tolerance, tuple(self._notes))


def check_alike(one: Outputs, other: Outputs, one_name: str, other_name: str, batch: int) -> None:
    """Raise BenchmarkError where two variants' outputs have other names or shapes."""
    only_one = [name for name in one.arrays if name not in other.arrays]
    only_other = [name for name in other.arrays if name not in one.arrays]
    if only_one or only_other:
        both = (
            f"{one_name} returns {_list(only_one or one.arrays)}",
            f"{other_name} {_list(only_other or other.arrays)}",
        )
        raise BenchmarkError(
            "outputs_differ",
            f"outputs do not match in batch {batch}: {', and '.join(both)}",
            hint="use models that return the same outputs",
        )
    for name, shape in one.shapes.items():
        if shape != other.shapes[name]:
            raise BenchmarkError(
                "outputs_differ",
                f"{name} does not match in batch {batch}: {one_name} returns {_described(one, name)}, and "
                f"{other_name} {_described(other, name)}",
                hint="use models with the same classes and output sizes",
            )


def _described(outputs: Outputs, name: str) -> str:
    return f"{outputs.arrays[name].dtype} of shape {outputs.shapes[name]}"


def _list(names: Any) -> str:
    return ", ".join(names) or "nothing"


def _scores_name(outputs: Outputs, asked: str | None, must: bool) -> str | None:
    """Return the output that is scores of classes: the one asked for, `logits`, or the only one that can."""
    can = [name for name, each in outputs.arrays.items() if _can_be_scores(each)]
    if asked is not None and asked in can:
        return asked
    if asked is None and can and (len(can) == 1 or "logits" in can or must):
        return "logits" if "logits" in can else can[0]
    if not must:
        return None
    shapes = ", ".join(f"{name} {shape}" for name, shape in outputs.shapes.items())
    raise BenchmarkError(
        "no_scores",
        f"{asked or 'no output'} {'is not' if asked else 'is'} scores of two classes or more, "
        f"(samples, classes): the outputs are {shapes}",
        hint="specify the right one with output=",
    )


def _can_be_scores(array: NamedArray) -> bool:
    values = array.values
    return values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind == "f"


def _tolerance(sums: tuple[NumericsSum, ...], dtypes: tuple[str | None, str | None]) -> Tolerance:
    old, new, *rounding = (each.result() for each in sums)
    fresh = max(0, new.optimized_not_finite.count - new.baseline_not_finite.count)
    reference_dtype = coarsest([old.baseline_dtype])
    rounding_error = rounding[0].relative_l2 if rounding else None
    return judge(new.name, old.relative_l2, new.relative_l2, dtypes, reference_dtype, fresh, rounding_error)


# --- what a loader hands out ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch; `number` counts from 1. `labels` is None where there are none."""

    number: int
    inputs: Any
    labels: Integers | None


class Batches:
    """Reads batches and finds their labels.

    `labels` is None (the second of a pair is taken as labels where it is a whole number for each sample),
    True (it must be), False (there are none), the key of a dictionary, or the labels of all samples in order.
    """

    def __init__(self, loader: Any, labels: Any) -> None:
        self._loader, self._labels = _iterable(loader), labels
        self._all: Integers | None = None
        if labels is not None and not isinstance(labels, (bool, str)):
            self._all = _as_labels(np.asarray(labels) if isinstance(labels, (list, tuple)) else labels)
            if self._all is None:
                raise BenchmarkError(
                    "invalid_labels",
                    "labels= has no labels of samples",
                    hint="use a key of the batches, True, False, or one whole number for each sample",
                )
        self._taken = 0

    @property
    def are_asked_for(self) -> bool:
        """Whether the caller declared that there are labels."""
        return self._labels is not None and self._labels is not False

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches. Raises BenchmarkError where there is none, or labels are missing."""
        number, had_labels = 0, None
        for number, given in enumerate(self._loader, 1):
            inputs, labels = self._split(given, number)
            if had_labels not in (None, labels is not None):
                raise BenchmarkError(
                    "no_labels",
                    f"labels are missing in batch {number if labels is None else number - 1}, and other "
                    "batches have them",
                    hint="return labels with every batch, or set labels=False",
                )
            had_labels = labels is not None
            yield Batch(number, inputs, labels)
        if number == 0:
            raise BenchmarkError(
                "no_samples",
                "the loader returned no batch: the data set is empty, or was read to its end before",
                hint="use a list or a DataLoader, which can be read again",
            )
        if self._all is not None and self._taken < len(self._all):
            raise BenchmarkError(
                "number_of_labels",
                f"labels= holds {len(self._all):,} labels, and the loader returned {self._taken:,} samples",
                hint="give one label for each sample",
            )

    def _split(self, given: Any, number: int) -> tuple[Any, Integers | None]:
        if self._labels is False:
            return _as_arguments(given), None
        if self._all is not None:
            return _as_arguments(given), self._next_of_all(given)
        if isinstance(self._labels, str):
            return _without_key(given, self._labels, number)
        return self._pair(given, number)

    def _pair(self, given: Any, number: int) -> tuple[Any, Integers | None]:
        is_pair = isinstance(given, (tuple, list)) and len(given) == 2 and not hasattr(given, "_fields")
        labels = _as_labels(given[1]) if is_pair else None
        if labels is not None and (self._labels is True or len(labels) == _sample_count(given[0])):
            return given[0], labels
        if self._labels is True:
            raise BenchmarkError(
                "no_labels",
                f"labels are missing in batch {number}: labels=True needs pairs of inputs and labels, one "
                f"whole number for each sample, and the batch is {_description(given)}",
                hint="return pairs, or set labels= to the labels of all samples",
            )
        return _as_arguments(given), None

    def _next_of_all(self, given: Any) -> Integers:
        assert self._all is not None
        count = _sample_count(given)
        if count is None or self._taken + count > len(self._all):
            raise BenchmarkError(
                "number_of_labels",
                f"labels= holds {len(self._all):,} labels, fewer than the loader has samples",
                hint="give one label for each sample",
            )
        self._taken += count
        return self._all[self._taken - count : self._taken]


def _iterable(loader: Any) -> Iterable[Any]:
    """Return batches; a tensor, an array, a tuple or a dictionary is the inputs of one batch."""
    if hasattr(loader, "shape") or isinstance(loader, (Mapping, tuple)):
        return [loader]
    if callable(loader) and not hasattr(loader, "__iter__"):
        loader = loader()
    try:
        iter(loader)
    except TypeError:
        raise BenchmarkError(
            "invalid_loader",
            f"the loader is a {type(loader).__name__}, which has no batches",
            hint="use a DataLoader, or a list of batches",
        ) from None
    found: Iterable[Any] = loader
    return found


def _as_arguments(given: Any) -> Any:
    """Loaders make lists of what data sets make tuples of: positional arguments."""
    return tuple(given) if isinstance(given, list) else given


def _without_key(given: Any, key: str, number: int) -> tuple[Any, Integers]:
    if not isinstance(given, Mapping) or key not in given:
        raise BenchmarkError(
            "no_labels",
            f"labels are missing in batch {number}: {_description(given)} has no {key!r}",
            hint="set labels= to the key that each batch has its labels under",
        )
    labels = _as_labels(given[key])
    if labels is None:
        raise BenchmarkError(
            "invalid_labels",
            f"{key!r} in batch {number} is not one whole number for each sample",
            hint="set labels= to the key of the labels",
        )
    return {name: value for name, value in given.items() if name != key}, labels


def _as_labels(value: Any) -> Integers | None:
    """Return whole numbers, one a sample; None of what is something else."""
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        return np.asarray(value)
    array = as_array(value)
    return array if array is not None and array.ndim == 1 and array.dtype.kind in "iu" else None


def _sample_count(inputs: Any) -> int | None:
    arrays = named_arrays(inputs).arrays.values()
    return next((len(each.values) for each in arrays if each.values.ndim), None)


def _description(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a dictionary of {', '.join(map(repr, given)) or 'nothing'}"
    if isinstance(given, (tuple, list)):
        return f"a {type(given).__name__} of {len(given)}"
    return f"one {type(given).__name__}"
