# SPDX-License-Identifier: Apache-2.0
"""What two variants answer where outputs are scores of classes, counted batch by batch.

Two classes of scores or more, (samples, classes); the answer is the first of the largest. A sample with a NaN
among its scores has no answer: it counts as wrong, and agrees with nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.accuracy.label_permutation import ScoreColumns, pairs_of, swapped_classes
from gpuprof.bench.accuracy.locations import plain
from gpuprof.errors import BenchmarkError
from gpuprof.stats.proportions import Change, PairedCounts, change_of, mcnemar
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.significance import discoveries

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]
    from gpuprof.bench.accuracy.label_permutation import SwappedClasses


TOP = 5
NO_ANSWER = -1


class _PredictionCounts:
    """What one variant answered."""

    def __init__(self) -> None:
        self.confusion: Counter[tuple[int, int]] = Counter()
        self.in_top = self.without_answer = 0

    def add(self, answers: Integers, top: Integers | None, labels: Integers | None) -> None:
        self.without_answer += int((answers == NO_ANSWER).sum())
        if labels is None:
            return
        self.confusion.update(pairs_of(labels, answers))
        if top is not None:
            self.in_top += int((top == labels[:, None]).any(axis=1).sum())


class ClassificationSum:
    """Counts over batches of scores, with labels in every batch or in none."""

    def __init__(self, output: str, classes: int, names: tuple[str, ...] | None = None) -> None:
        self.output, self.classes, self._names = output, classes, names
        # Of five classes everything is among the first five: that tells nothing.
        self._has_top = classes > TOP
        self._samples = self._same = self._shared = 0
        self._answers: Counter[tuple[int, int]] = Counter()
        self._columns = ScoreColumns(classes)
        self._baseline, self._optimized = _PredictionCounts(), _PredictionCounts()
        self._paired: Integers | None = None

    def add(self, baseline: Any, optimized: Any, labels: Any = None) -> None:
        """Add a batch. Raises BenchmarkError for labels that are no classes."""
        old, new = (np.asarray(each, dtype=np.float64) for each in (baseline, optimized))
        if not len(old):
            return
        known = None if labels is None else self._checked(np.asarray(labels))
        self._columns.add(old, new)
        answers, top = (_answers(old), _answers(new)), (self._top(old), self._top(new))
        self._answers.update(pairs_of(*answers))
        self._samples += len(old)
        self._same += int(((answers[0] == answers[1]) & (answers[0] != NO_ANSWER)).sum())
        if top[0] is not None and top[1] is not None:
            answered = (answers[0] != NO_ANSWER) & (answers[1] != NO_ANSWER)
            shared = (top[0][:, :, None] == top[1][:, None, :]).any(axis=2).sum(axis=1)
            self._shared += int(shared[answered].sum())
        for counts, answer, best in zip((self._baseline, self._optimized), answers, top, strict=True):
            counts.add(answer, best, known)
        if known is not None:
            self._add_paired(known, answers[0] == known, answers[1] == known)

    def _checked(self, labels: npt.NDArray[Any]) -> Integers:
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            raise BenchmarkError(
                f"label {int(wrong[0])} is none of the {self.classes} classes of {self.output} "
                f"(0 to {self.classes - 1}): the labels belong to other classes than the outputs"
            )
        return labels.astype(np.int64)

    def _top(self, scores: Floats) -> Integers | None:
        """Return the classes of the five largest scores, the smaller number first where they are equal."""
        if not self._has_top:
            return None
        order: Integers = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
        order[np.isnan(scores).any(axis=1)] = NO_ANSWER
        return order

    def _add_paired(self, labels: Integers, old: npt.NDArray[np.bool_], new: npt.NDArray[np.bool_]) -> None:
        if self._paired is None:
            self._paired = np.zeros((self.classes, 4), dtype=np.int64)
        column = np.where(old, np.where(new, 0, 1), np.where(new, 2, 3))
        np.add.at(self._paired, (labels, column), 1)

    def result(self, margin: float) -> Classification:
        """Return the figures. `margin` is the change of accuracy that is of no matter."""
        per_class = self._class_figures()
        totals = None if self._paired is None else PairedCounts(*self._paired.sum(axis=0).tolist())
        return Classification(
            output=self.output,
            classes=self.classes,
            names=self._names,
            samples=self._samples,
            top1_agreement=self._same / self._samples,
            top5_agreement=self._shared / (TOP * self._samples) if self._has_top else None,
            baseline=self._variant(self._baseline, None if totals is None else totals.baseline, per_class, 0),
            optimized=self._variant(
                self._optimized, None if totals is None else totals.optimized, per_class, 1
            ),
            change=None if totals is None else change_of(totals, margin),
            per_class=per_class,
            swapped=swapped_classes(self._answers, self._columns),
        )

    def _class_figures(self) -> tuple[ClassFigures, ...]:
        if self._paired is None:
            return ()
        return class_figures(self._paired, self._baseline.confusion, self._optimized.confusion)

    def _variant(
        self,
        counts: _PredictionCounts,
        accuracy: float | None,
        per_class: tuple[ClassFigures, ...],
        side: int,
    ) -> ClassificationFigures:
        has_top = self._has_top and accuracy is not None
        return ClassificationFigures(
            without_answer=counts.without_answer,
            accuracy=accuracy,
            top5_accuracy=counts.in_top / self._samples if has_top else None,
            **macro_figures(per_class, side),
        )


def _answers(scores: Floats) -> Integers:
    found: Integers = np.argmax(scores, axis=1)
    return np.where(np.isnan(scores).any(axis=1), NO_ANSWER, found)


Confusion = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class that has samples. Pairs are (baseline, optimized).

    `accuracy` is the share of the class's samples that are answered rightly, its recall. `precision` is the
    share of the answers of this class that are right, None where nothing is answered so; F1 is
    2 right / (samples + answers). `p_value` is McNemar's, exact; `verdict` is "degraded" or "improved" where
    the difference stands among those of all classes (Benjamini and Hochberg, 5%), else "inconclusive".
    `becomes` is the wrong class that the optimized variant answers most, with its count.
    """

    label: int
    count: int
    accuracy: tuple[float, float]
    precision: tuple[float | None, float | None]
    f1: tuple[float, float]
    lost: int
    won: int
    p_value: float
    verdict: str
    becomes: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class ClassificationFigures:
    """One variant. All but `without_answer` are None without labels.

    `precision`, `recall` and `f1` are means over the classes that have samples ("macro"); a class that is
    never answered has a precision of 0 in that mean. `top5_accuracy` is None below 6 classes.
    """

    without_answer: int
    accuracy: float | None
    top5_accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True, slots=True)
class Classification:
    """What two variants answer. Without labels there is agreement only: `change` is None, `per_class` empty.

    `top1_agreement` is the share of samples with the same answer, `top5_agreement` the mean share that the
    five best classes of one have in common with those of the other, None below 6 classes.
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
        found = (each for each in self.per_class if each.verdict == "degraded")
        return tuple(sorted(found, key=lambda each: each.accuracy[1] - each.accuracy[0]))

    def name_of(self, label: int) -> str:
        """Return a class's name, else its number."""
        return str(label) if self.names is None else f"{label} ({self.names[label]})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def class_figures(
    paired: npt.NDArray[np.int64], baseline: Confusion, optimized: Confusion
) -> tuple[ClassFigures, ...]:
    """Return the figures of each class with samples; `paired` has columns as PairedCounts has fields."""
    present = np.flatnonzero(paired.sum(axis=1)).tolist()
    p_values = [mcnemar(int(paired[label, 1]), int(paired[label, 2])) for label in present]
    stands, _ = discoveries(np.array(p_values), 1 - CONFIDENCE)
    answered = _answered(baseline), _answered(optimized)
    becomes = _becomes(optimized)
    found = []
    for label, p_value, is_so in zip(present, p_values, stands.tolist(), strict=True):
        both, lost, won, neither = (int(each) for each in paired[label])
        count, right = both + lost + won + neither, (both + lost, both + won)
        said = tuple(each[label] for each in answered)
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
                verdict=("degraded" if lost > won else "improved") if is_so else "inconclusive",
                becomes=becomes.get(label),
            )
        )
    return tuple(found)


def macro_figures(per_class: tuple[ClassFigures, ...], side: int) -> dict[str, float | None]:
    """Return the means over the classes of one variant, 0 the baseline and 1 the optimized one."""
    if not per_class:
        return {"precision": None, "recall": None, "f1": None}
    return {
        "precision": float(np.mean([each.precision[side] or 0.0 for each in per_class])),
        "recall": float(np.mean([each.accuracy[side] for each in per_class])),
        "f1": float(np.mean([each.f1[side] for each in per_class])),
    }


def _answered(confusion: Confusion) -> Counter[int]:
    counts: Counter[int] = Counter()
    for (_, answer), count in confusion.items():
        counts[answer] += count
    return counts


def _becomes(confusion: Confusion) -> dict[int, tuple[int, int]]:
    """Return the most frequent wrong answer of each class, the smaller number where two are equal."""
    most: dict[int, tuple[int, int]] = {}
    for (label, answer), count in sorted(confusion.items()):
        if answer not in (label, -1) and count > most.get(label, (0, 0))[1]:
            most[label] = answer, count
    return most


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
