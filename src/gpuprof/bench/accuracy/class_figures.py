# SPDX-License-Identifier: Apache-2.0
"""Accuracy, precision, recall and F1 of two variants, by class, and the classes that lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.statistics import discoveries
from gpuprof.bench.accuracy.places import plain
from gpuprof.bench.accuracy.proportions import Change, mcnemar
from gpuprof.bench.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.bench.accuracy.swapped import SwappedClasses

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
class VariantFigures:
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
    baseline: VariantFigures
    optimized: VariantFigures
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
