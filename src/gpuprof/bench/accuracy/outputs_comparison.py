# SPDX-License-Identifier: Apache-2.0
"""Whether an optimized model still answers what the baseline answers, over a loader's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof.bench.accuracy.batches import Batch, Batches
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
from gpuprof.bench.measure.outputs import NamedArray, Outputs
from gpuprof.errors import BenchmarkError

MARGIN = 0.01


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
    run = _Run(Batches(loader, labels), classes, output)
    with unharmed(*(each.model for each in variants)):
        for batch in run.batches:
            outputs = [each(batch.inputs, batch.number) for each in variants]
            run.add(batch, *outputs)
    return run.result((dtypes[0] or variants[0].dtype(), dtypes[1] or variants[1].dtype()), margin)


class _Run:
    """The sums of one comparison."""

    def __init__(self, batches: Batches, classes: bool | Sequence[str] | None, output: str | None) -> None:
        self.batches = batches
        self._names = None if classes is None or isinstance(classes, bool) else tuple(classes)
        self._is_asked_for = classes is not None and classes is not False
        self._is_left_out = classes is False
        self._output = output
        self._count = 0
        self._pairs: dict[str, NumericsSum] = {}
        # Against the reference: the baseline, the optimized variant, the rounding copy if there is one.
        self._errors: dict[str, tuple[NumericsSum, ...]] = {}
        self._scores: ClassificationSum | None = None
        self._notes: dict[str, None] = {}

    def add(self, batch: Batch, baseline: Outputs, optimized: Outputs, *references: Outputs) -> None:
        """Add one batch's outputs. Raises BenchmarkError where they do not match."""
        check_alike(baseline, optimized, "baseline", "optimized", batch.number)
        for name in (*baseline.skipped, *optimized.skipped):
            self._notes[f"not compared, since it has no plain values: {name}"] = None
        for name, old in baseline.arrays.items():
            new = optimized.arrays[name]
            sums = self._pairs.setdefault(name, NumericsSum(name))
            sums.add(old.values, new.values, (old.dtype, new.dtype))
        if references:
            check_alike(references[0], baseline, "reference", "baseline", batch.number)
            self._add_errors(references[0], baseline, optimized, *references[1:])
        self._add_scores(batch, baseline, optimized)
        self._count += 1

    def _add_errors(self, reference: Outputs, *variants: Outputs) -> None:
        for name, true in reference.arrays.items():
            sums = self._errors.setdefault(name, tuple(NumericsSum(name) for _ in variants))
            for error, variant in zip(sums, variants, strict=True):
                each = variant.arrays[name]
                error.add(true.values, each.values, (true.dtype, each.dtype))

    def _add_scores(self, batch: Batch, baseline: Outputs, optimized: Outputs) -> None:
        if self._is_left_out:
            return
        must = self._is_asked_for or self.batches.are_asked_for or self._output is not None
        name = _scores_name(baseline, self._output, must)
        if name is None:
            if batch.labels is not None:
                self._notes["labels are not used: no output is scores of classes, (samples, classes)"] = None
            return
        old, new = baseline.arrays[name].values, optimized.arrays[name].values
        if batch.labels is not None and len(batch.labels) != len(old):
            raise BenchmarkError(
                f"batch {batch.number} has {len(batch.labels):,} labels for {len(old):,} samples of {name}: "
                "one for each sample is needed"
            )
        if self._scores is None:
            self._scores = ClassificationSum(name, self._checked_classes(name, old.shape[1]), self._names)
        elif (self._scores.output, self._scores.classes) != (name, old.shape[1]):
            raise BenchmarkError(
                f"{name} has {old.shape[1]} classes in batch {batch.number}, and {self._scores.output} had "
                f"{self._scores.classes} before: all batches must be of the same classes"
            )
        self._scores.add(old, new, batch.labels)

    def _checked_classes(self, name: str, count: int) -> int:
        if self._names is not None and len(self._names) != count:
            raise BenchmarkError(
                f"classes= names {len(self._names)} classes, and {name} has {count}: name them all"
            )
        return count

    def result(self, dtypes: tuple[str | None, str | None], margin: float) -> OutputComparison:
        """Return what was found. Raises BenchmarkError where no batch held a sample."""
        numerics = tuple(each.result() for each in self._pairs.values())
        samples = max(each.samples for each in numerics)
        if not samples:
            raise BenchmarkError("the loader's batches hold no samples: the data set is empty")
        classification = None if self._scores is None else self._scores.result(margin)
        if classification is not None and classification.change is None:
            self._notes["no labels came with the batches: agreement only, no accuracy"] = None
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
            f"outputs do not match in batch {batch}: {', and '.join(both)}: compare equal outputs"
        )
    for name, shape in one.shapes.items():
        if shape != other.shapes[name]:
            raise BenchmarkError(
                f"{name} does not match in batch {batch}: {one_name} returns {_described(one, name)}, and "
                f"{other_name} {_described(other, name)}: the models differ in classes or sizes"
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
        f"{asked or 'no output'} {'is not' if asked else 'is'} scores of two classes or more, "
        f"(samples, classes): the outputs are {shapes}: name the right one with output="
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
