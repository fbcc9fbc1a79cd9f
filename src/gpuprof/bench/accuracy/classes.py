# SPDX-License-Identifier: Apache-2.0
"""What two variants predict where outputs are scores of classes, counted batch by batch.

Scores are (samples, classes) with two classes or more; the prediction is the first of the largest. A sample
with a NaN among its scores has no prediction: it counts as wrong, and agrees with nothing. Classes may have
exchanged their predictions, as after a wrong list of classes or rows restored in a wrong order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.verdicts import ClassVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.stats.proportions import Change, PairedCounts, change_of, mcnemar
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.significance import discoveries

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Array, Flags, Floats, Integers

Confusion = Mapping[tuple[int, int], int]

TOP = 5
NO_PREDICTION = -1
# All pairs of columns are held: 32 MiB of doubles.
_MOST_CLASSES = 2_048
# A column has moved where the other's place fits it so much better, in squares of distances.
_CLEARLY_NEARER = 0.25


@dataclass(frozen=True, slots=True)
class SwappedClasses:
    """Two classes whose predictions the optimized variant exchanges.

    `first_moved` of `first_count` samples that the baseline calls `first` are called `second`, and the other
    way round. `by_scores` is True where their columns of scores are exchanged too, which shows without any
    sample of these classes; None where there are too many classes to look.
    """

    first: int
    second: int
    first_moved: int
    first_count: int
    second_moved: int
    second_count: int
    by_scores: bool | None


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class that has samples. Pairs are (baseline, optimized).

    `accuracy` is the fraction of the class's samples with a correct prediction, its recall. `precision` is
    the fraction of the predictions of this class that are correct, None where there are none; F1 is
    2 correct / (samples + predictions). `p_value` is McNemar's, exact; `verdict` is conclusive where the
    difference is significant among those of all classes (Benjamini and Hochberg, 5%).
    `becomes` is the wrong class that the optimized variant predicts most, with its count.
    """

    label: int
    count: int
    accuracy: tuple[float, float]
    precision: tuple[float | None, float | None]
    f1: tuple[float, float]
    lost: int
    won: int
    p_value: float
    verdict: ClassVerdict
    becomes: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class ClassificationFigures:
    """One variant. All but `without_answer` are None without labels.

    `precision`, `recall` and `f1` are means over the classes that have samples ("macro"); a class that is
    never predicted has a precision of 0 in that mean. `top5_accuracy` is None below 6 classes.
    """

    without_answer: int
    accuracy: float | None = None
    top5_accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


@dataclass(frozen=True, slots=True)
class Classification:
    """What two variants predict. Without labels there is agreement only: `change` is None, `per_class` empty.

    `top1_agreement` is the fraction of samples with equal predictions, `top5_agreement` the mean part that
    the five best classes of one have in common with those of the other, None below 6 classes.
    """

    output: str
    classes: int
    names: tuple[str, ...] | None
    samples: int
    top1_agreement: float
    top5_agreement: float | None
    baseline: ClassificationFigures
    optimized: ClassificationFigures
    change: Change | None
    per_class: tuple[ClassFigures, ...]
    swapped: tuple[SwappedClasses, ...]

    @property
    def degraded(self) -> tuple[ClassFigures, ...]:
        """The classes that lost, the greatest loss first."""
        found = (each for each in self.per_class if each.verdict == ClassVerdict.DEGRADED)
        return tuple(sorted(found, key=lambda each: each.accuracy[1] - each.accuracy[0]))

    def name_of(self, label: int) -> str:
        """Return a class's name, else its number."""
        return str(label) if self.names is None else f"{label} ({self.names[label]})"


class _PredictionCounts:
    """What one variant predicted."""

    def __init__(self) -> None:
        self.confusion: Counter[tuple[int, int]] = Counter()
        self.in_top = self.without_answer = 0

    def add(self, predictions: Integers, top: Integers | None, labels: Integers | None) -> None:
        self.without_answer += int((predictions == NO_PREDICTION).sum())
        if labels is None:
            return
        self.confusion.update(_pairs_of(labels, predictions))
        if top is not None:
            self.in_top += int((top == labels[:, None]).any(axis=1).sum())

    def predicted(self) -> Counter[int]:
        """Return how many samples each class was predicted for."""
        return _totals(self.confusion, 1)

    def most_frequent_error(self) -> dict[int, tuple[int, int]]:
        """Return the most frequent wrong prediction of each class, the smaller number where two are equal."""
        most: dict[int, tuple[int, int]] = {}
        for (label, prediction), count in sorted(self.confusion.items()):
            if prediction not in (label, NO_PREDICTION) and count > most.get(label, (0, 0))[1]:
                most[label] = prediction, count
        return most


class ClassificationSum:
    """Counts over batches of scores, with labels in every batch or in none."""

    def __init__(self, output: str, classes: int, names: tuple[str, ...] | None = None) -> None:
        self.output, self.classes, self._names = output, classes, names
        # Of five classes everything is among the first five: that is no information.
        self._has_top = classes > TOP
        self._samples = self._same = self._shared = 0
        self._predictions: Counter[tuple[int, int]] = Counter()
        self._columns = _ScoreColumns(classes)
        self._counts = _PredictionCounts(), _PredictionCounts()
        self._paired: Integers | None = None

    def add(self, baseline: Any, optimized: Any, labels: Any = None) -> None:
        """Add a batch. Raises BenchmarkError for labels that are no classes."""
        old, new = (np.asarray(each, dtype=np.float64) for each in (baseline, optimized))
        if not len(old):
            return
        known = None if labels is None else self._checked(np.asarray(labels))
        self._columns.add(old, new)
        predictions, top = (_predictions(old), _predictions(new)), (self._top(old), self._top(new))
        self._predictions.update(_pairs_of(*predictions))
        self._samples += len(old)
        self._same += int(((predictions[0] == predictions[1]) & (predictions[0] != NO_PREDICTION)).sum())
        if top[0] is not None and top[1] is not None:
            predicted = (predictions[0] != NO_PREDICTION) & (predictions[1] != NO_PREDICTION)
            shared = (top[0][:, :, None] == top[1][:, None, :]).any(axis=2).sum(axis=1)
            self._shared += int(shared[predicted].sum())
        for counts, prediction, best in zip(self._counts, predictions, top, strict=True):
            counts.add(prediction, best, known)
        if known is not None:
            self._add_paired(known, predictions[0] == known, predictions[1] == known)

    def _checked(self, labels: Array) -> Integers:
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            raise BenchmarkError(
                "label_out_of_range",
                f"label {int(wrong[0])} is none of the {self.classes} classes of {self.output} "
                f"(0 to {self.classes - 1})",
                hint="use labels of the classes that the model was trained on, numbered from 0",
            )
        return labels.astype(np.int64)

    def _top(self, scores: Floats) -> Integers | None:
        """Return the classes of the five largest scores, the smaller number first where they are equal."""
        if not self._has_top:
            return None
        order: Integers = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
        order[np.isnan(scores).any(axis=1)] = NO_PREDICTION
        return order

    def _add_paired(self, labels: Integers, old: Flags, new: Flags) -> None:
        if self._paired is None:
            self._paired = np.zeros((self.classes, 4), dtype=np.int64)
        column = np.where(old, np.where(new, 0, 1), np.where(new, 2, 3))
        np.add.at(self._paired, (labels, column), 1)

    def result(self, margin: float) -> Classification:
        """Return the figures. `margin` is the change of accuracy that is of no matter."""
        totals = None if self._paired is None else PairedCounts(*self._paired.sum(axis=0).tolist())
        per_class = () if self._paired is None else _class_figures(self._paired, *self._counts)
        baseline, optimized = (self._figures(side, totals, per_class) for side in (0, 1))
        return Classification(
            output=self.output,
            classes=self.classes,
            names=self._names,
            samples=self._samples,
            top1_agreement=self._same / self._samples,
            top5_agreement=self._shared / (TOP * self._samples) if self._has_top else None,
            baseline=baseline,
            optimized=optimized,
            change=None if totals is None else change_of(totals, margin),
            per_class=per_class,
            swapped=_swapped_classes(self._predictions, self._columns),
        )

    def _figures(
        self, side: int, totals: PairedCounts | None, per_class: tuple[ClassFigures, ...]
    ) -> ClassificationFigures:
        counts = self._counts[side]
        if totals is None:
            return ClassificationFigures(counts.without_answer)
        return ClassificationFigures(
            without_answer=counts.without_answer,
            accuracy=(totals.baseline, totals.optimized)[side],
            top5_accuracy=counts.in_top / self._samples if self._has_top else None,
            precision=float(np.mean([each.precision[side] or 0.0 for each in per_class])),
            recall=float(np.mean([each.accuracy[side] for each in per_class])),
            f1=float(np.mean([each.f1[side] for each in per_class])),
        )


def _predictions(scores: Floats) -> Integers:
    found: Integers = np.argmax(scores, axis=1)
    return np.where(np.isnan(scores).any(axis=1), NO_PREDICTION, found)


def _pairs_of(first: Any, second: Any) -> Counter[tuple[int, int]]:
    """Count the pairs of two columns of whole numbers."""
    pairs, counts = np.unique(np.stack((first, second)), axis=1, return_counts=True)
    return Counter(dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True)))


def _totals(pairs: Confusion, side: int) -> Counter[int]:
    """Count the first or the second of each pair."""
    totals: Counter[int] = Counter()
    for pair, count in pairs.items():
        totals[pair[side]] += count
    return totals


def _class_verdict(lost: int, won: int) -> ClassVerdict:
    return ClassVerdict.DEGRADED if lost > won else ClassVerdict.IMPROVED


def _class_figures(
    paired: Integers, baseline: _PredictionCounts, optimized: _PredictionCounts
) -> tuple[ClassFigures, ...]:
    """Return the figures of each class with samples; `paired` has columns as PairedCounts has fields."""
    present = np.flatnonzero(paired.sum(axis=1)).tolist()
    p_values = [mcnemar(*paired[label, 1:3].tolist()) for label in present]
    stands, _ = discoveries(np.array(p_values), 1 - CONFIDENCE)
    predicted = baseline.predicted(), optimized.predicted()
    becomes = optimized.most_frequent_error()
    found = []
    for label, p_value, is_so in zip(present, p_values, stands.tolist(), strict=True):
        both, lost, won, neither = paired[label].tolist()
        count, right = both + lost + won + neither, (both + lost, both + won)
        said = tuple(each[label] for each in predicted)
        found.append(
            ClassFigures(
                label=label,
                count=count,
                accuracy=(right[0] / count, right[1] / count),
                precision=(_share(right[0], said[0]), _share(right[1], said[1])),
                f1=(2 * right[0] / (count + said[0]), 2 * right[1] / (count + said[1])),
                lost=lost,
                won=won,
                p_value=p_value,
                verdict=_class_verdict(lost, won) if is_so else ClassVerdict.INCONCLUSIVE,
                becomes=becomes.get(label),
            )
        )
    return tuple(found)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# --- classes that exchanged their predictions ----------------------------------------------------


class _ScoreColumns:
    """Squared distances between every column of scores of one variant and every one of the other."""

    def __init__(self, classes: int) -> None:
        self.is_looked_at = classes <= _MOST_CLASSES
        size = classes if self.is_looked_at else 0
        self._products = np.zeros((size, size))
        self._baseline, self._optimized = np.zeros(size), np.zeros(size)

    def add(self, baseline: Floats, optimized: Floats) -> None:
        """Add a batch of scores, (samples, classes); samples with NaN or infinity are left out."""
        if not self.is_looked_at:
            return
        finite = np.isfinite(baseline).all(axis=1) & np.isfinite(optimized).all(axis=1)
        old, new = baseline[finite], optimized[finite]
        with np.errstate(over="ignore", invalid="ignore"):
            self._products += new.T @ old
            self._baseline += np.square(old).sum(axis=0)
            self._optimized += np.square(new).sum(axis=0)

    def exchanged(self) -> set[tuple[int, int]]:
        """Return pairs of classes that are each other's nearest, clearly nearer than themselves."""
        if not self._products.size:
            return set()
        with np.errstate(invalid="ignore"):
            distances = self._optimized[:, None] + self._baseline[None, :] - 2 * self._products
        distances = np.maximum(np.nan_to_num(distances, nan=np.inf), 0.0)
        own, nearest = np.diag(distances), np.argmin(distances, axis=1)
        is_moved = distances[np.arange(len(own)), nearest] < _CLEARLY_NEARER * own
        return {
            (one, other)
            for one, other in enumerate(nearest.tolist())
            if one < other and nearest[other] == one and is_moved[one] and is_moved[other]
        }


def _swapped_classes(predictions: Confusion, columns: _ScoreColumns) -> tuple[SwappedClasses, ...]:
    """Return exchanged pairs; `predictions` counts samples by (baseline's, optimized variant's).

    By predictions a pair is exchanged where most samples of each class go to the other.
    """
    totals = _totals(predictions, 0)
    by_scores = columns.exchanged()
    found = by_scores | {
        (one, other)
        for one, other in predictions
        if 0 <= one < other
        and _moved(predictions, totals, one, other)
        and _moved(predictions, totals, other, one)
    }
    return tuple(
        SwappedClasses(
            first=one,
            second=other,
            first_moved=predictions.get((one, other), 0),
            first_count=totals[one],
            second_moved=predictions.get((other, one), 0),
            second_count=totals[other],
            by_scores=(one, other) in by_scores if columns.is_looked_at else None,
        )
        for one, other in sorted(found)
    )


def _moved(predictions: Confusion, totals: Mapping[int, int], one: int, other: int) -> bool:
    return 2 * predictions.get((one, other), 0) > totals.get(one, 0)
