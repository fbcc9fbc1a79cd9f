# SPDX-License-Identifier: Apache-2.0
"""What two variants answer where outputs are scores of classes, counted batch by batch.

Two classes of scores or more, (samples, classes); the answer is the first of the largest. A sample with a NaN
among its scores has no answer: it counts as wrong, and agrees with nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.accuracy.class_figures import (
    ClassFigures,
    Classification,
    VariantFigures,
    class_figures,
    macro_figures,
)
from gpuprof.bench.accuracy.proportions import PairedCounts, change_of
from gpuprof.bench.accuracy.swapped import ScoreColumns, pairs_of, swapped_classes
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]

TOP = 5
NO_ANSWER = -1


class _VariantCounts:
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
        self._baseline, self._optimized = _VariantCounts(), _VariantCounts()
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
        counts: _VariantCounts,
        accuracy: float | None,
        per_class: tuple[ClassFigures, ...],
        side: int,
    ) -> VariantFigures:
        has_top = self._has_top and accuracy is not None
        return VariantFigures(
            without_answer=counts.without_answer,
            accuracy=accuracy,
            top5_accuracy=counts.in_top / self._samples if has_top else None,
            **macro_figures(per_class, side),
        )


def _answers(scores: Floats) -> Integers:
    found: Integers = np.argmax(scores, axis=1)
    return np.where(np.isnan(scores).any(axis=1), NO_ANSWER, found)
