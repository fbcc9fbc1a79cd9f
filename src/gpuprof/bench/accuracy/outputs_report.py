# SPDX-License-Identifier: Apache-2.0
"""What a comparison of outputs found, and its text: the findings first, then the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuprof.bench.accuracy.classes import ClassFigures, Classification
from gpuprof.bench.accuracy.numerics import Numerics
from gpuprof.bench.accuracy.tolerance import Tolerance
from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.serialization import to_finite
from gpuprof.bench.verdicts import ToleranceVerdict
from gpuprof.text.table import Column, text_table, wrapped
from gpuprof.text.units import counted, format_share

FORMAT = 2
_MOST_CLASSES = 10
_MOST_NAMED = 5


@dataclass(frozen=True)
class OutputComparison:
    """What `compare_outputs` found.

    `numerics` and `tolerance` have an element for each output; `tolerance` is empty without a reference.
    `classification` is None where no output is scores of classes. `notes` list what was not compared.
    """

    batches: int
    samples: int
    numerics: tuple[Numerics, ...]
    classification: Classification | None
    tolerance: tuple[Tolerance, ...]
    notes: tuple[Diagnostic, ...]

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Warnings about the optimized variant, the most severe first; empty where nothing was found."""
        found = [each for figures in self.numerics for each in _not_finite(figures)]
        found += [
            warning("output_beyond_tolerance", output=each.name, reason=each.reason)
            for each in self.tolerance
            if each.verdict == ToleranceVerdict.BEYOND
        ]
        if self.classification is not None:
            found += _class_findings(self.classification)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; what is not available is None."""
        facts = {name: [each.to_dict() for each in getattr(self, name)] for name in ("findings", "notes")}
        return {"format": FORMAT, **to_finite(self), **facts}

    def __str__(self) -> str:
        return _report(self)


def _report(comparison: OutputComparison) -> str:
    """Return all of it, at most 100 columns wide where names allow it."""
    batches = counted(comparison.batches, "batch", "batches")
    lines = [f"{counted(comparison.samples, 'sample')} in {batches}", ""]
    lines += [wrapped(f"! {each}") for each in comparison.findings] or [
        "no difference found that is worth a warning"
    ]
    lines += ["", numerics_table(comparison.numerics)]
    places = _place_lines(comparison.numerics)
    lines += ["", *places] if places else []
    if comparison.tolerance:
        lines += ["", _tolerance_table(comparison.tolerance)]
        unknown = [str(each) for each in comparison.tolerance if each.verdict == ToleranceVerdict.UNKNOWN]
        lines += map(wrapped, unknown)
    else:
        lines += ["", "tolerance: not judged without a reference of higher precision (reference=True)"]
    if comparison.classification is not None:
        lines += ["", *_classification_lines(comparison.classification)]
    lines += [wrapped(str(each)) for each in comparison.notes]
    return "\n".join(lines)


# --- findings ------------------------------------------------------------------------------------


def _not_finite(figures: Numerics) -> Iterator[Diagnostic]:
    old, new = figures.baseline_not_finite, figures.optimized_not_finite
    if new.count:
        yield warning("not_finite", output=figures.name, found=new, baseline_count=old.count)
    elif old.count:
        yield warning("baseline_not_finite", output=figures.name, found=old)


def _class_findings(found: Classification) -> Iterator[Diagnostic]:
    for pair in found.swapped:
        names = {"first": found.name_of(pair.first), "second": found.name_of(pair.second)}
        yield warning("swapped_classes", **(asdict(pair) | names))
    for each in found.degraded[:_MOST_NAMED]:
        yield warning(
            "degraded_class",
            name=found.name_of(each.label),
            baseline=each.accuracy[0],
            accuracy=each.accuracy[1],
            samples=each.count,
            p_value=each.p_value,
            becomes=None if each.becomes is None else found.name_of(each.becomes[0]),
        )
    if len(found.degraded) > _MOST_NAMED:
        yield warning("more_degraded_classes", count=len(found.degraded) - _MOST_NAMED)
    if found.change is not None and found.change.verdict == "lower":
        yield warning("lower_accuracy", **found.change.to_dict())


# --- tables --------------------------------------------------------------------------------------


def numerics_table(numerics: Sequence[Numerics]) -> str:
    """Return a row for each output."""
    titles = ("sample", "different", "cosine min", "rel. L2", "MSE", "max abs.", "max rel.", "not finite")
    columns = (Column("output", right=False), *map(Column, titles))
    rows = [
        (
            each.name,
            "x".join("?" if size is None else str(size) for size in each.shape) or "scalar",
            format_share(each.different / each.elements if each.elements else None),
            "-" if each.cosine_min is None else f"{each.cosine_min:.6f}",
            *map(figure, (each.relative_l2, each.mse, each.max_abs_error, each.max_relative_error)),
            f"{each.baseline_not_finite.count:,} / {each.optimized_not_finite.count:,}",
        )
        for each in numerics
    ]
    return text_table(columns, rows)


def figure(value: float | None) -> str:
    """Return three significant digits; None is `-`."""
    return "-" if value is None else f"{value:.3g}"


def _place_lines(numerics: Sequence[Numerics]) -> list[str]:
    parts = [
        f"{each.name}: largest absolute error in {each.max_abs_place}"
        + (f", relative in {each.max_relative_place}" if each.max_relative_place else "")
        + (f", least cosine in sample {each.cosine_min_sample}" if each.cosine_min_sample is not None else "")
        for each in numerics
        if each.different and each.max_abs_place is not None
    ]
    return list(map(wrapped, parts))


def _tolerance_table(tolerance: Sequence[Tolerance]) -> str:
    titles = ("types", "baseline's error", "optimized's error", "allowed", "verdict")
    columns = (Column("against the reference", right=False), *map(Column, titles))
    rows = [
        (
            each.name,
            f"{each.baseline_dtype or '?'} / {each.optimized_dtype or '?'}",
            *map(figure, (each.baseline_error, each.optimized_error, each.allowed)),
            each.verdict,
        )
        for each in tolerance
    ]
    return text_table(columns, rows)


def _classification_lines(found: Classification) -> list[str]:
    agreement = f"top-1 agreement {found.top1_agreement:.2%}"
    if found.top5_agreement is not None:
        agreement += f", top-5 {found.top5_agreement:.2%}"
    lines = [f"{found.output} as scores of {found.classes:,} classes: {agreement}"]
    if found.change is None:
        return lines
    columns = (Column("", right=False), Column("baseline"), Column("optimized"))
    rows = [
        (title, format_share(getattr(found.baseline, name)), format_share(getattr(found.optimized, name)))
        for title, name in _VARIANT_ROWS
    ]
    silent = found.baseline.without_answer, found.optimized.without_answer
    if any(silent):
        rows.append(("samples without a prediction (NaN)", f"{silent[0]:,}", f"{silent[1]:,}"))
    lines += ["", text_table(columns, rows), "", f"accuracy: {found.change}", ""]
    return lines + _class_table(found)


_VARIANT_ROWS = (
    ("accuracy", "accuracy"),
    ("top-5 accuracy", "top5_accuracy"),
    ("precision, mean of classes", "precision"),
    ("recall, mean of classes", "recall"),
    ("F1, mean of classes", "f1"),
)


def _class_table(found: Classification) -> list[str]:
    shown = sorted(found.per_class, key=lambda each: (each.won - each.lost) / each.count)[:_MOST_CLASSES]
    titles = ("samples", "accuracy", "precision", "F1", "lost / won", "p", "verdict")
    columns = (Column("class", right=False), *map(Column, titles))
    lines = [text_table(columns, [_class_row(found, each) for each in shown])]
    if len(found.per_class) > len(shown):
        lines.append(f"{len(found.per_class) - len(shown):,} more classes lost less: see per_class")
    return lines


def _class_row(found: Classification, each: ClassFigures) -> tuple[str, ...]:
    pairs = (each.accuracy, each.precision, each.f1)
    return (
        found.name_of(each.label),
        f"{each.count:,}",
        *(" -> ".join(map(format_share, pair)) for pair in pairs),
        f"{each.lost:,} / {each.won:,}",
        f"{each.p_value:.2g}",
        each.verdict,
    )
